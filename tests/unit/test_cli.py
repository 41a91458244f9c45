"""The commands in working order. What happens with bad input is in test_bad_input.py."""

import functools
import json
import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

import bass
from bass.api.options import LoadOptions, RequestOptions, help_of
from bass.api.results import StreamEvent
from bass.cli import COMMANDS, MODULES
from bass.cli.display import Rows
from bass.cli.options import unescape
from bass.cli.parsing import underscored
from bass.policies import Fixed
from bass.records import Feedback
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
        "generate", *pair.options, "def f(", "--policy", "fixed", "--cache", "split"
    )
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
        assert f"--{option} " in shown
        assert " ".join(text.split())[:20] in shown


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


def test_standard_input_is_the_prompt(pair: Pair) -> None:
    said = shell("generate", *pair.options, "--json", stdin="def f(")
    assert (
        said.lines[0]["token_ids"]
        == bass.load(pair.target, pair.draft)
        .generate("def f(", max_new_tokens=8)
        .completions[0]
        .token_ids
    )


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


@pytest.mark.parametrize("error", [BrokenPipeError, FileNotFoundError])
def test_an_own_class_that_cannot_read_or_write_ends_with_its_traceback(
    error: type, pair: Pair, tmp_path: Path
) -> None:
    (tmp_path / "late.py").write_text(FAILING.format(f"{error.__name__}('worker')"))
    said = shell("generate", *pair.options, "--policy", "late:Late", "def f(", cwd=tmp_path)
    assert (said.status, said.out) == (1, "")
    assert said.err.splitlines()[-1] == f"{error.__name__}: worker"


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


def test_rows_fit_the_screen_whatever_their_number() -> None:
    from rich.console import Console

    for samples in (1, 3, 8, 500):
        rows = Rows.of(["prompt"], samples, 16, "title")
        for i in range(samples):
            rows.take(
                StreamEvent(
                    0,
                    i,
                    "x = 1\n" * 40 + "y" * 300,
                    [1] * 16,
                    [0.0] * 16,
                    "length" if i % 2 else None,
                )
            )
        for width, height in ((80, 24), (200, 50), (20, 8)):
            console = Console(width=width, height=height, force_terminal=True)
            lines = console.render_lines(rows.render(width, height), pad=False)
            assert len(lines) < height
            assert all(sum(segment.cell_length for segment in line) <= width for line in lines)


def test_samples_of_a_repeated_prompt_have_rows_of_their_own() -> None:
    rows = Rows.of(["a", "b", "a"], 2, 16, "title")
    for prompt, sample in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 2), (2, 3)):
        rows.take(StreamEvent(prompt, sample, f"{prompt}.{sample}", [1], [0.0], None))
    assert [row.text for row in rows.rows] == ["0.0", "0.1", "1.0", "1.1", "2.2", "2.3"]


def test_on_a_terminal_the_rows_grow_and_a_table_follows(pair: Pair) -> None:
    status, screen = on_a_terminal(
        "generate", *pair.options, "def f(", "-n", "2", "--compare-plain"
    )
    assert status == 0
    for word in (
        "speculative decoding",
        "autoregressive decoding, repeat 3 of 3",
        "finished",
        "prompt 0, sample 1",
        "tau",
        "ratio",
        "lossless",
    ):
        assert word in screen
    assert screen.index("finished") < screen.index("prompt 0, sample 1") < screen.index("tau")
    assert "\x1b[?25h" in screen[screen.rindex("\x1b[?25l") :]  # the cursor is shown again


class Interrupting(Fixed):
    """Like a Ctrl-C in the twentieth step."""

    def init(self, batch_size: int) -> int:
        self.steps.clear()
        return super().init(batch_size)

    def update(self, state: int, feedback: Feedback) -> int:
        self.steps.append(1)
        if len(self.steps) == 20:
            raise KeyboardInterrupt
        return state

    steps: ClassVar[list[int]] = []


def test_ctrl_c_prints_what_was_finished(bass_command: Command, pair: Pair) -> None:
    policy = ["--policy", "unit.test_cli:Interrupting", "--ignore_eos"]
    said = bass_command(
        "generate", *pair.options, *policy, "def f(", "-n", "200", "--json", "--compare-plain"
    )
    assert said.status == 130
    *completions, stats = said.lines
    ended = [c["finish_reason"] for c in completions]
    assert len(ended) == 200
    assert set(ended) == {"length", "interrupted"}
    assert all(len(c["token_ids"]) == 8 for c in completions if c["finish_reason"] == "length")
    assert stats["steps"] >= 19
    assert "plain" not in stats


def test_ctrl_c_before_anything_was_generated(
    bass_command: Command, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bass.cli.generate.load", interrupted)
    said = bass_command("generate", *pair.options, "def f(")
    assert (said.status, said.out) == (130, "")
    assert said.err == "bass: Interrupted before anything was generated.\n"


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


def on_a_terminal(*arguments: str) -> tuple[int, str]:
    """`bass ARGUMENTS` with a terminal of 80 by 24 as its output."""
    ours, theirs = pty.openpty()
    env = {**one_thread(), "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(
        [sys.executable, "-m", "bass", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=env,
    ) as process:
        os.close(theirs)
        read = bytearray()
        while select.select([ours], [], [], 60)[0]:
            try:
                read += os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
        os.close(ours)
        return process.wait(60), read.decode("utf-8", "replace")
