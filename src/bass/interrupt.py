"""Ctrl-C that cannot get lost, and leaves no display behind."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def heeded(*also: signal.Signals) -> Iterator[Callable[[], None]]:
    """Defers an interruption: the yielded function raises a pending KeyboardInterrupt; call it
    regularly.

    The signals `also` raise it too, and take effect at the end, after the clean-up within.

    Python drops an interruption that falls into an object's end or a callback, and the process goes
    on as if nothing had been said.
    """
    if threading.current_thread() is not threading.main_thread():  # where no signal comes
        yield lambda: None
        return
    requested: list[int] = []

    def take(number: int, _frame: FrameType | None) -> None:
        requested.append(number)
        raise KeyboardInterrupt

    def check() -> None:
        if requested:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, take) for number in (signal.SIGINT, *also)}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if ending := {*requested} & {*also}:
            signal.raise_signal(min(ending))


@contextlib.contextmanager
def displayed(display: AbstractContextManager[T]) -> Iterator[T]:
    """Within it a display is shown, which is undone however it ends: rich is not interrupted while
    it hides or shows the cursor.
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
    """Within it an interruption waits, and comes at the end."""
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
