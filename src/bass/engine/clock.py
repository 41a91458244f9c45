"""One account of a run's time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

from bass.engine.requests import Trace


@final
@dataclass
class Clock:
    """Divides the time of a run among captures, steps, and what the host does between steps.

        | prefill |  policy, lengths  | capture |   step on the device   | report |  policy ...
                  ^ idle                        ^ started                ^ idle

    idle: since when the device has had nothing to do. Captures are in `trace.capture_seconds`, and
    in no other time.
    """

    trace: Trace

    def __post_init__(self) -> None:
        self.began = self.idle = time.perf_counter()

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.began - self.trace.capture_seconds

    def time(self) -> float:
        """As `idle` counts it."""
        return time.perf_counter()

    def device_is_idle(self) -> None:
        """A prefill or a step has ended."""
        self.idle = time.perf_counter()

    def since_idle(self) -> float:
        """Seconds for which the device has had nothing to do."""
        return time.perf_counter() - self.idle

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """What happens meanwhile is a capture."""
        before = time.perf_counter()
        yield
        self.trace.capture_seconds += time.perf_counter() - before

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """What happens meanwhile, while the device is idle, is a reader's."""
        before = time.perf_counter()
        try:
            yield
        finally:
            self.idle += time.perf_counter() - before
