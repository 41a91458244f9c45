"""The entry point, and the parser that the commands share."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bass.api.options import LoadOptions, RequestOptions, TemplateOptions
from bass.api.resolve import make
from bass.cli import COMMANDS
from bass.cli.options import Parser, build
from bass.errors import BassError, OptionError, ProblemsError
from bass.option import help_of, option
from bass.policies import Auto, BatchAdaptive, Fixed, Lagged
from unit.checkpoints import Said

Command = Callable[..., Said]


@dataclass(frozen=True)
class Own:
    """Options of a command."""

    prompt: list[str] | None = option(None, "texts; more words")
    file: str | None = option(None, "a file")
    batches: list[int] | None = option(None, "numbers of rows")
    json: bool = option(False, "print JSON")


@pytest.fixture
def command() -> Parser:
    made = Parser("try", "Tries.", ["a", "b", "c"], Own, RequestOptions, LoadOptions)
    made.alternatives = ("prompt", "file")
    return made


@pytest.fixture
def config(tmp_path: Path) -> Callable[[str], list[str]]:
    """`--config` with a file of this text."""

    def write(text: str, name: str = "run.yaml") -> list[str]:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return ["--config", str(tmp_path / name)]

    return write


Written = Callable[..., list[str]]


# The entry point


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_fits_a_screen_and_begins_with_examples(
    name: str, bass_command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        bass_command(name, "--help")
    lines = capsys.readouterr().out.splitlines()
    assert ended.value.code in (0, None)
    assert len(lines) <= 61
    assert max(map(len, lines)) <= 100
    at = lines.index("examples:")
    assert at < 10
    assert [line.startswith("  bass ") for line in lines[at + 1 : at + 5]] == [True] * 3 + [False]


def test_the_help_has_every_option(
    bass_command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert all(f"\n  {name}" in bass_command("--help").out for name in COMMANDS)
    with pytest.raises(SystemExit):
        bass_command("generate", "--help")
    shown = capsys.readouterr().out
    for options in (LoadOptions, RequestOptions, TemplateOptions):
        assert all(f"--{name.replace('_', '-')}" in shown for name in help_of(options))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["frob"], "Unknown command `frob`"),
        (["generat"], "Did you mean `generate`"),
        (["--seed", "3"], "Unknown command `--seed`"),
        (["convert"], "required: folder"),
        (["info", "--jsno"], "Unknown option `--jsno`. Did you mean `--json`"),
        (["generate", "--prompt", "x"], "give `bass generate VALUE` without it"),
    ],
)
def test_a_wrong_command_is_one_sentence(
    bass_command: Command, words: list[str], text: str
) -> None:
    said = bass_command(*words)
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith("bass: ")
    assert said.err.count("\n") == 1
    assert text in said.err


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (OptionError("One\nsentence."), 2, "bass: One sentence.\n"),
        (ProblemsError("Two:", ["a", "b"]), 2, "bass: Two:\n  a\n  b\n"),
        (OptionError('Give `draft="x"`.'), 2, "bass: Give `--draft x`.\n"),
        (OptionError("\x1b[2J"), 2, "bass: \\x1b[2J\n"),
        (KeyboardInterrupt(), 130, "bass: Interrupted.\n"),
        (MemoryError("full"), 2, "bass: Out of memory (full): lower"),
        (RuntimeError("CUDA out of memory"), 2, "bass: Out of memory (CUDA out of memory)"),
    ],
)
def test_how_a_command_ends(
    bass_command: Command, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int,
    text: str,
) -> None:  # fmt: skip
    def fails(argv: list[str]) -> int:
        raise error

    monkeypatch.setitem(sys.modules, "bass.cli.report", SimpleNamespace(run=fails))  # pyright: ignore[reportArgumentType]
    said = bass_command("report")
    assert (said.status, said.out) == (status, "")
    assert said.err.startswith(text)


# The parser


def test_without_words_there_are_the_defaults(command: Parser) -> None:
    read = command.read([])
    assert build(RequestOptions, read) == RequestOptions()
    assert build(LoadOptions, read) == LoadOptions()
    assert build(Own, read) == Own()
    assert build(Own, read, file="x") == Own(file="x")


def test_lists_flags_and_escapes(command: Parser) -> None:
    words = ["--batches", "1", "8", "--stop", r"\ndef\t\\n", "--stop", "b", "--json"]
    read = command.read([*words, "--stop-token-ids", "[1, 2]", "--target", "null"])
    assert (read.batches, read.stop, read.json) == ([1, 8], ["\ndef\t\\n", "b"], True)
    assert (read.stop_token_ids, read.target) == ([1, 2], None)


POLICIES: dict[str, tuple[list[str], Any]] = {
    "a name": (["--policy", "fixed", "--policy.k", "3"], Fixed(3)),
    "an import path": (["--policy", "bass.policies:Fixed", "--policy.k", "3"], Fixed(3)),
    "a parameter of the default": (["--policy.max_length", "3"], Auto(max_length=3)),
    "YAML": (["--policy", "{class_path: fixed, init_args: {k: 3}}"], Fixed(3)),
    "over YAML": (["--policy.k=5", "--policy={class_path: fixed, init_args: {k: 3}}"], Fixed(5)),
    "a wrapper": (["--policy", "lagged"], Lagged(BatchAdaptive())),
    "a wrapper of a name": (
        ["--policy=lagged", "--policy.policy=fixed", "--policy.policy.k=3", "--policy.steps=2"],
        Lagged(Fixed(3), 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", POLICIES)
def test_strategies_with_their_parameters(command: Parser, case: str) -> None:
    words, expected = POLICIES[case]
    assert make("policy", command.read(words).policy) == expected


def test_a_file_has_the_same_names_and_the_command_line_overrides_it(
    command: Parser, config: Written
) -> None:
    text = """
target: /x
prompt: [def f(, "-for"]
max-new-tokens: 7
temperature: 1e-1
top_p: 0.9
stop: ["q\\n"]
ignore_eos: true
time_budget: null
batches: [1, 2]
policy: {class_path: lagged, init_args: {policy: fixed, steps: 2}}
policy.policy.k: 3
"""
    read = command.read(config(text))
    assert (read.max_new_tokens, read.temperature, read.top_p) == (7, 0.1, 0.9)
    assert (read.prompt, read.stop, read.batches) == (["def f(", "-for"], ["q\n"], [1, 2])
    assert (read.ignore_eos, read.target, read.time_budget) == (True, "/x", None)
    assert make("policy", read.policy) == Lagged(Fixed(3), 2)
    read = command.read([*config(text), "--top-p", "0.5", "--stop", "b", "--policy.steps", "1"])
    assert (read.top_p, read.stop, read.max_new_tokens) == (0.5, ["b"], 7)
    assert make("policy", read.policy) == Lagged(Fixed(3), 1)
    assert command.read([*config(text), "--policy", "fixed"]).policy == "fixed"
    read = command.read([*config(text), "--file", "x"])  # another source of prompts
    assert (read.prompt, read.file) == (None, "x")


WRONG: dict[str, tuple[list[str], str]] = {
    "an unknown option": (["--temprature", "1"], "Did you mean `--temperature`"),
    "the name of another library": (["--max-tokens", "8"], "give `--max-new-tokens` (most new"),
    "the symbol of the papers": (["-k", "3"], "`-k`: give `--num-speculative-tokens` (short"),
    "it with two hyphens": (["--k=3"], "`--k`: give `--num-speculative-tokens` (short"),
    "an option of llama.cpp": (["--temp", "1"], "`--temp`: give `--temperature` (0 is greedy)"),
    "a letter": (["-b", "2"], "`-b`: give `--max-batch-size` (rows that decode together; more"),
    "an unknown letter": (["-x"], "Unknown option `-x`. `bass"),
    "a wrong type": (["--top-p", "hot"], "`--top-p hot` is of the wrong type: expected float"),
    "an unknown policy": (["--policy", "fixd"], "Unknown policy `fixd`. Did you mean `fixed`"),
    "a wrong type inside": (
        ["--policy=lagged", "--policy.policy=fixed", "--policy.policy.k=x"],
        "`policy.policy.k='x'` is of the wrong type: expected int",
    ),
    "a parameter of another policy": (
        ["--policy.k", "4"],
        "`k` is a parameter of `fixed`: name the policy, as with `policy: fixed`, or `--policy",
    ),
    "a parameter of nothing": (["--stop-rule.threshold=1"], "is a parameter without a strategy"),
    "a parameter of none": (["--trim=none", "--trim.prior=1"], "is a parameter without a strategy"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_read_is_a_sentence(command: Parser, case: str) -> None:
    words, text = WRONG[case]
    with pytest.raises(BassError) as error:
        make("policy", command.read(words).policy)
    assert text in str(error.value)
