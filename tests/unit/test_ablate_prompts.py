"""Cells with conversations and categories: later turns continue the answers, lines say what they
are of, and prompts that do not fit are left out in the open.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bass
from bass.cli.ablate import run as run_ablate
from bass.cli.parsing import Parser
from bass.experiments.prompting import Prompter
from bass.runs.run_folder import RunFolder
from bass.runs.settings import Settings
from bass.text.dialogue import plain_text
from unit.checkpoints import Pair, Said, byte_tokenizer, write_checkpoint

Command = Callable[..., Said]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}<assistant>"
ENTRIES: list[dict[str, Any]] = [
    {"turns": ["def f(", "for item"], "category": "a"},
    {"prompt": "def double(", "category": "b"},
    {"messages": [{"role": "system", "content": "Be."}, {"role": "user", "content": "print"}]},
]
BASE = {"batch": 2, "max_new_tokens": 5, "repeats": 2, "temperature": 0.8, "warm_up": False}
METHODS = {"plain": {"policy": "fixed", "policy.k": 0}, "fixed": {"policy": "fixed", "policy.k": 2}}


def made(folder: Path, template: str = "") -> Pair:
    """A pair with room for conversations."""
    tokenizer = byte_tokenizer()
    vocabulary = tokenizer.get_vocab_size()
    target = write_checkpoint(folder / "target", tokenizer, 32, 2, vocabulary, 256)
    draft = write_checkpoint(folder / "draft", tokenizer, 16, 1, vocabulary, 256)
    if template:
        (target / "chat_template.jinja").write_text(template, encoding="utf-8")
    return Pair(target, draft)


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return made(tmp_path_factory.mktemp("talking"))


@pytest.fixture(scope="module")
def talked(talking: Pair, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that nothing happened to."""

    def command(_: str, *arguments: str) -> Said:
        return Said(run_ablate(Parser("ablate", "text"), [*arguments]), "", "")

    return ran(command, talking, tmp_path_factory.mktemp("talked"))


def ran(command: Command, pair: Pair, folder: Path, *options: str, **base: Any) -> RunFolder:
    """A run of both methods, with these settings."""
    lines = "".join(f"{json.dumps(entry)}\n" for entry in ENTRIES)
    (folder / "p.jsonl").write_text(lines, encoding="utf-8")
    config = {"base": BASE | {"prompts": str(folder / "p.jsonl")} | base, "axes": {"m": METHODS}}
    (folder / "talk.yaml").write_text(json.dumps(config), encoding="utf-8")
    models = ("--target", str(pair.target), "--draft", str(pair.draft))
    out = str(folder / "out")
    said = command("ablate", str(folder / "talk.yaml"), "--output", out, *models, *options)
    assert said.status == 0, said.err
    return RunFolder(folder / "out")


def tokens_of(run: RunFolder, cell: str) -> list[Any]:
    return [(line.repeat, line.request, line.tokens) for line in run.lines(cell).requests]


def check_turns(run: RunFolder, pair: Pair) -> None:
    """The second turn of the speculative cell is what `generate` continues the first one with."""
    cell = run.cells[1].id
    lines = run.lines(cell).requests
    kinds = [(line.repeat % 4, line.prompt, line.turn, line.category) for line in lines]
    once = [(0, 0, 0, "a"), (1, 0, 1, "a"), (2, 1, 0, "b"), (3, 2, 0, "")]
    assert kinds[:8] == [kind for kind in once for _ in range(2)]
    llm = bass.load(pair.target, pair.draft, num_speculative_tokens=2, max_batch_size=2)
    for seed in {line.seed for line in lines}:
        first, second = ([li for li in lines if li.repeat == 4 * seed + i] for i in (0, 1))
        talks = [
            [
                {"role": "user", "content": "def f("},
                {"role": "assistant", "content": (line.text or "").strip()},
                {"role": "user", "content": "for item"},
            ]
            for line in first
        ]
        chat = llm.models.tokenizer is not None and llm.models.tokenizer.chat.templates
        prompts = [llm.apply_chat_template(t) if chat else plain_text(t) for t in talks]
        result = llm.generate(prompts, max_new_tokens=5, temperature=0.8, top_p=0.95, seed=seed)
        assert [line.tokens for line in second] == [one.token_ids for one in result.completions]


def test_a_second_turn_continues_the_answers_of_the_first(talked: RunFolder, talking: Pair) -> None:
    check_turns(talked, talking)
    assert plain_text([{"role": "user", "content": "a "}]) == "User: a\nAssistant:"
    assert "are plain text with `User:`" in " ".join(talked.manifest.remarks or [])
    summary = talked.summary(talked.cells[1].id)
    assert summary is not None
    assert (len(summary.repeats), len(summary.prompts)) == (2, 3)  # a conversation is one value


def test_a_chat_template_writes_the_conversation_where_there_is_one(
    bass_command: Command, tmp_path: Path
) -> None:
    pair = made(tmp_path, TEMPLATE)
    run = ran(bass_command, pair, tmp_path, repeats=1)
    check_turns(run, pair)
    assert run.manifest.remarks is None


def test_an_interrupted_conversation_continues_with_the_recorded_answer(
    talked: RunFolder, talking: Pair, bass_command: Command, tmp_path: Path
) -> None:
    shutil.copytree(talked.path, tmp_path / "out")
    run, cell = RunFolder(tmp_path / "out"), talked.cells[1].id
    path = run.cell_folder(cell) / run.REQUESTS
    # the first turn, and its end
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    (run.cell_folder(cell) / run.SUMMARY).unlink()
    again = ran(bass_command, talking, tmp_path, prompts=str(talked.path.parent / "p.jsonl"))
    assert tokens_of(again, cell) == tokens_of(talked, cell)


def test_all_conversations_of_a_call_take_their_turns_together(
    talking: Pair, bass_command: Command, tmp_path: Path
) -> None:
    run = ran(bass_command, talking, tmp_path, samples=2, temperature=0.0, repeats=1)
    plain, cell = (cell.id for cell in run.cells)
    lines = [line for line in run.lines(cell).requests if line.seed == 0]
    assert [(line.repeat, line.prompt, line.turn) for line in lines] == [
        (0, 0, 0), (0, 0, 0), (0, 1, 0), (0, 1, 0), (0, 2, 0), (0, 2, 0), (1, 0, 1), (1, 0, 1),
    ]  # fmt: skip
    assert tokens_of(run, cell) == tokens_of(run, plain)
    summary = run.summary(cell)
    assert summary is not None
    assert summary.metrics["exact_match_rate"] == 1


def test_prompts_that_do_not_fit_are_an_error_or_left_out_in_the_open(
    talking: Pair, bass_command: Command, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"max_new_tokens": 110, "repeats": 1, "ignore_eos": False}
    with pytest.raises(AssertionError, match=r"Prompt 0 has .*1 of 3 prompts do not fit: `skip_lo"):
        ran(bass_command, talking, tmp_path, **options)  # room for one answer of the first, not two
    run = ran(bass_command, talking, tmp_path, **options, skip_long=True)
    for cell in run.cells:
        assert [line.prompt for line in run.lines(cell.id).requests] == [0, 0, 1, 1]
    [remark] = [one for one in run.manifest.remarks or [] if "left out" in one]
    assert "1 of 3 prompts are left out (1 of a), since with 110 new tokens they do not" in remark
    said = bass_command("table", str(run.path))
    assert remark in said.out


def test_settings_choose_prompts_by_category_and_number(
    talked: RunFolder, bass_command: Command
) -> None:
    config = str(talked.path.parent / "talk.yaml")

    def dry_run(*options: str) -> Said:
        return bass_command("ablate", config, "--dry-run", "--max_new_tokens", "2", *options)

    for options, calls in (
        (["--categories", "b"], 2),
        (["--categories", "[b, a]"], 6),
        (["--num_prompts_per_category", "1"], 8),
        (["--num_prompts", "1"], 4),
    ):
        said = dry_run(*options, "--axes.m", "{fixed: {policy: fixed}}")
        assert re.search(rf"0000-fixed +fixed +{calls} +{2 * calls}\n", said.out), said
        assert "all run" not in said.out
    assert "`num_prompts` is 99, and there are 3: all run." in dry_run("--num_prompts", "99").out
    for given, words in (("[c]", "Unknown category `c`"), ("[]", "`categories` is empty")):
        said = dry_run("--categories", given)
        assert (said.status, said.out) == (2, "")
        assert words in said.err


def test_prompts_of_a_config_have_every_form_of_a_file(
    talking: Pair, bass_command: Command, tmp_path: Path
) -> None:
    """In YAML, as a user writes it."""
    (tmp_path / "forms.yaml").write_text(
        """name: forms
base:
  batch: 2
  max_new_tokens: 4
  repeats: 1
  warm_up: false
  prompts:
    - a text
    - [1, 2, 3]
    - {prompt: def f(, category: code}
    - {turns: [One., Two.], category: talk}
    - messages: [{role: system, content: Be.}, {role: user, content: Go.}]
axes:
  policy.k: [0, 2]
""".replace("  batch: 2\n", "  batch: 2\n  policy: fixed\n"),
        encoding="utf-8",
    )
    models = ("--target", str(talking.target), "--draft", str(talking.draft))
    out = tmp_path / "out"
    said = bass_command("ablate", str(tmp_path / "forms.yaml"), "--output", str(out), *models)
    assert said.status == 0, said.err
    lines = RunFolder(out).lines(RunFolder(out).cells[0].id).requests
    assert [(line.prompt, line.turn, line.category) for line in lines[::2]] == [
        (0, 0, ""), (1, 0, ""), (2, 0, "code"), (3, 0, "talk"), (3, 1, "talk"), (4, 0, ""),
    ]  # fmt: skip
    (tmp_path / "wrong.yaml").write_text(
        "name: wrong\nbase:\n  prompts:\n    - {turns: []}\n", encoding="utf-8"
    )
    said = bass_command("ablate", str(tmp_path / "wrong.yaml"), *models)
    assert (said.status, "its `turns` are empty" in said.err) == (2, True)


def test_a_folder_of_sets_that_no_cell_reads_is_an_error(
    talked: RunFolder, bass_command: Command
) -> None:
    config = str(talked.path.parent / "talk.yaml")
    said = bass_command("ablate", config, "--data", "somewhere", "--dry-run")
    assert (said.status, said.out) == (2, "")
    assert "is used by no cell: leave it out, or give the name of a published set" in said.err
    said = bass_command("ablate", config, "--prompts", "mt-bench", "--data", "somewhere")
    assert "`somewhere` does not exist: name the folder" in said.err.replace(f"{Path.cwd()}/", "")


def test_a_warm_up_is_as_long_as_later_turns_can_be(talking: Pair) -> None:
    llm = bass.load(talking.target, talking.draft, max_batch_size=2)
    settings = Settings(prompts=[*ENTRIES[:1]], batch=2, repeats=1)
    prompter = Prompter(llm, settings.calls)
    first, second = settings.calls
    assert prompter.longest(first, 8) == prompter.of(first)
    prompter.took(first, ["a" * 8, "b"])
    assert llm.models.tokenizer is not None
    sizes = [len(llm.models.tokenizer.encode(str(text))) for text in prompter.of(second)]
    longest = prompter.longest(second, 8)
    assert all(size <= len(most) for size, most in zip(sizes, longest, strict=True))
    assert len(prompter.longest(second, 200)[0]) == 56  # with 200 new tokens, the context
