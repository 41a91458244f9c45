"""Ctrl-C that cannot get lost."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def heeded(*also: signal.Signals) -> Iterator[Callable[[], None]]:
    """Within it, what is yielded raises a KeyboardInterrupt if one was asked for before: call it
    now and then.

    The signals `also` raise it too, and have their effect at the end, when all within is tidied up.

    Python drops an interruption that falls into an object's end or a callback, and the process goes
    on as if nothing had been said.
    """
    if threading.current_thread() is not threading.main_thread():  # where no signal comes
        yield lambda: None
        return
    asked: list[int] = []

    def take(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        raise KeyboardInterrupt

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, take) for number in (signal.SIGINT, *also)}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if ending := {*asked} & {*also}:
            signal.raise_signal(min(ending))
