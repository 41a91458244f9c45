"""Ctrl-C that cannot get lost."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def heeded() -> Iterator[Callable[[], None]]:
    """Within it, what is yielded raises a KeyboardInterrupt if one was asked for before: call it
    now and then.

    Python drops an interruption that falls into an object's end or a callback, and the process goes
    on as if nothing had been said.
    """
    if threading.current_thread() is not threading.main_thread():  # where no signal comes
        yield lambda: None
        return
    asked = threading.Event()

    def take(_number: int, _frame: FrameType | None) -> None:
        asked.set()
        raise KeyboardInterrupt

    def check() -> None:
        if asked.is_set():
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, take)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
