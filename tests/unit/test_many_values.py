"""Small files of millions of tiny values: every reader refuses them before the values are made, in
a second or two and in little memory.
"""

import gzip
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bass.analysis.evaluated import read_evaluation
from bass.errors import BassError, OptionError, RequestError
from bass.evaluation.tasks import read_problems
from bass.plain_json import MOST_LINES, MOST_VALUES, parse_json
from bass.runs.drafts import TEXTS, read_texts
from bass.runs.evaluation_folder import opened
from bass.runs.lines import read_lines
from bass.runs.prompts import read_prompts
from bass.runs.records import StepLine
from bass.runs.run_folder import RunFolder

LISTS = b"[" + b"[]," * MOST_VALUES + b"0]"  # 12 MB, of which Python makes 300 MB
QUESTION = b'{"question":"","answer":"#### 1"}\n'


@contextmanager
def cheap(seconds: float = 2.0, megabytes: int = 200) -> Iterator[None]:
    tracemalloc.start()
    began = time.process_time()
    try:
        yield
        assert time.process_time() - began < seconds
        assert tracemalloc.get_traced_memory()[1] < megabytes * 1e6
    finally:
        tracemalloc.stop()


RECORDS: dict[str, tuple[str, bytes, str]] = {
    "a list of lists": ("x.json", LISTS, "values, and the limit is 4,000,000"),
    "a line of lists": ("x.jsonl", LISTS + b"\n", "values, and the limit is 4,000,000"),
    "a line of lists, packed": ("x.jsonl.gz", gzip.compress(LISTS, 1), "and the limit is 4,000,0"),
    "lines of a digit": ("x.jsonl", b"0\n" * 10**7, "Record 1 of"),
    "empty lines": ("x.jsonl", b"\n" * 10**7, f"more than {MOST_LINES:,} lines"),
    "deep nesting": ("x.jsonl", b"[" * 10**5 + b"\n", "nested too deeply"),
}


@pytest.mark.parametrize("case", RECORDS)
def test_a_data_set_of_tiny_values_is_refused_soon(tmp_path: Path, case: str) -> None:
    name, content, words = RECORDS[case]
    (tmp_path / name).write_bytes(content)
    with cheap(), pytest.raises(RequestError, match=words):
        read_problems("gsm8k", tmp_path / name)


STRINGS = {
    "without a character": ("[" + '"",' * MOST_VALUES + "0]", "the limit is 4,000,000"),
    "of commas": ("[" + '",",' * (MOST_VALUES - 9) + "[[]],,]", "Expecting value"),
}


@pytest.mark.parametrize("case", STRINGS)
def test_millions_of_strings_are_counted_soon(case: str) -> None:
    text, words = STRINGS[case]
    began = time.process_time()
    with pytest.raises(ValueError, match=words):
        parse_json(text)
    assert time.process_time() - began < 2


def test_commas_within_a_text_are_no_values() -> None:
    text = r"\", [{" * MOST_VALUES
    written = json.dumps([text, 1])
    with cheap(megabytes=300):
        assert parse_json(written) == [text, 1]


def test_a_data_set_has_so_many_records_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bass.plain_json.MOST_LINES", 9)
    for lines, name in ((9, "ok.jsonl"), (10, "bad.jsonl")):
        (tmp_path / name).write_bytes(QUESTION * lines)
    assert len(read_problems("gsm8k", tmp_path / "ok.jsonl")) == 9
    with pytest.raises(RequestError, match="more than 9 lines"):
        read_problems("gsm8k", tmp_path / "bad.jsonl")


PROMPTS: dict[str, tuple[bytes, str]] = {
    "ids": (b'{"token_ids":[' + b"0," * MOST_VALUES + b"0]}\n", "the limit is 4,000,000"),
    "lines of a digit": (b"0\n" * 10**7, "line 1 is not a JSON object"),
    "empty lines": (b"\n" * 10**7, f"more than {MOST_LINES:,} lines"),
    "deep nesting": (b"[" * 10**5 + b"\n", "nested too deeply"),
}


@pytest.mark.parametrize("case", PROMPTS)
def test_prompts_of_tiny_values_are_refused_soon(tmp_path: Path, case: str) -> None:
    content, words = PROMPTS[case]
    (tmp_path / "p.jsonl").write_bytes(content)
    with cheap(), pytest.raises(OptionError, match=words):
        read_prompts(str(tmp_path / "p.jsonl"))


def test_a_line_break_within_a_prompt_is_no_end_of_a_line(tmp_path: Path) -> None:
    prompts = ["a\u2028b\x0c\x85c", "d"]
    lines = [json.dumps({"prompt": prompt}, ensure_ascii=False) + "\n" for prompt in prompts]
    (tmp_path / "p.jsonl").write_text("".join(lines), encoding="utf-8", newline="")
    assert [one.prompt for one in read_prompts(str(tmp_path / "p.jsonl"))] == prompts


def of_a_manifest(path: Path, content: bytes) -> None:
    (path / "manifest.json").write_bytes(content)
    assert RunFolder(path).manifest is None


def of_texts(path: Path, content: bytes) -> None:
    (path / TEXTS).write_bytes(content)
    read_texts(path)


def of_steps(path: Path, content: bytes) -> None:
    (path / "steps.jsonl").write_bytes(content)
    read_lines(path / "steps.jsonl", StepLine.from_json)


def of_an_evaluation(path: Path, content: bytes) -> None:
    (path / "manifest.json").write_bytes(content)
    read_evaluation(path)


def of_samples(path: Path, content: bytes) -> None:
    with opened(path, {}, {}) as folder:
        (path / "batched").mkdir(exist_ok=True)
        (path / "batched" / "samples.jsonl").write_bytes(content)
        folder.samples("batched")


@pytest.mark.parametrize("read", [of_a_manifest, of_texts, of_steps, of_an_evaluation, of_samples])
def test_a_folder_s_file_of_tiny_values_is_refused_soon(
    tmp_path: Path, read: Callable[[Path, bytes], None]
) -> None:
    for content in (LISTS + b"\n", b"\n" * 10**7, b"[" * 10**5 + b"\n"):
        with cheap(), pytest.raises(BassError):
            read(tmp_path, content)
