"""Prompts: published forms are read alike, selections keep the order, turns have the answers."""

import gzip
import itertools
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bass.errors import OptionError, RequestError
from bass.experiments.prompts import (
    DATA,
    PLACEHOLDER,
    SETS,
    SLACK,
    Entry,
    longest_prompts,
    numbers,
    plain_turns,
    read_prompts,
    rendered,
)
from bass.text import Tokenizer
from unit.checkpoints import Pair

HERE = os.environ.get(DATA)
REAL = pytest.mark.skipif(HERE is None, reason=f"{DATA} names no folder of published files")
TURNS = {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}
MBPP = {"task_id": 2, "text": "Add.", "code": "def f(): pass", "test_list": ["assert\r\n f()"]}
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
# of each form: a record, what the model reads first, and the number of turns
FORMS: dict[str, tuple[Any, str | tuple[int, ...], int]] = {
    "HumanEval": ({"task_id": "H/0", "prompt": "def f(", "test": "pass"}, "def f(", 1),
    "MBPP": (MBPP, '"""\nAdd.\nassert\n f()\n"""\n', 1),
    "sanitized MBPP": (
        {"prompt": "Add.", "code": "pass", "test_list": []}, '"""\nAdd.\n"""\n', 1,
    ),
    "GSM8K": ({"question": "Two?", "answer": "#### 2"}, "Question: Two?\nAnswer:", 1),
    "CNN/DM": ({"article": " A. ", "highlights": "B."}, "Document: A.\nSummary:", 1),
    "MT-bench": (TURNS, "Write.", 2),
    "one turn": ({"turns": "One?", "category": "math"}, "One?", 1),
    "messages": (
        {"messages": [{"role": "system", "content": "Be."}, {"role": "user", "content": "Go."}]},
        "Go.", 1,
    ),
    "token ids": ({"token_ids": [1, 2]}, (1, 2), 1),
    "text": ({"text": "A", "prompt": None}, "A", 1),
}  # fmt: skip


def wrote(path: Path, *records: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(map(json.dumps, records)) + "\n\n"
    if ".jsonl" not in path.name.lower():
        text = json.dumps(records)
    data = text.encode("utf-8-sig")
    path.write_bytes(gzip.compress(data) if path.suffix.lower() == ".gz" else data)
    return str(path)


def first(entry: Entry) -> Any:
    return entry.prompt if entry.prompt is not None else entry.conversation(0, [])[-1]["content"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json", "A.JSON.GZ"])
def test_every_published_form_is_read_alike(tmp_path: Path, form: str, name: str) -> None:
    record, prompt, turns = FORMS[form]
    [entry] = read_prompts(wrote(tmp_path / name, record))
    assert (first(entry), entry.turns) == (prompt, turns)
    assert entry.category == record.get("category", "")
    assert read_prompts([record]) == [entry]


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_found_by_each_of_its_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i, file in enumerate(SETS[name].files):
        if not file.endswith(".parquet"):
            wrote(tmp_path / str(i) / file, TURNS)
            [entry] = read_prompts(name, tmp_path / str(i))
            assert entry.category == SETS[name].groups.get("writing", "writing")
            monkeypatch.setenv(DATA, str(tmp_path / str(i)))
            assert read_prompts(name) == [entry]
    with pytest.raises(
        OptionError, match=rf"does not hold them: download .* as `{SETS[name].files[0]}`"
    ):
        read_prompts(name, tmp_path)
    monkeypatch.delenv(DATA)
    with pytest.raises(
        OptionError, match=rf"no folder is named: .* give `--data FOLDER`, or set {DATA}"
    ):
        read_prompts(name)


WRONG: dict[str, Any] = {
    "no form": {"x": 1},
    "conversations": {"conversations": [{"from": "human", "value": "x"}]},
    "an empty prompt": {"prompt": ""},
    "nothing to answer": {
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    },
    "a placeholder": {"turns": [f"{PLACEHOLDER} USING SPECDEC_BENCH"]},
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_prompt_is_named_with_its_record(tmp_path: Path, case: str) -> None:
    with pytest.raises(OptionError, match=r"record 2: .*") as raised:
        read_prompts(wrote(tmp_path / "a.jsonl", {"prompt": "good"}, WRONG[case]))
    assert "\n" not in str(raised.value)
    assert ("write `conversations` as `messages`" in str(raised.value)) == (case == "conversations")


ENTRIES = st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc")), min_size=1, max_size=12)


@given(ENTRIES, st.sets(st.sampled_from("abc")) | st.none(), st.none() | st.integers(1, 5))
def test_a_selection_is_what_a_reader_would_tick(
    drawn: list[tuple[int, str]], chosen: set[str] | None, most: int | None
) -> None:
    """Also: numbers are equal for equal prompts."""
    entries = [Entry(f"{i}", category=name) for i, name in drawn]
    named = None if chosen is None else sorted(chosen & {name for _, name in drawn})
    expected = [entry for entry in entries if named is None or entry.category in named]
    assert read_prompts(entries, None, named, most) == expected[:most]
    texts = [entry.prompt for entry in entries]
    own = numbers(entries)
    assert [texts[own.index(number)] for number in own] == texts
    assert {*own} == {*range(len({*texts}))}


@given(st.lists(st.sampled_from(["user", "assistant", "system"]), max_size=6))
def test_a_turn_is_a_user_message_without_an_answer(roles: list[str]) -> None:
    messages = [(role, f"m{i}") for i, role in enumerate([*roles, "user"])]
    entry = Entry(None, tuple(messages), "c")
    answers = [f"answer {i}" for i in range(entry.turns)]
    last = entry.conversation(entry.turns - 1, answers)
    added = [one for one in last if one["content"].startswith("answer")]
    assert [one["content"] for one in added] == answers[:-1]
    assert [one for one in last if one not in added] == [
        {"role": role, "content": content} for role, content in messages
    ]
    for one, then in itertools.pairwise(last):
        assert (one["role"], then["role"]) != ("user", "user")
    for turn in range(entry.turns):
        assert entry.conversation(turn, answers)[-1]["role"] == "user"


def test_a_conversation_is_rendered_by_its_template_or_as_plain_text(
    pair: Pair, tmp_path: Path
) -> None:
    entries = read_prompts(["def f(", [1, 2], TURNS])
    plain = Tokenizer.read(pair.target)
    made = [rendered(plain, entry) for entry in entries]
    assert made == ["def f(", [1, 2], "User: Write.\nAssistant:"]
    assert plain_turns(entries, plain)
    assert not plain_turns(entries[:2], plain)
    text = "User: Write.\nAssistant: Done.\nUser: Again.\nAssistant:"
    assert rendered(plain, entries[2], 1, ["Done."]) == text

    folder = pair.copy(tmp_path).target
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    chat = Tokenizer.read(folder)
    assert chat is not None
    expected = chat.encode("<user>Write.<assistant>", add_special_tokens=False)
    assert rendered(chat, entries[2]) == expected
    assert not plain_turns(entries, chat)
    whole = "<user>Write.<assistant><user>Again.<assistant>"  # with an empty answer
    found = longest_prompts(chat, 400, entries, 10)
    assert found[1:] == [2, len(chat.encode(whole, add_special_tokens=False)) + 10 + SLACK]
    with pytest.raises(RequestError, match="integers from 0 to 1"):
        longest_prompts(chat, 2, entries[1:2], 10)
    with pytest.raises(RequestError, match="has no tokenizer"):
        rendered(None, entries[2])


COUNTS = {
    "spec-bench": dict.fromkeys(
        ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag"), 80
    ),
    "mt-bench": dict.fromkeys(
        ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"),
        10,
    ),
    "humaneval": {"": 164},
    "mbpp": {"": 974},
    "mbpp-sanitized": {"": 427},
    "gsm8k": {"": 1319},
    "cnn-dm": {"summarization": 80},
}


@REAL
@pytest.mark.parametrize("name", COUNTS)
def test_the_published_files_have_their_prompts_and_categories(name: str) -> None:
    entries = read_prompts(name, HERE)
    assert Counter(entry.category for entry in entries) == COUNTS[name]
    two = {"spec-bench": 80, "mt-bench": 80}.get(name, 0)
    assert Counter(entry.turns for entry in entries)[2] == two
