"""One generation on its way: tokens from the engine become text, stop strings are found, completions collected."""

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

from bass.engine.cost import PairCost, Peaks
from bass.engine.requests import Emission
from bass.engine.run import Run
from bass.results import Completion, Result, StreamEvent, summarize
from bass.text import TextStream, Tokenizer


@dataclass
class _Sample:
    """What has come of one request so far."""

    stream: TextStream | None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    sent: int = 0  # characters of `text` already given to the reader
    reason: str | None = None
    ended: float = 0.0


class Generation:
    """Iterate it for `StreamEvent`s as tokens are committed; `result()` finishes it, or tells what there is so far."""

    def __init__(
        self,
        run: Run,
        tokenizer: Tokenizer | None,
        stop: tuple[str, ...],
        cost: PairCost,
        peaks: Callable[[], Peaks],
        lossless: bool,
        batch_invariant: bool = True,
    ) -> None:
        self.run, self._stop, self.cost, self.peaks = run, stop, cost, peaks
        self._claims = lossless, batch_invariant
        self._samples = [_Sample(TextStream(tokenizer) if tokenizer else None) for _ in run.requests]
        self._events = self._iterate()
        self._seconds = 0.0
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[StreamEvent]:
        return self._events

    def result(self, interrupted: bool = False) -> Result:
        """Run to the end, unless `interrupted`: then samples under way are marked and returned as they are."""
        if not interrupted:
            for _ in self._events:
                pass
            if self._error is not None:
                raise self._error
        reason = "interrupted" if interrupted else "time"
        completions = [
            Completion(
                prompt_index=request.prompt_index,
                sample_index=request.sample_index,
                text=None if sample.stream is None else sample.text,
                token_ids=sample.token_ids,
                logprobs=sample.logprobs,
                finish_reason=sample.reason or reason,
                seconds=max(sample.ended - self.run.trace.prefilled.get(index, 0.0), 0.0),
            )
            for index, (request, sample) in enumerate(zip(self.run.requests, self._samples, strict=True))
        ]
        stats = summarize(self.run.trace, completions, self.peaks(), self._seconds, *self._claims)
        return Result(completions, stats, self.run.trace.steps)

    def close(self) -> None:
        """Give it up: there are no more events, and its rows are free for another request."""
        self._events.close()
        self.run.over = True

    def _iterate(self) -> Generator[StreamEvent, None, None]:
        began = time.perf_counter()
        try:
            for emission in self.run:
                self._seconds = time.perf_counter() - began - self.run.trace.capture_seconds
                yield self._take(emission)
        except Exception as error:
            self._error = error
            raise
        self._seconds = time.perf_counter() - began - self.run.trace.capture_seconds

    def _take(self, emission: Emission) -> StreamEvent:
        request, sample = self.run.requests[emission.request], self._samples[emission.request]
        kept = len(emission.tokens)
        if sample.stream is not None and not self._stop:
            sample.text += sample.stream.push(*emission.tokens)
        elif sample.stream is not None:
            kept = 0
            for token in emission.tokens:
                kept += 1
                sample.text += sample.stream.push(token)
                if self._cut(sample):
                    sample.reason = "stop"
                    break
        sample.token_ids += emission.tokens[:kept]
        sample.logprobs += emission.logprobs[:kept]
        sample.ended = emission.seconds
        if sample.reason == "stop":
            self.run.finish(emission.request)
        elif emission.done:
            sample.reason = "eos" if emission.tokens and emission.tokens[-1] in self.run.eos else "length"
        if sample.reason and sample.reason != "stop" and sample.stream is not None:
            sample.text += sample.stream.flush()
            if self._stop:
                self._cut(sample)
        # A stop string may have begun: hold back what could be its beginning until it is decided.
        safe = len(sample.text) if sample.reason else len(sample.text) - self._pending(sample.text)
        text, sample.sent = sample.text[sample.sent : safe], max(safe, sample.sent)
        return StreamEvent(
            request.prompt_index, request.sample_index, text, emission.tokens[:kept], emission.logprobs[:kept], sample.reason
        )

    def _cut(self, sample: _Sample) -> bool:
        """Cut the text before the first stop string in it, if there is one."""
        found = [at for at in (sample.text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            sample.text = sample.text[: min(found)]
        return bool(found)

    def _pending(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        lengths = (n for stop in self._stop for n in range(1, len(stop)) if text.endswith(stop[:n]))
        return max(lengths, default=0)
