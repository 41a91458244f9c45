"""A running generation: decodes the engine's tokens, finds stop strings, collects completions."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from functools import partial

from bass.api.loading import Models
from bass.api.options import RequestOptions
from bass.api.requests import Prompts, needed, requests_for
from bass.api.results import Completion, Result, StreamEvent
from bass.engine.assembly import Strategies
from bass.engine.cost import measure_peaks
from bass.engine.requests import Emission, Request
from bass.engine.run import EngineRun
from bass.progress import advancing
from bass.sampling_params import stop_strings
from bass.text import StopStrings, Transcript


@dataclass
class Sample:
    """The output of one request so far.

    eos: end tokens that are no stop tokens. arrived: seconds since the run began. since: the time
    of the run from which a completion's times count.
    """

    request: Request
    transcript: Transcript | None  # None without a tokenizer
    eos: frozenset[int]
    arrived: float = 0.0
    seed: int = 0
    since: float = 0.0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: str | None = None
    first: float | None = None  # when its first tokens were committed
    ended: float = 0.0

    def rest(self) -> str:
        """The text that was held back in case a stop string followed."""
        return "" if self.transcript is None else self.transcript.finish()

    def event(self, text: str, tokens: list[int], logprobs: list[float]) -> StreamEvent:
        indices = self.request.prompt_index, self.request.sample_index
        return StreamEvent(*indices, text, tokens, logprobs, self.reason)

    def take(self, emission: Emission) -> StreamEvent:
        """Add an emission; the event has a finish reason if the sample ends with it."""
        count, text = len(emission.tokens), ""
        if self.transcript is not None:
            count, text = self.transcript.push(emission.tokens)
        tokens, logprobs = emission.tokens[:count], emission.logprobs[:count]
        self.token_ids += tokens
        self.logprobs += logprobs
        self.first, self.ended = self.first or emission.seconds, emission.seconds
        if self.transcript is not None and self.transcript.stopped:
            self.reason = "stop"
        elif emission.done:
            self.reason = "length"
            if tokens and tokens[-1] in self.request.end_tokens:
                self.reason = "eos" if tokens[-1] in self.eos else "stop"
            text += self.rest()
        return self.event(text, tokens, logprobs)

    def completion(self, prefilled: float | None) -> Completion:
        """The output so far. prefilled: the end of its prefill."""
        return Completion(
            prompt_index=self.request.prompt_index,
            sample_index=self.request.sample_index,
            text=None if self.transcript is None else self.transcript.text,
            token_ids=list(self.token_ids),
            logprobs=list(self.logprobs),
            finish_reason=self.reason or "interrupted",
            seconds=max(self.ended - (prefilled or 0.0), 0.0),
            prompt_tokens=len(self.request.prompt),
            prefill_seconds=None if prefilled is None else prefilled - self.since,
            arrival_seconds=self.arrived,
            first_token_seconds=None if self.first is None else self.first - self.since,
            seed=self.seed,
        )


def samples_of(
    models: Models, prompts: Prompts, options: RequestOptions, positions: int,
    first_sample: int = 0, first_prompt: int = 0, arrived: float = 0.0,
) -> list[Sample]:  # fmt: skip
    """The samples of prompts, without output. The arguments are those of `requests_for`.

    Raises `RequestError` or `OptionError`.
    """
    stops, tokenizer = stop_strings(options.stop), models.tokenizer
    if stops:
        needed(tokenizer, "`stop` needs", "`stop_token_ids`")
    ends, eos = StopStrings(stops) if stops else None, () if options.ignore_eos else models.eos
    requests = requests_for(models, prompts, options, first_sample, positions, first_prompt)
    own = frozenset(eos), arrived, options.seed
    return [
        Sample(one, Transcript(tokenizer, ends) if tokenizer else None, *own) for one in requests
    ]


class Generation:
    """A running generation: iterate it for `StreamEvent`s as tokens are committed.

    `result()` runs it to its end, or returns the output so far. samples: of the run's requests,
    also of those that arrive.
    """

    def __init__(
        self, run: EngineRun, models: Models, parts: Strategies, samples: list[Sample]
    ) -> None:
        self.run, self._models, self._parts, self._samples = run, models, parts, samples
        self._events = self._iterate()
        self._error: Exception | None = None
        self._ended = -1  # the sample of the last event with a finish reason

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
        completions = [self._completion(i) for i in range(len(self._samples))]
        peaks = partial(measure_peaks, self._models.device, self._models.dtype)
        warmest = max((one.request.sampling.temperature for one in self._samples), default=0.0)
        claims = self._parts.lossless_at(warmest), self._parts.batch_invariant_at(warmest)
        return Result(completions, list(trace.steps), peaks, *claims, trace.capture_seconds)

    def completions(self) -> Iterator[Completion]:
        """Run to the end, and yield each completion as it ends."""
        try:
            for event in self._events:
                if event.finish_reason is not None:
                    yield self._completion(self._ended)
        finally:
            self.close()

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
        out_of_time = [i for i, sample in enumerate(self._samples) if sample.reason is None]
        for i in out_of_time:
            self._samples[i].reason = "time"
        for self._ended in out_of_time:
            sample = self._samples[self._ended]
            yield sample.event(sample.rest(), [], [])

    def _completion(self, index: int) -> Completion:
        return self._samples[index].completion(self.run.trace.prefilled.get(index))

    def _take(self, emission: Emission) -> StreamEvent:
        event = self._samples[emission.request].take(emission)
        if event.finish_reason is not None:
            self._ended = emission.request
            self.run.finish(emission.request)  # a stop string may be before its limit
        return event


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
