"""What the commands show on a terminal, and what Ctrl-C leaves."""

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import ClassVar

import pytest

from bass.api.results import StreamEvent
from bass.cli.display import Rows
from bass.policies import Fixed
from bass.records import Feedback
from unit.checkpoints import Pair, Said
from unit.test_cli import one_thread

Command = Callable[..., Said]


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
    policy = ["--policy", "unit.test_cli_terminal:Interrupting", "--ignore_eos"]
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
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bass.cli.generate.serve", interrupted)
    said = bass_command("generate", *pair.options, "def f(")
    assert (said.status, said.out) == (130, "")
    assert said.err == "bass: Interrupted before anything was generated.\n"


AGAIN = """
import os, signal, sys, threading
from bass import cli

def interrupted(argv):
    threading.Thread(target=again).start()
    raise KeyboardInterrupt

def again():
    threading.main_thread().join()  # Python exits, and waits for this thread
    os.kill(os.getpid(), signal.SIGINT)

cli._dispatch = interrupted
sys.exit(cli.main())
"""


def test_ctrl_c_while_python_exits_ends_it_without_a_word() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AGAIN], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in (130, -signal.SIGINT)
    assert done.stderr == "bass: Interrupted before anything was generated.\n"


@pytest.mark.nightly
@pytest.mark.parametrize("wrong", [False, True])
def test_a_standard_error_that_cannot_be_written_is_status_2_and_loses_no_output(
    pair: Pair, wrong: bool
) -> None:
    command = [sys.executable, "-m", "bass", "generate", *pair.options, "def f("]
    options = ["--temperature", "-1"] if wrong else []
    env = one_thread()
    with open("/dev/full", "w") as full:
        done, quiet = (
            subprocess.run([*command, *options], stdout=-1, stderr=to, env=env, check=False)
            for to in (full, subprocess.DEVNULL)
        )
    assert (done.returncode, done.stdout) == (2, quiet.stdout)
    assert bool(quiet.stdout) is not wrong


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
