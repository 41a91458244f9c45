"""Requests that arrive while others run: at given times, or from other threads."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from bass.api.generation import Sample
from bass.api.requests import Prompt
from bass.api.results import Completion, StreamEvent
from bass.engine.engines import EngineCache
from bass.engine.requests import Emission, Request, Source
from bass.engine.run import EngineRun
from bass.errors import RequestError, check_number


@dataclass(frozen=True)
class Arrival:
    """A prompt for `LLM.serve`.

    at: seconds after the start of the call, from 0, else an `OptionError`. options: of
    `LLM.generate`, in the place of those of the call, such as `{"max_new_tokens": 64}`.
    """

    prompt: Prompt
    at: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_number("Arrival.at", self.at, "[0, inf)", float)


def poisson(
    prompts: Sequence[Prompt], rate: float | None, seed: int, lengths: Sequence[int] = ()
) -> list[Arrival]:
    """Arrivals of prompts, with seeds of their own: all at once, or `rate` a second, at random.

    lengths: the least and the most new tokens of a request, if they are not those of the call.
    """
    random = np.random.default_rng(seed)
    gaps = random.exponential(1 / rate, len(prompts)) if rate else np.zeros(len(prompts))
    seeds = [{"seed": seed * len(prompts) + i} for i in range(len(prompts))]
    if lengths:
        drawn = random.integers(lengths[0], lengths[-1] + 1, len(prompts)).tolist()
        seeds = [own | {"max_new_tokens": new} for own, new in zip(seeds, drawn, strict=True)]
    return [*map(Arrival, prompts, np.cumsum(gaps).tolist(), seeds)]


@final
class Arrivals(Source):
    """The samples of arrivals, in the order of their times.

    read: makes the samples of an arrival with this index. `samples`: those that have arrived.
    """

    def __init__(
        self, arrivals: Iterator[Arrival], read: Callable[[Arrival, int], list[Sample]]
    ) -> None:
        self.samples: list[Sample] = []
        self._arrivals, self._read = enumerate(arrivals), read
        self._next = next(self._arrivals, None)

    def poll(self, now: float) -> list[Request]:
        new: list[Sample] = []
        while self._next is not None and self._next[1].at <= now:
            index, arrival = self._next
            new += self._read(arrival, index)
            self._next = next(self._arrivals, None)
            if self._next is not None and self._next[1].at < arrival.at:
                raise RequestError(
                    f"Request {index + 1} arrives at {self._next[1].at} s, before request {index} "
                    f"at {arrival.at} s: give them in the order of their times."
                )
        self.samples += new
        return [one.request for one in new]

    def wait(self, now: float) -> bool:
        if self._next is None:
            return False
        time.sleep(max(0.0, self._next[1].at - now))
        return True


@dataclass
class Submitted:
    """A request of `LLM.submit`. on_event: receives its tokens, in the engine's thread."""

    sample: Sample
    on_event: Callable[[StreamEvent], object] | None
    at: float  # of `time.perf_counter`
    future: Future[Completion] = field(default_factory=Future)
    index: int = -1  # in its run

    def fail(self, error: Exception) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def send(self, event: StreamEvent) -> bool:
        """Give an event to `on_event`; False if it raises, which ends this request alone."""
        try:
            if self.on_event is not None:
                self.on_event(event)
        except Exception as error:
            self.fail(error)
            return False
        return True

    def end_cancelled(self) -> None:
        """Send the last event, after the future was cancelled, and tell who waits for it."""
        self.sample.reason = "cancelled"
        if self.send(self.sample.event(self.sample.rest(), [], [])):
            self.future.set_running_or_notify_cancel()


@final
class Inbox(Source):
    """The requests of `LLM.submit`. A thread runs them; it begins with the first and ends when none
    is left, so that it keeps nothing alive.
    """

    def __init__(self, engines: EngineCache) -> None:
        self._engines, self._lock, self._running = engines, threading.Lock(), False
        self._new: deque[Submitted] = deque()
        self._cancelled: deque[Submitted] = deque()

    def add(self, one: Submitted) -> None:
        one.future.add_done_callback(lambda f: f.cancelled() and self._cancelled.append(one))
        with self._lock:
            self._new.append(one)
            if not self._running:
                self._running = True
                threading.Thread(target=self._work, name="bass.LLM.submit").start()

    def poll(self, now: float) -> list[Request]:
        while self._cancelled:
            one = self._cancelled.popleft()
            if self._live.get(one.index) is one:
                self._release(one)
                one.end_cancelled()
        requests: list[Request] = []
        while self._new:
            one = self._new.popleft()
            if one.future.cancelled():
                one.end_cancelled()
                continue
            one.index, one.sample.since = self._count, now - (time.perf_counter() - one.at)
            self._live[one.index] = one
            self._count += 1
            requests.append(one.sample.request)
        return requests

    def wait(self, now: float) -> bool:
        return bool(self._new)

    def _work(self) -> None:
        """Run requests until none is left."""
        while True:
            self._live: dict[int, Submitted] = {}
            self._count = 0
            try:
                self._run = self._engines.run([], None, self)
                for emission in self._run:
                    self._take(self._run, emission)
            except Exception as error:  # whoever waits learns of it
                with self._lock:
                    failed = [*self._live.values(), *self._new]
                    self._new.clear()
                for one in failed:
                    one.fail(error)
            with self._lock:
                if not self._new:
                    self._live, self._running = {}, False
                    vars(self).pop("_run", None)
                    return

    def _take(self, run: EngineRun, emission: Emission) -> None:
        run.trace.steps.clear()  # nobody reads them
        one = self._live.get(emission.request)
        if one is None:
            return
        event = one.sample.take(emission)
        if not one.send(event):
            self._release(one)
        elif event.finish_reason is not None:
            prefilled = self._release(one)
            if one.future.set_running_or_notify_cancel():
                one.future.set_result(one.sample.completion(prefilled))

    def _release(self, one: Submitted) -> float | None:
        """Free the row of a request; returns the end of its prefill."""
        self._run.finish(one.index)
        del self._live[one.index]
        return self._run.trace.prefilled.pop(one.index, None)
