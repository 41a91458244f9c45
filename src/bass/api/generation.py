"""A running generation: decodes the engine's tokens, finds stop strings, collects completions."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from functools import partial

from bass.api.loading import Models
from bass.api.results import Completion, Result, StreamEvent
from bass.engine.assembly import Strategies
from bass.engine.cost import measure_peaks
from bass.engine.requests import Emission, Request
from bass.engine.run import EngineRun
from bass.progress import advancing
from bass.text import StopStrings, Transcript


@dataclass
class _Sample:
    """The output of one request so far."""

    request: Request
    transcript: Transcript | None  # None without a tokenizer
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: str | None = None
    ended: float = 0.0

    def rest(self) -> str:
        """The text that was held back in case a stop string followed."""
        return "" if self.transcript is None else self.transcript.finish()

    def event(self, text: str, tokens: list[int], logprobs: list[float]) -> StreamEvent:
        indices = self.request.prompt_index, self.request.sample_index
        return StreamEvent(*indices, text, tokens, logprobs, self.reason)


class Generation:
    """A running generation: iterate it for `StreamEvent`s as tokens are committed.

    `result()` runs it to its end, or returns the output so far.
    """

    def __init__(
        self, run: EngineRun, models: Models, parts: Strategies, stop: tuple[str, ...],
        ignore_eos: bool,
    ) -> None:  # fmt: skip
        self.run, self._models, self._parts = run, models, parts
        self._eos = frozenset(() if ignore_eos else models.eos)
        stops, tokenizer = StopStrings(stop) if stop else None, models.tokenizer
        self._samples = [
            _Sample(one, Transcript(tokenizer, stops) if tokenizer else None)
            for one in run.requests
        ]
        self._events = self._iterate()
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[StreamEvent]:
        return self._events

    def result(self, interrupted: bool = False) -> Result:
        """Run to the end, unless `interrupted`, and return the completions.

        Unfinished samples have the finish reason `time` where the time budget ended the run, and
        else `interrupted`: the generation was closed, or is still running. Raises the error that
        ended the run, at each call, unless `interrupted`.
        """
        if not interrupted:
            for _ in self._events:
                pass
            if self._error is not None:
                raise self._error
        trace = self.run.trace
        completions = [
            Completion(
                prompt_index=sample.request.prompt_index,
                sample_index=sample.request.sample_index,
                text=None if sample.transcript is None else sample.transcript.text,
                token_ids=list(sample.token_ids),
                logprobs=list(sample.logprobs),
                finish_reason=sample.reason or "interrupted",
                seconds=max(sample.ended - trace.prefilled.get(index, 0.0), 0.0),
                prompt_tokens=len(sample.request.prompt),
                prefill_seconds=trace.prefilled.get(index),
            )
            for index, sample in enumerate(self._samples)
        ]
        peaks = partial(measure_peaks, self._models.device, self._models.dtype)
        claims = self._parts.verifier.lossless, self._parts.drafter.batch_invariant
        return Result(completions, list(trace.steps), peaks, *claims, trace.capture_seconds)

    def close(self) -> None:
        """Stop: there are no more events, and the rows are free for another request."""
        self._events.close()
        self.run.status.over = True

    def _iterate(self) -> Generator[StreamEvent, None, None]:
        try:
            for emission in self.run:
                yield self._take(emission)
        except Exception as error:
            self._error = error
            raise
        # nothing but the time budget ends a run before its samples
        out_of_time = [sample for sample in self._samples if sample.reason is None]
        for sample in out_of_time:
            sample.reason = "time"
        yield from [sample.event(sample.rest(), [], []) for sample in out_of_time]

    def _take(self, emission: Emission) -> StreamEvent:
        sample = self._samples[emission.request]
        count, text = len(emission.tokens), ""
        if sample.transcript is not None:
            count, text = sample.transcript.push(emission.tokens)
        tokens, logprobs = emission.tokens[:count], emission.logprobs[:count]
        sample.token_ids += tokens
        sample.logprobs += logprobs
        sample.ended = emission.seconds
        if sample.transcript is not None and sample.transcript.stopped:
            sample.reason = "stop"
            self.run.finish(emission.request)
        elif emission.done:
            sample.reason = "length"
            if tokens and tokens[-1] in sample.request.end_tokens:
                sample.reason = "eos" if tokens[-1] in self._eos else "stop"
            text += sample.rest()
        return sample.event(text, tokens, logprobs)


def finished(generation: Generation, progress: bool) -> Result:
    """Run the generation to its end and return the result; `progress` shows a bar on standard
    error.

    The total is the maximum number of tokens; a sample that ends early advances the bar by its
    remaining share.
    """
    if not progress:
        return generation.result()
    limits = {
        (request.prompt_index, request.sample_index): request.limit - len(request.prompt)
        for request in generation.run.requests
    }
    with advancing("generating tokens", sum(limits.values()), shown=True) as advance:
        for event in generation:
            row = event.prompt_index, event.sample_index
            limits[row] -= (count := len(event.token_ids))
            advance(count if event.finish_reason is None else count + limits.pop(row))
    return generation.result()


def first_step(generation: Generation) -> None:
    """Take the first step of a generation, and end it."""
    try:
        next(iter(generation))
    finally:
        generation.close()
