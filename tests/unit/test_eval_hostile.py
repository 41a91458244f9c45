"""Files of problems, and folders of evaluations, that somebody made to do harm: one sentence each,
soon.
"""

import contextlib
import gzip
import json
import os
import socket
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from bass.analysis import evaluated as evaluated_module
from bass.analysis.evaluated import _requested, read_evaluation
from bass.errors import BassError, OptionError, RequestError
from bass.evaluation import record_code
from bass.evaluation.evaluate import Evaluation
from bass.evaluation.tasks import read_problems
from bass.prompts import files as sources
from bass.report.evaluation import page
from bass.runs.evaluation_folder import opened
from support.evaluation_folders import change_manifest, write_evaluation

HUMANEVAL = {
    "task_id": "H/0",
    "prompt": "def f(x):\n",
    "entry_point": "f",
    "canonical_solution": "",
    "test": "def check(candidate): pass",
}
MBPP = {
    "task_id": 1,
    "text": "Write f.",
    "code": "def f(x): return x",
    "test_list": ["assert f(1) == 1"],
}
DEEP = {
    "minus": "-" * 10_000 + "f",
    "not": "not " * 10_000 + "f",
    "lists": "[" * 150 + "f" + "]" * 150,
    "calls": "f" + "()" * 20_000,
    "attributes": "f" + ".a" * 20_000,
    "sums": "f" + "+1" * 20_000,
    "powers": "f" + "**f" * 20_000,
    "lambdas": "lambda: " * 10_000 + "f",
    "conditions": "f if f else " * 10_000 + "f",
    "blocks": "\n".join(" " * i + "if f:" for i in range(99)) + "\n" + " " * 99 + "f",
    "else": "if f: f\n" + "elif f: f\n" * 10_000,
    "null": "f\0",
    "surrogate": "'\ud800', f",
    "escape": "'\\d', f is 1",
    "literal": "1" * 10_000 + ", f",
    "long": "f;" * 2**20,
}


def written(path: Path, record: Any) -> Path:
    path.write_text(json.dumps(record) + "\n")
    return path


@pytest.mark.parametrize("code", DEEP.values(), ids=DEEP)
@pytest.mark.parametrize("place", ["code", "import", "test_list", "test_setup_code"])
def test_code_of_a_record_is_read_or_refused_in_one_sentence(
    code: str, place: str, tmp_path: Path
) -> None:
    if place == "import":  # of what the tests use: it is written out again
        place, code = "code", f"import math\n{code}\nimport f\ndef f(x): return x"
    record = MBPP | {
        place: [code]
        if place == "test_list"
        else f"{code}\ndef f(x): return x"
        if place == "code"
        else code
    }
    began = time.process_time()
    try:
        said = read_problems("mbpp", written(tmp_path / "bad.jsonl", record))[0].names[0]
    except RequestError as error:
        said = str(error)
    assert said == "f" or ("bad.jsonl" in said and len(said.splitlines()) == 1 and len(said) < 600)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("task", "changes", "words"),
    [
        ("mbpp", {"test_list": [" " * 10**7 + "assert f(1) == 1"]}, "characters of code"),
        ("mbpp", {"code": " " * 10**7 + "\ndef f(x): return x"}, "characters of code"),
        ("mbpp", {"test_imports": [" " * 10**7 + "import f"]}, "characters of code"),
        ("mbpp", {"code": "f = f'" + "{1}" * 80_000 + "'"}, "characters of code"),
        ("mbpp", {"code": "f = f'" + "{1}" * 2_500 + "'"}, "characters of code to parse, and"),
        ("humaneval", {"prompt": "f'" + "{1}" * 80_000 + "'\n"}, "characters of code"),
        ("humaneval", {"prompt": "f'" + "{1}" * 2_500 + "'\n"}, "characters of code to parse, and"),
        ("summaries", {"summary": "word " * 2**20}, "characters, and 65,536 are the most"),
    ],
)
def test_a_record_that_takes_long_to_parse_or_to_score_is_refused_soon(
    task: str,
    changes: dict[str, Any],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_code, "MOST_CODE", 2 * record_code.LONGEST_CODE)
    good = {"mbpp": MBPP, "humaneval": HUMANEVAL, "summaries": {"document": "d"}}[task]
    records = [good | changes | {"task_id": str(i)} for i in range(4)]
    (tmp_path / "bad.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    began = time.process_time()
    with pytest.raises(RequestError, match=words) as caught:
        read_problems(task, tmp_path / "bad.jsonl")
    assert time.process_time() - began < 2
    assert len(str(caught.value).splitlines()) == 1


NAMES = [f"{a}{b}" for a in "abcdefghj" for b in "qwtuvxyzklmpbc"]
# each record near the limit of one, and parsed as often as a record can be
SLOW = {
    "an f-string in an open bracket": (
        "humaneval",
        {"prompt": f"f'{'{1}' * 2_600}';(\\\n", "canonical_solution": ");f = 1\n"},
    ),
    "names and scopes": (
        "mbpp",
        {"code": f"import f\n{','.join(NAMES * 10)}\n{'lambda:f,' * 440}\nf=1"},
    ),
}


@pytest.mark.parametrize(("task", "changes"), SLOW.values(), ids=SLOW)
def test_many_records_that_take_the_parser_long_are_refused_soon(
    task: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    record = (MBPP if task == "mbpp" else HUMANEVAL) | changes
    (tmp_path / "bad.jsonl").write_text(
        "".join(json.dumps(record | {"task_id": str(i)}) + "\n" for i in range(200))
    )
    began = time.process_time()
    with pytest.raises(RequestError, match="characters of code to parse, and"):
        read_problems(task, tmp_path / "bad.jsonl")
    assert time.process_time() - began < 2


@pytest.mark.parametrize("task", ["humaneval", "mbpp", "gsm8k", "summaries"])
def test_a_record_of_whatever_depth_is_no_problem_of_any_task(task: str, tmp_path: Path) -> None:
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    every = (
        "task_id",
        "prompt",
        "entry_point",
        "test",
        "canonical_solution",
        "text",
        "code",
        "question",
        "answer",
        "document",
    )
    record = dict.fromkeys((*every, "summary", "turns", "reference", "id", "test_list"), deep)
    for names in (every, ("task_id",), ("id",)):
        bad = {**MBPP, "document": "a", "summary": "b", **{name: record[name] for name in names}}
        with contextlib.suppress(RequestError):
            read_problems(task, written(tmp_path / "bad.jsonl", bad))
    (tmp_path / "bad.jsonl").write_text("[" * 100_000)
    with pytest.raises(RequestError, match="not JSON"):
        read_problems(task, tmp_path / "bad.jsonl")


def compressed(size: int) -> bytes:
    """Gzip of so many zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = bytes(2**20)
    return b"".join(packer.compress(block) for _ in range(size // 2**20)) + packer.flush()


def test_a_file_that_unpacks_to_more_than_the_limit_is_refused_soon(tmp_path: Path) -> None:
    # members after each other, 6 GB in all
    (tmp_path / "bomb.jsonl.gz").write_bytes(compressed(2**26) * 90)
    began = time.process_time()
    with pytest.raises(
        RequestError, match=r"bomb\.jsonl\.gz.*larger than the limit of 128 MiB"
    ) as caught:
        read_problems("gsm8k", tmp_path / "bomb.jsonl.gz")
    assert len(str(caught.value).splitlines()) == 1
    assert time.process_time() - began < 2


@pytest.mark.parametrize("name", ["big.jsonl", "big.json", "big.jsonl.gz", "big.parquet"])
def test_a_file_larger_than_the_limit_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "LARGEST", 1000)
    (tmp_path / name).write_bytes(os.urandom(2000))
    with pytest.raises(RequestError, match=r"larger than the limit of 1000 bytes|pyarrow"):
        read_problems("gsm8k", tmp_path / name)


def test_a_file_up_to_the_limit_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = (json.dumps({"question": "How many?", "answer": "#### 1"}) + "\n").encode() * 9
    monkeypatch.setattr(sources, "LARGEST", len(data))
    (tmp_path / "a.jsonl").write_bytes(data)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(data))
    assert read_problems("gsm8k", tmp_path / "a.jsonl") == read_problems(
        "gsm8k", tmp_path / "a.jsonl.gz"
    )


@pytest.fixture(params=["a named pipe", "a socket", "a folder", "a device"])
def strange(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Makes a path what is no regular file."""

    def make(path: Path) -> str:
        path.unlink(missing_ok=True)
        if request.param == "a named pipe":
            os.mkfifo(path)
        elif request.param == "a socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(path))
        elif request.param == "a folder":
            path.mkdir()
        else:
            path.symlink_to("/dev/zero")
        return request.param

    return make


@pytest.mark.parametrize("name", ["data.jsonl", "data.json", "data.jsonl.gz", "data.parquet"])
def test_a_data_file_that_is_no_regular_file_is_refused_at_once(
    name: str, strange: Any, tmp_path: Path
) -> None:
    kind = strange(tmp_path / name)
    with pytest.raises(RequestError, match=f"it is {kind}, not a regular file|pyarrow"):
        read_problems("gsm8k", tmp_path / name)


@pytest.mark.parametrize(
    "name",
    ["manifest.json", "batched/samples.jsonl", "batched/scores.jsonl", "summary.json", "lock"],
)
def test_a_folder_of_an_evaluation_whose_files_are_none_is_refused_at_once(
    name: str, strange: Any, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with opened(out, {"task": "gsm8k"}, {}) as folder:
        folder.finish({})
    (out / "batched").mkdir()
    for lines in ("samples", "scores"):
        (out / "batched" / f"{lines}.jsonl").write_text("")
    strange(out / name)

    def read() -> None:
        with opened(out, {"task": "gsm8k"}, {}) as folder:
            folder.samples("batched")
            folder.scores("batched")
        _requested(out)

    if name == "lock":  # of whichever kind: it is only locked
        with contextlib.suppress(BassError):
            read()
    else:
        with pytest.raises(BassError, match=Path(name).name.partition(".")[0]):
            read()


STRANGE: list[Any] = [
    None,
    [],
    {},
    5,
    -1,
    1e308,
    float("nan"),
    float("inf"),
    10**400,
    "x",
    True,
    [[]],
    {"x": []},
]


def test_a_report_of_a_folder_with_values_of_any_kind_is_a_page_or_one_sentence(
    tmp_path: Path,
) -> None:
    path = write_evaluation(
        tmp_path / "out", ("batched",), problems=2, samples=2, budgets=(1.0,), ks=(1,)
    )
    manifest, summary = (
        json.loads((path / name).read_text()) for name in ("manifest.json", "summary.json")
    )
    config, batched = manifest["config"], summary["methods"]["batched"]
    damaged = [(manifest | {name: value}, summary) for name in manifest for value in STRANGE]
    damaged += [
        (manifest | {"config": config | {name: value}}, summary)
        for name in config
        for value in STRANGE
    ]
    for place in ({"pass@k": {"x": 1}}, *({name: value} for name in batched for value in STRANGE)):
        damaged.append((manifest, {"methods": {"batched": batched | place}}))
    damaged += [
        (manifest, {"methods": {"batched": batched | {"curve": [{"budget": value}]}}})
        for value in STRANGE
    ]
    for about, said in damaged:
        change_manifest(path, about)
        (path / "summary.json").write_text(json.dumps(said))
        with contextlib.suppress(BassError):
            read_evaluation(path)
    shown = ("bass", "created", "device", "torch", "python", "platform", "lossless")
    for value in (None, [[10**400]]):
        about = (
            manifest
            | dict.fromkeys(shown, value)
            | {
                "config": config
                | {"target": value, "draft": value, "options": {"temperature": value}}
            }
        )
        change_manifest(path, about)
        (path / "summary.json").write_text(json.dumps(summary))
        with contextlib.suppress(BassError):
            page(read_evaluation(path))


def test_budgets_and_ks_of_a_folder_are_a_hundred_each_at_most(tmp_path: Path) -> None:
    path = write_evaluation(tmp_path / "out", ("batched",), problems=2, samples=2)
    curve = [{"budget": i + 1.0} for i in range(100_000)]
    ks = dict.fromkeys(map(str, range(1, 100_000)), 0.5)
    for said in ({"curve": curve, "pass@k": {}}, {"curve": [], "pass@k": ks}):
        (path / "summary.json").write_text(json.dumps({"methods": {"batched": said}}))
        began = time.process_time()
        with pytest.raises(RequestError, match=r"more than 100 .*: delete it"):
            read_evaluation(path)
        assert time.process_time() - began < 2
    with pytest.raises(OptionError, match="more than 100 budgets"):
        Evaluation("gsm8k", [], {"num_return_sequences": 1}, budgets=[1.0 + i for i in range(101)])


def test_a_report_of_many_problems_and_budgets_is_made_soon_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets = [0.03 * (i + 1) for i in range(100)]
    methods = ("batched", "plain")
    path = write_evaluation(tmp_path / "out", methods, problems=400, samples=1, budgets=budgets)
    evaluated = read_evaluation(path)
    began = time.process_time()
    page(evaluated)
    assert time.process_time() - began < 10
    monkeypatch.setattr(evaluated_module, "MOST_FIGURES", 400 * 2 * 140 - 1)
    with pytest.raises(RequestError) as caught:
        read_evaluation(path)
    assert str(caught.value) == (
        "The evaluation out has 400 problems, 2 methods and 100 budgets, more than a report "
        "supports: give `bass eval` fewer budgets or problems."
    )
