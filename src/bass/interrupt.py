"""Ctrl-C that is never lost and always restores the display."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def interruptible(*also: signal.Signals) -> Iterator[Callable[[], None]]:
    """Defers an interruption: the yielded function raises a pending KeyboardInterrupt; call it
    regularly.

    The signals `also` raise it too, and take effect at the end, after the clean-up within. Ignored
    signals, such as a hangup under `nohup`, stay ignored.

    Python silently drops an interruption that occurs in a finalizer or a callback.
    """
    if threading.current_thread() is not threading.main_thread():  # receives no signals
        yield lambda: None
        return
    requested: list[int] = []

    def take(number: int, _frame: FrameType | None) -> None:
        requested.append(number)
        raise KeyboardInterrupt

    def check() -> None:
        if requested:
            raise KeyboardInterrupt

    before = {
        number: signal.signal(number, take)
        for number in (signal.SIGINT, *also)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if ending := {*requested} & {*also}:
            signal.raise_signal(min(ending))


@contextlib.contextmanager
def displayed(display: AbstractContextManager[T]) -> Iterator[T]:
    """Show a display within it, and always remove it: interruptions wait while rich hides or shows
    the cursor.
    """
    stack = contextlib.ExitStack()
    try:
        with _postponed():
            entered = stack.enter_context(display)
        yield entered
    finally:
        with _postponed():
            stack.close()


@contextlib.contextmanager
def _postponed() -> Iterator[None]:
    """Delay an interruption to the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)
