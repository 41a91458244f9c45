"""Calls with a time limit, into libraries that may not return."""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

Value = TypeVar("Value")
POLL_SECONDS = 0.05


def within(seconds: float, call: Callable[[], Value]) -> Value:
    """The result of a call that releases Python's lock while it computes. Raises `TimeoutError` if
    it takes longer.

    The call then continues in the background until the process ends. Both wall time and processor
    time of this process must exceed the limit, so that a busy machine causes no timeout.
    """
    done: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            done.append((call(), None))
        except BaseException as error:  # a Rust panic is no `Exception`
            done.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    clock, processor = time.monotonic() + seconds, time.process_time() + seconds
    thread.start()
    while not done:
        thread.join(POLL_SECONDS)
        if not done and time.monotonic() > clock and time.process_time() > processor:
            raise TimeoutError(f"it takes more than {seconds:.1f} seconds")
    value, error = done[0]
    if error is not None:
        raise error
    return value
