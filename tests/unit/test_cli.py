"""The commands in working order. Bad input is in test_bad_input.py, terminals in
test_cli_terminal.py.
"""

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bass
from bass.api.options import LoadOptions, RequestOptions, help_of
from bass.cli import COMMANDS, MODULES
from bass.cli.options import unescape
from bass.cli.parsing import underscored
from support.matrix import night
from unit.checkpoints import Pair, Said

Command = Callable[..., Said]
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
POLICY_FILE = '''
from dataclasses import dataclass

import numpy as np

from bass.interfaces import DraftLengthPolicy


@dataclass(frozen=True)
class Half(DraftLengthPolicy[int]):
    """Half of `top` tokens."""

    top: int = 4
    max_length: int = 8

    def init(self, batch_size):
        return batch_size

    def lengths(self, state):
        return np.full(state, self.top // 2)

    def update(self, state, feedback):
        return state
'''


def test_a_prompt_gives_one_completion_as_plain_text(bass_command: Command, pair: Pair) -> None:
    said = bass_command("generate", *pair.options, "def f(")
    assert said.status == 0
    expected = (
        bass.load(pair.target, pair.draft).generate("def f(", max_new_tokens=8).completions[0].text
    )
    assert said.out == f"{expected}\n"


def test_away_from_a_terminal_there_are_no_control_codes(bass_command: Command, pair: Pair) -> None:
    said = bass_command("generate", *pair.options, "def f(", "-n", "3", "--compare-plain")
    # the model's own text may hold anything
    ours = re.sub(r"(?s)===\n.*?(?=\n=== |$)", "===", said.out)
    assert not CONTROL.search(ours)
    assert not CONTROL.search(said.err)
    assert said.out.count("=== prompt 0, sample ") == 3
    for word in (
        "tau",
        "acceptance by position",
        "tokens/s",
        "first",
        "last",
        "all",
        "MBU",
        "lossless",
        "ratio",
    ):
        assert word in said.err


def test_json_gives_one_line_per_completion_and_one_of_figures(
    bass_command: Command, pair: Pair
) -> None:
    said = bass_command(
        "generate", *pair.options, "def f(", "for", "-n", "2", "--json", "--seed", "5"
    )
    *completions, stats = said.lines
    assert [(c["type"], c["prompt_index"], c["sample_index"]) for c in completions] == [
        ("completion", p, s) for p in range(2) for s in range(2)
    ]
    result = bass.load(pair.target, pair.draft).generate(
        ["def f(", "for"], num_return_sequences=2, max_new_tokens=8, seed=5
    )
    assert [c["token_ids"] for c in completions] == [c.token_ids for c in result.completions]
    assert set(completions[0]) >= {"text", "logprobs", "mean_logprob", "finish_reason", "seconds"}
    assert stats["type"] == "stats"
    assert set(stats) >= {
        "tau",
        "acceptance_by_position",
        "tokens_per_second",
        "first",
        "last",
        "all",
        "mbu",
        "lossless",
        "steps",
    }
    assert said.err == ""


def test_compare_plain_runs_the_same_request_without_drafts(
    bass_command: Command, pair: Pair
) -> None:
    *completions, stats = bass_command(
        "generate", *pair.options, "def f(", "--json", "--compare-plain", "--temperature", "0"
    ).lines
    assert len(completions) == 1
    assert stats["plain"]["drafted"] == 0
    assert stats["plain"]["tau"] == 1
    assert stats["plain"]["acceptance_rate"] is None
    assert stats["plain"]["acceptance_by_position"] == []
    assert stats["drafted"] > 0
    assert len(stats["speedups"]) == 3
    assert stats["speedup"] == sorted(stats["speedups"])[1]
    assert isinstance(stats["warnings"], list)


def test_the_prompt_may_come_from_a_file_or_from_token_ids(
    bass_command: Command, pair: Pair, tmp_path: Path
) -> None:
    (tmp_path / "prompt.txt").write_text("def f(", encoding="utf-8")
    by_file = bass_command("generate", *pair.options, "--file", str(tmp_path / "prompt.txt"))
    assert by_file.out == bass_command("generate", *pair.options, "def f(").out
    ids = bass.load(pair.target, pair.draft).models.tokenizer.encode("def f(")  # pyright: ignore[reportOptionalMemberAccess]
    assert (
        bass_command("generate", *pair.options, "--token_ids", json.dumps(ids)).out == by_file.out
    )


def test_the_example_ends_with_its_class(
    bass_command: Command, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    stream = bass.LLM.stream

    @functools.wraps(stream)
    def listening(*arguments: Any, **options: Any) -> Any:
        asked.append(options["stop"])
        return stream(*arguments, **options)

    monkeypatch.setattr(bass.LLM, "stream", listening)
    monkeypatch.setattr("bass.cli.prompts.EXAMPLE", "def f(")
    assert bass_command("generate", *pair.options, "--example").status == 0
    assert bass_command("generate", *pair.options, "--example", "--stop", "x").status == 0
    assert "\ndef " in asked[0]  # pyright: ignore[reportOperatorIssue]
    assert asked[1] == ["x"]


def test_the_figures_say_what_they_belong_to(bass_command: Command, pair: Pair) -> None:
    said = bass_command(
        "generate", *pair.options, "def f(",
        "--policy", "fixed", "--cache", "split", "--device", "cpu",
    )  # fmt: skip
    caption = " ".join(said.err.splitlines())
    for word in (
        "Fixed(k=4)",
        "ModelDraft",
        "SplitCache",
        "PerRow",
        "Rejection,",
        "cpu",
        "float32",
    ):
        assert word in caption


def test_without_a_tokenizer_token_ids_go_in_and_come_out(
    bass_command: Command, silent_pair: Pair
) -> None:
    said = bass_command("generate", *silent_pair.options, "--token_ids", "[1,2,3]", "--ignore_eos")
    assert len([int(word) for word in said.out.split()]) == 8


def test_the_options_of_a_request_reach_it(bass_command: Command, pair: Pair) -> None:
    options = [
        "--top-k",
        "5",
        "--top-p",
        "0.9",
        "--min-p",
        "0.01",
        "--repetition-penalty",
        "1.3",
        "--temperature",
        "1.5",
        "--seed",
        "3",
    ]
    said = bass_command(
        "generate",
        *pair.options,
        "def f(",
        *options,
        "--stop",
        r"\n",
        "--stop",
        "e",
        "--ignore-eos",
        "--json",
    )
    wanted = {
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.3,
        "temperature": 1.5,
        "seed": 3,
    }
    result = bass.load(pair.target, pair.draft).generate(
        "def f(", max_new_tokens=8, stop=["\n", "e"], ignore_eos=True, **wanted
    )
    assert said.lines[0]["token_ids"] == result.completions[0].token_ids


def test_every_option_has_a_help_text(
    bass_command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        bass_command("generate", "--help")
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for option, text in (help_of(LoadOptions) | help_of(RequestOptions)).items():
        assert f"--{option.replace('_', '-')} " in shown
        assert " ".join(text.split())[:20] in shown


@pytest.mark.nightly
def test_a_policy_in_a_file_of_the_working_directory(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(POLICY_FILE, encoding="utf-8")
    said = shell(
        "generate",
        *pair.options,
        "def f(",
        "--json",
        "--policy",
        "mine:Half",
        "--policy.top",
        "6",
        cwd=tmp_path,
    )
    assert said.status == 0, said.err
    assert len(said.lines[-1]["acceptance_by_position"]) == 3


@pytest.mark.nightly
def test_standard_input_is_the_prompt(pair: Pair) -> None:
    said = shell("generate", *pair.options, "--json", stdin="def f(")
    assert (
        said.lines[0]["token_ids"]
        == bass.load(pair.target, pair.draft)
        .generate("def f(", max_new_tokens=8)
        .completions[0]
        .token_ids
    )


@pytest.mark.nightly
def test_a_reader_that_leaves_early_is_no_error(pair: Pair) -> None:
    command = [
        sys.executable,
        "-m",
        "bass",
        "generate",
        *pair.options,
        "def f(",
        "-n",
        "300",
        "--json",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=one_thread()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 0


FAILING = """
from bass.policies import Fixed
class Late(Fixed):
    def update(self, state, feedback):
        raise {}
"""


@pytest.mark.parametrize("error", [BrokenPipeError, night(FileNotFoundError)])
def test_an_own_class_that_cannot_read_or_write_ends_with_its_traceback(
    error: type, pair: Pair, tmp_path: Path
) -> None:
    (tmp_path / "late.py").write_text(FAILING.format(f"{error.__name__}('worker')"))
    said = shell("generate", *pair.options, "--policy", "late:Late", "def f(", cwd=tmp_path)
    assert (said.status, said.out) == (1, "")
    assert said.err.splitlines()[-1] == f"{error.__name__}: worker"


@pytest.mark.nightly
def test_an_own_error_is_printed_without_a_standard_output_too(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(FAILING.format("BrokenPipeError('worker')"))
    command = [sys.executable, "-m", "bass", "generate", *pair.options]
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *command, "--policy", "late:Late", "def f("]
    done = subprocess.run(
        closed, cwd=tmp_path, env=one_thread(), capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "BrokenPipeError: worker"


def test_info_describes_a_checkpoint_and_its_draft(bass_command: Command, pair: Pair) -> None:
    said = bass_command("info", str(pair.target), "--draft", str(pair.draft))
    assert said.status == 0
    model = bass.load(pair.target, pair.draft).models.target
    for figure in (
        f"{sum(p.numel() for p in model.parameters()):,}",
        "llama",
        "layers              2",
        "context             64 tokens",
        "float32",
    ):
        assert figure in said.out
    assert f"{(pair.target / 'model.safetensors').stat().st_size:,}" in said.out
    # 2 (k and v) * 2 layers * 1 head * 16 dimensions * 4 bytes
    assert "KV bytes per token  256" in said.out
    assert f"`{pair.draft}` can draft for `{pair.target}`." in said.out


def test_help_and_version_come_without_torch() -> None:
    for arguments in (["--help"], ["--version"], ["frob"]):
        code = (
            f"import sys, bass.cli; bass.cli.main({arguments!r}); assert 'torch' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("given", "kept"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_threads_do_not_spin_for_long_unless_asked_to(
    bass_command: Command, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], kept: str | None
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, given.get(name, ""))
        if name not in given:
            monkeypatch.delenv(name)
    bass_command("list")
    assert os.environ.get("GOMP_SPINCOUNT") == kept


def test_help_names_every_command(bass_command: Command) -> None:
    assert set(COMMANDS) == set(MODULES)
    assert all(f"\n  {command}" in bass_command("--help").out for command in COMMANDS)
    assert bass_command().status == 2


def test_option_names_may_have_dashes_and_their_values_stay_as_they_are() -> None:
    assert underscored(["--max-new-tokens=a-b", "x-y", "--top-p", "-1", "--", "--a-b"]) == [
        "--max_new_tokens=a-b", "x-y", "--top_p", "-1", "--", "--a-b",
    ]  # fmt: skip


def test_escapes_of_a_stop_string() -> None:
    assert unescape(r"\ndef\t\\n") == "\ndef\t\\n"


def one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def shell(*arguments: str, stdin: str = "", cwd: Path | None = None) -> Said:
    """`bass ARGUMENTS` in a process of its own."""
    command = [sys.executable, "-m", "bass", *arguments]
    done = subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        cwd=cwd,
        env=one_thread(),
        timeout=120,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)
