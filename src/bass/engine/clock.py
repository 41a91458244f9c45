"""Timing of a run: each second is counted once."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

from bass.engine.requests import RunRecord


@final
@dataclass
class Clock:
    """Divides the time of a run into captures, steps, and the host's work between steps.

        | prefill |  policy, lengths  | capture |   step on the device   | report |  policy ...
                  ^ idle                        ^ started                ^ idle

    idle: when the device became idle. `trace.capture_seconds` counts the captures; no other time
    includes them.
    """

    trace: RunRecord

    def __post_init__(self) -> None:
        self.began = self.idle = time.perf_counter()

    @property
    def now(self) -> float:
        """Seconds since the run began, without captures."""
        return time.perf_counter() - self.began - self.trace.capture_seconds

    def time(self) -> float:
        """The current time on the clock of `idle`, in seconds."""
        return time.perf_counter()

    def device_is_idle(self) -> None:
        """Record that a prefill or a step has ended."""
        self.idle = time.perf_counter()

    def since_idle(self) -> float:
        """Seconds for which the device has been idle."""
        return time.perf_counter() - self.idle

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Count the enclosed time as a capture."""
        before = time.perf_counter()
        yield
        self.trace.capture_seconds += time.perf_counter() - before

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Exclude the enclosed time, which the consumer of the run takes, from the idle time."""
        before = time.perf_counter()
        try:
            yield
        finally:
            self.idle += time.perf_counter() - before
