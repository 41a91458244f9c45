"""`bass generate --prompts`: prompts of a set or a file, of which the first turn is answered."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import bass
from bass.text.dialogue import plain_text
from unit.checkpoints import Pair, Said

Command = Callable[..., Said]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "mt_bench").mkdir()
    records = [{"turns": ["def f(", "x"], "category": "a"}, {"prompt": "for", "category": "b"}]
    text = "".join(f"{json.dumps(record)}\n" for record in records)
    (tmp_path / "mt_bench/question.jsonl").write_text(text, encoding="utf-8")
    return tmp_path


def test_a_set_by_name_is_what_its_prompts_generate(
    bass_command: Command, pair: Pair, data: Path
) -> None:
    own = ("--prompts", "mt-bench", "--data", str(data), "--temperature", "0")
    said = bass_command("generate", *pair.options, *own, "--json")
    assert said.status == 0, said.err
    assert "NOTE: 1 of 2 prompts have several turns, of which only the first" in said.err
    assert "plain text with `User:`" in said.err
    lines = [json.loads(line) for line in said.out.splitlines()][:-1]
    prompts = [plain_text([{"role": "user", "content": "def f("}]), "for"]
    result = bass.load(pair.target, pair.draft).generate(prompts, temperature=0, max_new_tokens=8)
    assert [line["token_ids"] for line in lines] == [one.token_ids for one in result.completions]
    said = bass_command("generate", *pair.options, *own, "--categories", "b", "--json")
    assert [json.loads(line)["token_ids"] for line in said.out.splitlines()[:-1]] == [
        lines[1]["token_ids"]
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--data x y", "`--data` is for a set of prompts: give `--prompts`"),
        ("--prompts mt-bench y", "Prompts come from a prompt and `--prompts`"),
        ("--prompts mt-bnch", "Did you mean `mt-bench`"),
        ("--prompts mt-bench --data DATA --num_prompts 0", "`num_prompts=0` must be"),
        ("--prompts mt-bench --data DATA --categories c", "Unknown category `c`"),
        ("--prompts mt-bench --data DATA --chat --system S", "has conversations: leave it out"),
        ("--prompts mt-bench --data nowhere", "`nowhere` does not exist: name the folder with"),
        ("--prompts mt-bench --data DATA/mt_bench/question.jsonl", "is a file: name the folder"),
        ("--prompts DATA/mt_bench/question.jsonl --data x", "`data: x` is not used by"),
    ],
)
def test_bad_input_is_one_sentence(
    bass_command: Command, pair: Pair, data: Path, options: str, words: str
) -> None:
    given = options.replace("DATA", str(data)).split()
    said = bass_command("generate", *pair.options, *given)
    assert (said.status, said.out, said.err.count("\n")) == (2, "", 1)
    assert words in said.err


@pytest.mark.parametrize("terminal", [True, False])
def test_no_prompt_is_found_before_a_model_is_loaded(
    bass_command: Command, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    monkeypatch.setattr("sys.stdin.isatty", lambda: terminal)
    said = bass_command("generate", "--target", "nowhere")
    assert said.err.startswith("bass: There is no prompt: give one in quotes")
