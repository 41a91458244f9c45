"""Ctrl-C is interruptible, also where Python drops it."""

import contextlib
import io
import signal
from threading import Thread

import pytest

from bass.api.results import StreamEvent
from bass.cli.display import Rows, show_live
from bass.cli.terminal import console
from bass.interrupt import interruptible


class Deaf:
    """Interrupted in its end, where an exception goes nowhere."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interruption_that_got_lost_is_found_at_the_next_check() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as check:
        check()
        deaf = Deaf()
        del deaf  # and nothing is raised
        with pytest.raises(KeyboardInterrupt):
            check()
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interruption_is_raised_where_it_comes() -> None:
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(signal.SIGINT)


def test_a_signal_that_ends_the_process_does_so_after_all_is_tidied_up() -> None:
    came: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: came.append("ended"))
    try:
        with contextlib.suppress(KeyboardInterrupt), interruptible(signal.SIGTERM):
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                came.append("tidied up")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert came == ["tidied up", "ended"]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_an_ignored_signal_stays_ignored(number: signal.Signals) -> None:
    """As `nohup` and a shell's background jobs have it."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with interruptible(signal.SIGHUP) as check:
            signal.raise_signal(number)
            check()
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_elsewhere_than_in_the_main_thread_there_is_nothing_to_heed() -> None:
    told: list[str] = []

    def work() -> None:
        with interruptible() as check:
            check()
            told.append("done")

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert told == ["done"]


class Interrupting(io.StringIO):
    """A terminal that interrupts the process while it takes the given piece."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.pieces = at, 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.pieces += 1
        if self.pieces == self.at:
            signal.raise_signal(signal.SIGINT)
        return super().write(text)


def test_an_interruption_at_any_moment_ends_a_display_and_shows_the_cursor(
    unchecked: None,
) -> None:
    for at in range(1, 100):
        terminal = Interrupting(at)
        screen = console(file=terminal, force_terminal=True, width=80, height=20)
        event = StreamEvent(0, 0, "text", [1], [0.0], None)
        with contextlib.suppress(KeyboardInterrupt):
            show_live([event], Rows.of(["p"], 1, 8, "title"), screen)  # pyright: ignore[reportArgumentType]
        before, undisturbed, terminal.at = terminal.getvalue(), terminal.pieces < at, 0
        screen.print("after")
        assert before.count("\x1b[?25l") == before.count("\x1b[?25h"), at
        assert terminal.getvalue() == f"{before}after\n"  # nothing is drawn around it
        if undisturbed:
            break
    assert at > 3
