"""Ctrl-C is heeded, also where Python drops it."""

import contextlib
import signal
from threading import Thread

import pytest

from bass.cli.interrupt import heeded


class Deaf:
    """Interrupted in its end, where an exception goes nowhere."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interruption_that_got_lost_is_found_at_the_next_check() -> None:
    before = signal.getsignal(signal.SIGINT)
    with heeded() as check:
        check()
        deaf = Deaf()
        del deaf  # and nothing is raised
        with pytest.raises(KeyboardInterrupt):
            check()
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interruption_is_raised_where_it_comes() -> None:
    with pytest.raises(KeyboardInterrupt), heeded():
        signal.raise_signal(signal.SIGINT)


def test_a_signal_that_ends_the_process_does_so_after_all_is_tidied_up() -> None:
    came: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: came.append("ended"))
    try:
        with contextlib.suppress(KeyboardInterrupt), heeded(signal.SIGTERM):
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                came.append("tidied up")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert came == ["tidied up", "ended"]


def test_elsewhere_than_in_the_main_thread_there_is_nothing_to_heed() -> None:
    told: list[str] = []

    def work() -> None:
        with heeded() as check:
            check()
            told.append("done")

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert told == ["done"]
