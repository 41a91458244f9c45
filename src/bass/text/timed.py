"""Calls with a time limit, into libraries that may not return."""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

Value = TypeVar("Value")
POLL_SECONDS = 0.05


def within(seconds: float, call: Callable[[], Value]) -> Value:
    """The result of a call that gives up Python's lock while it computes. Raises `TimeoutError`
    where it takes longer.

    The call then goes on in the background, and ends with the process. Both the clock and the
    processor time of this process must have passed: on a machine that is busy with other things
    nothing is late.
    """
    done: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            done.append((call(), None))
        except BaseException as error:  # a panic of Rust's is no `Exception`
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
