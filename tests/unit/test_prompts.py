"""Prompts by name and by path: every published form is read, and what cannot be is one sentence."""

import gzip
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bass.errors import OptionError
from bass.evaluation.tasks import read_problems
from bass.prompts import files
from bass.prompts.entries import PLACEHOLDER, Entry, Message, entry_of
from bass.prompts.published import DATA, SETS
from bass.prompts.reading import Selection, listed, read
from unit.test_package import ROOT

HERE = os.environ.get(DATA)
REAL = pytest.mark.skipif(HERE is None, reason=f"{DATA} names no folder of published files")
TURNS = {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}
MBPP = {"task_id": 2, "text": "Add.", "code": "def f(): pass", "test_list": ["assert\r\n f()"]}
# of each form: a record, what is prompted first, and how many turns it has
FORMS: dict[str, tuple[Any, str | tuple[int, ...], int]] = {
    "HumanEval": ({"task_id": "H/0", "prompt": "def f(", "test": "pass"}, "def f(", 1),
    "MBPP": (MBPP, '"""\nAdd.\nassert\n f()\n"""\n', 1),
    "sanitized MBPP": (
        {"prompt": "Add.", "code": "pass", "test_list": []}, '"""\nAdd.\n\n"""\n', 1,
    ),
    "GSM8K": ({"question": "Two?", "answer": "#### 2"}, "Question: Two?\nAnswer:", 1),
    "CNN/DM": ({"article": " A. ", "highlights": "B."}, "Document: A.\nSummary:", 1),
    "MT-bench": (TURNS, "Write.", 2),
    "SPEED-Bench": (
        {"question_id": "a", "category": "math", "sub_category": "x", "turns": ["One?"],
         "source": "s", "src_id": "1", "difficulty": "", "multiturn": False}, "One?", 1,
    ),
    "messages": (
        {"messages": [{"role": "system", "content": "Be."}, {"role": "user", "content": "Go."}]},
        "Go.", 1,
    ),
    "token ids": ({"token_ids": [1, 2]}, (1, 2), 1),
}  # fmt: skip


def wrote(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(record) + "\n" for record in records).encode()
    if ".jsonl" not in path.name.lower():
        lines = json.dumps(records).encode()
    path.write_bytes(gzip.compress(lines) if path.suffix.lower() == ".gz" else lines)
    return path


def first(entry: Entry) -> Any:
    return entry.prompt if entry.prompt is not None else entry.conversation(0, [])[-1]["content"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json", "A.JSON.GZ", "a.Jsonl"])
def test_every_published_form_is_read_alike_by_path(tmp_path: Path, form: str, name: str) -> None:
    record, prompt, turns = FORMS[form]
    [entry] = read(str(wrote(tmp_path / name, record)), None)
    assert (first(entry), entry.turns) == (prompt, turns)
    assert entry.category == record.get("category", "")
    assert listed([record]) == [entry]


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_found_in_a_folder_by_each_of_its_names(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i, file in enumerate(SETS[name].files):
        if not file.endswith(".parquet"):
            wrote(tmp_path / str(i) / file, TURNS)
            assert read(name, str(tmp_path / str(i)))[0].turns == 2
            monkeypatch.setenv(DATA, str(tmp_path / str(i)))
            assert read(name, None)[0].turns == 2
    monkeypatch.setenv(DATA, str(tmp_path))
    with pytest.raises(
        OptionError, match=rf"`{SETS[name].files[0]}`.*no such file: add it.*is pub"
    ):
        read(name, None)
    monkeypatch.delenv(DATA)
    with pytest.raises(OptionError, match=rf"{SETS[name].files[0]}.*give `--data FOLDER`, or set"):
        read(name, None)


def test_an_unknown_name_has_suggestions_and_the_list() -> None:
    with pytest.raises(OptionError, match=r"`spec-bnch`. Did you mean `spec-bench`.*mt-bench"):
        read("spec-bnch", None)


WRONG: dict[str, tuple[Any, str]] = {
    "no form": ({"x": 1}, "line 2: it has none of `prompt`"),
    "a number": (3, "line 2 is not a JSON object"),
    "an empty prompt": ({"prompt": ""}, "line 2: '' is no prompt"),
    "a truth value as token": ({"token_ids": [True]}, "is no prompt"),
    "turns of numbers": ({"turns": [1]}, "its `turns` are no list of texts"),
    "no turns": ({"turns": []}, "its `turns` are empty"),
    "no messages": ({"messages": []}, "its `messages` are empty"),
    "a strange role": ({"messages": [{"role": "tool", "content": "x"}]}, "role 'tool' is none of"),
    "more than a message": (
        {"messages": [{"role": "user", "content": "x", "tool_calls": []}]},
        "`role` and `content` alone",
    ),
    "nothing to answer": (
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
        "nothing to answer",
    ),
    "a category that is no text": ({"prompt": "x", "category": 3}, "its `category` is 3"),
    "a placeholder": ({"turns": [f"{PLACEHOLDER} USING SPECDEC_BENCH"]}, "prepare_data.py"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_prompt_is_one_sentence_with_its_line(tmp_path: Path, case: str) -> None:
    record, words = WRONG[case]
    with pytest.raises(OptionError, match=words) as raised:
        read(str(wrote(tmp_path / "a.jsonl", {"prompt": "good"}, record)), None)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["a.csv", "A.CSV", "a.tsv", "a.xlsx", "a.csv.gz", "a.txt.gz"])
def test_a_table_is_no_single_prompt(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("article,highlights\nA.,B.\n", encoding="utf-8")
    with pytest.raises(OptionError, match=r"is no file of prompts.*convert it to \.jsonl"):
        read(str(tmp_path / name), None)
    (tmp_path / "a.txt").write_text("A text, with a comma.", encoding="utf-8")
    assert [entry.prompt for entry in read(str(tmp_path / "a.txt"), None)] == [
        "A text, with a comma."
    ]


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LARGEST", 2**20)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b" " * (2**20 + 1)))
    with pytest.raises(OptionError, match="larger than the limit of 1 MiB"):
        read(str(tmp_path / "a.jsonl.gz"), None)
    (tmp_path / "b.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(OptionError, match="cannot be read"):
        read(str(tmp_path / "b.jsonl.gz"), None)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    for name, text in (
        ("a.jsonl", '{"prompt": "A"}\n'), ("a.json", '[{"prompt": "A"}]'), ("a.txt", "A")
    ):  # fmt: skip
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        assert [entry.prompt for entry in read(str(tmp_path / name), None)] == ["A"]


def test_a_file_with_a_fault_is_to_be_mended_and_one_that_is_missing_to_be_named(
    tmp_path: Path,
) -> None:
    file = wrote(tmp_path / "a.jsonl", {"prompt": "A"}, {"turns": []})
    with pytest.raises(OptionError, match=r"line 2.*: mend the file, or give another\.$"):
        read(str(file), None)
    with pytest.raises(OptionError, match=r"No such file.*: give a text file, a file of JSON"):
        read(str(tmp_path / "b.jsonl"), None)


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    for text in ("one", "another"):
        assert read(str(wrote(tmp_path / "a.jsonl", {"prompt": text})), None)[0].prompt == text


def test_each_user_message_without_an_answer_is_a_turn() -> None:
    given = [("system", "S"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("user", "d")]
    entry = Entry(None, tuple(Message(*one) for one in given))
    assert entry.turns == 2
    last = [(one["role"], one["content"]) for one in entry.conversation(1, ["answer"])]
    assert last == [*given[:4], ("assistant", "answer"), ("user", "d")]
    assert entry.first_turn().turns == 1
    assert entry.first_turn().conversation(0, []) == entry.conversation(0, [])


def test_a_selection_keeps_the_order_and_names_the_categories() -> None:
    entries = [entry_of({"prompt": str(i), "category": "abc"[i % 3]}) for i in range(9)]

    def chosen(*values: Any) -> str:
        return "".join(str(entry.prompt) for entry in Selection(*values).of(entries))

    assert chosen() == "012345678"
    assert chosen(("c", "a")) == "023568"
    assert chosen(None, 1) == "012"
    assert chosen(("a", "b"), 2) == "0134"
    assert chosen(("a", "b"), 2, 3) == "013"
    assert chosen(None, None, 2) == "01"
    with pytest.raises(OptionError, match=r"Unknown category `d`.*Known: a, b, c"):
        chosen(("d",))
    with pytest.raises(OptionError, match="`categories` is empty: name one or more"):
        chosen(())
    with pytest.raises(OptionError, match="have no categories: leave it out"):
        Selection(("a",)).of([entry_of("x")])


def test_the_page_has_every_set_with_its_files_and_its_licence() -> None:
    page = (ROOT / "docs/prompts.md").read_text(encoding="utf-8")
    for name, known in SETS.items():
        row = next(line for line in page.splitlines() if f"`{name}`" in line and "|" in line)
        if "throughput" not in known.files[0]:
            assert all(f"`{file}`" in row for file in known.files), name
            assert known.licence in row, name


# the published files

COUNTS = {
    "spec-bench": {
        "mt_bench": 80, "translation": 80, "summarization": 80, "qa": 80, "math_reasoning": 80,
        "rag": 80,
    },
    "mt-bench": dict.fromkeys(
        ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"),
        10,
    ),
    "humaneval": {"": 164},
    "mbpp": {"": 974},
    "mbpp-sanitized": {"": 427},
    "gsm8k": {"": 1319},
    "cnn-dm": {"summarization": 80},
}  # fmt: skip


@REAL
@pytest.mark.parametrize("name", COUNTS)
def test_the_published_files_have_their_prompts_and_categories(name: str) -> None:
    entries = read(name, HERE)
    assert Counter(entry.category for entry in entries) == COUNTS[name]
    two = {"spec-bench": 80, "mt-bench": 80}.get(name, 0)
    assert Counter(entry.turns for entry in entries)[2] == two


@REAL
@pytest.mark.parametrize("name", ["humaneval", "mbpp", "gsm8k"])
def test_an_ablation_has_the_prompts_of_the_evaluation(name: str) -> None:
    problems = read_problems(str(SETS[name].task), HERE)
    assert [problem.prompt for problem in problems] == [entry.prompt for entry in read(name, HERE)]
