"""The definitions of all metrics, by name: `METRICS` (a number per repeat) and `PROFILES` (a list
of numbers per repeat).

`result.stats`, `bass generate --json`, run folders, reports and docs/metrics.md have these names,
and one rule: a metric that does not apply has no value (None in Python, null in JSON, no entry in a
run folder, a dash in a table), and is never 0.

measure(repeat)           the value of each metric that applies
pooled(generations)       the values of several generations together
AGAINST_PLAIN             the names of those that need `Repeat.plain`
means(measured)           the mean of each, over the measurements in which it applies

`bass.analysis.independent` makes the values of a cell of them.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from bass.analysis import acceptance, against_plain, speed
from bass.analysis.repeats import Repeat
from bass.analysis.units import number, shown

Better = Literal["lower", "higher", "neither"]
Over = Literal["repeats", "prompts", "one value"]


@final
@dataclass(frozen=True)
class Metric:
    """A number of a repeat; None where it does not apply. `heading`: its name in tables.

    over: the independent values of its interval, see `bass.analysis.independent`. `by_request`, if
    given: the values of single requests, whose mean is the metric. weight: the denominator of a
    rate; None where generations count alike.
    """

    name: str
    unit: str
    better: Better
    over: Over
    doc: str
    function: Callable[[Repeat], float | None]
    by_request: Callable[[Repeat], dict[int, float]] | None = None
    weight: Callable[[Repeat], float] | None = None

    def weight_of(self, repeat: Repeat) -> float:
        """The weight of a generation in the value of several, which so is that of all of them
        pooled.
        """
        if self.by_request is not None:
            return float(len(self.by_request(repeat)))
        return 1.0 if self.weight is None else self.weight(repeat)

    @property
    def least(self) -> float:
        """What no value is below: a target pass gives a token at least."""
        return 1.0 if self.name in ("tau", "tau_of_requests") else 0.0

    @property
    def heading(self) -> str:
        """The short name in tables."""
        return _HEADINGS.get(self.name, self.name)

    @property
    def shown_unit(self) -> str:
        """The unit of `show`."""
        return shown(self.unit)

    def show(self, value: float | None) -> str:
        """A value as shown in a table."""
        return number(value, self.unit)


@final
@dataclass(frozen=True)
class Profile:
    """A list of numbers of a repeat, by draft position or length; may be empty.

    An entry that does not apply is None.
    """

    name: str
    doc: str
    function: Callable[[Repeat], Sequence[float | None]]


def _doc(function: Callable[..., object]) -> str:
    return " ".join((inspect.getdoc(function) or "").split())


def _metric(
    unit: str,
    better: Better,
    function: Callable[[Repeat], float | None],
    over: Over = "prompts",
    name: str = "",
    by_request: Callable[[Repeat], dict[int, float]] | None = None,
    weight: Callable[[Repeat], float] | None = None,
) -> Metric:
    name = name or function.__name__
    return Metric(name, unit, better, over, _doc(function), function, by_request, weight)


def _time(
    unit: str,
    better: Better,
    function: Callable[[Repeat], float | None],
    name: str = "",
    by_request: Callable[[Repeat], dict[int, float]] | None = None,
    weight: Callable[[Repeat], float] | None = None,
) -> Metric:
    """A time, or a number that depends on one."""
    return _metric(unit, better, function, "repeats", name, by_request, weight)


def _mean(
    name: str,
    unit: str,
    better: Better,
    by_request: Callable[[Repeat], dict[int, float]],
    over: Over = "prompts",
) -> Metric:
    """The mean over requests."""

    def function(repeat: Repeat) -> float | None:
        values = list(by_request(repeat).values())
        return float(np.mean(values)) if values else None

    doc = f"Mean over requests. {_doc(by_request)}"
    return Metric(name, unit, better, over, doc, function, by_request)


def _seconds(repeat: Repeat) -> float:
    return repeat.seconds


def _stepping(repeat: Repeat) -> float:
    return repeat.stepping


def _steps(repeat: Repeat) -> float:
    return float(len(repeat.steps))


def _calls(repeat: Repeat) -> float:
    return float(repeat.counts.row_steps)


def _drafted(repeat: Repeat) -> float:
    return float(repeat.counts.drafted)


def _emitted(repeat: Repeat) -> float:
    return float(repeat.counts.emitted)


def _first(repeat: Repeat) -> float:
    return speed.first(repeat) or 0.0


def _last(repeat: Repeat) -> float:
    return speed.last(repeat) or 0.0


def _seconds_per_token(repeat: Repeat) -> float:
    return sum(speed.seconds_per_token(repeat).values())


_HEADINGS = {
    "acceptance_rate": "accepted",
    "tokens_per_second": "speed",
    "mbu": "MBU",
    "mfu": "MFU",
}

_AGAINST_PLAIN = (
    _time("ratio", "higher", against_plain.speedup_tokens_per_second, weight=_seconds),
    _time("ratio", "higher", against_plain.speedup_first, weight=_first),
    _time("ratio", "higher", against_plain.speedup_last, weight=_last),
    _time("ratio", "higher", against_plain.speedup_all, weight=_seconds_per_token),
    _metric("ratio", "neither", against_plain.speedup_limit, weight=_steps),
    _time("ratio", "lower", against_plain.draft_cost_ratio, weight=against_plain.drafted_seconds),
    _time("ratio", "higher", against_plain.predicted_speedup, weight=against_plain.predicted_cost),
    _mean("exact_match_rate", "share", "higher", against_plain.exact_matches),
    _metric("tokens", "higher", against_plain.first_divergence),
)

_METRICS = (
    _metric("steps", "neither", acceptance.steps),
    _metric("calls", "neither", acceptance.row_steps),
    _metric("tokens", "neither", acceptance.drafted),
    _metric("tokens", "neither", acceptance.accepted),
    _metric("tokens", "neither", acceptance.emitted),
    _metric("tokens", "neither", speed.tokens),
    _time("seconds", "lower", speed.seconds),
    _time("seconds", "lower", speed.prefill_seconds),
    _metric("tokens per call", "higher", acceptance.tau, weight=_calls),
    _mean("tau_of_requests", "tokens per call", "higher", acceptance.acceptance_lengths),
    _metric("tokens per call", "higher", acceptance.accepted_per_call, weight=_calls),
    _metric("tokens per call", "neither", acceptance.drafted_per_call, weight=_calls),
    _metric("share", "higher", acceptance.acceptance_rate, weight=_drafted),
    _metric("share", "higher", acceptance.token_acceptance_rate, weight=acceptance.reached),
    _metric("tokens", "lower", acceptance.wasted_drafted_tokens),
    _metric("tokens per token", "lower", acceptance.wasted_per_token, weight=_emitted),
    _metric("share", "neither", acceptance.share_without_draft, weight=_steps),
    _metric("share", "lower", acceptance.padding_waste, weight=acceptance.window_positions),
    _metric("share", "lower", acceptance.cache_padding_waste, weight=acceptance.span_positions),
    _time("seconds per token", "lower", speed.first),
    _time("seconds per token", "lower", speed.last),
    _time("seconds per token", "lower", speed.mean_of_all, "all", speed.seconds_per_token),
    _mean("ttft", "seconds", "lower", speed.first_token_times, "repeats"),
    _mean("tpot", "seconds per token", "lower", speed.times_per_output_token, "repeats"),
    _time("seconds", "lower", speed.itl_p50),
    _time("seconds", "lower", speed.itl_p99),
    _time("tokens per second", "higher", speed.tokens_per_second, weight=_seconds),
    _mean(
        "tokens_per_second_per_user",
        "tokens per second",
        "higher",
        speed.tokens_per_second_of_requests,
        "repeats",
    ),
    _time("tokens per second", "higher", speed.decode_tokens_per_second, weight=_stepping),
    _time("requests per second", "higher", speed.goodput, weight=_seconds),
    _time("share", "lower", speed.host_share, weight=speed.stepping_with_host),
    _metric("seconds", "lower", speed.bound_seconds),
    _time("share", "higher", speed.mbu, weight=_stepping),
    _time("share", "higher", speed.mfu, weight=_stepping),
    _time("share", "higher", speed.mfu_kept, weight=_stepping),
    _metric("bytes", "lower", speed.peak_memory_bytes, "one value"),
    *_AGAINST_PLAIN,
)

_PROFILES = (
    acceptance.acceptance_by_position,
    acceptance.reached_by_position,
    acceptance.unconditional_acceptance_by_position,
    acceptance.judged_by_position,
    acceptance.drafted_histogram,
    acceptance.accepted_histogram,
    acceptance.accepted_by_length,
)

METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _METRICS}
AGAINST_PLAIN = tuple(metric.name for metric in _AGAINST_PLAIN)
# Fields of `result.stats` and `--json` that a run folder has in other places.
OF_A_CALL: Mapping[str, str] = {
    "capture_seconds": (
        "Seconds in which the call waited for CUDA graphs to be captured; no other time has them "
        "in it."
    ),
    "lossless": "Whether the verifier says that the tokens follow the target's distribution.",
    "batch_invariant": (
        "Whether the drafter says that a row's tokens do not depend on its batch; with a "
        "batch-wide policy they do."
    ),
}
# Columns of a table, in order: the main metrics, then the utilization of the device.
FIGURES = ("all", "first", "last", "tokens_per_second", "tau", "acceptance_rate")
COLUMNS = (*FIGURES, "mbu", "mfu")
PROFILES: Mapping[str, Profile] = {
    function.__name__: Profile(function.__name__, _doc(function), function)
    for function in _PROFILES
}


def measure(repeat: Repeat, names: Iterable[str] = tuple(METRICS)) -> dict[str, float]:
    """The value of each metric (of these names) that applies to the repeat."""
    values = {name: METRICS[name].function(repeat) for name in names}
    return {name: float(value) for name, value in values.items() if value is not None}


def profiles(repeat: Repeat) -> dict[str, list[float | None]]:
    """Every profile of the repeat."""
    return {name: list(profile.function(repeat)) for name, profile in PROFILES.items()}


def pooled(
    generations: Sequence[Repeat], measured: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """The value of several generations together, of each metric in the generations in which it
    applies: rates over all their calls, tokens or seconds, means over all their requests, and the
    mean over generations of the rest. `measured`: of each generation.
    """
    return {
        name: weighted_mean(
            [one[name] for one in measured if name in one],
            [
                METRICS[name].weight_of(generation)
                for generation, one in zip(generations, measured, strict=True)
                if name in one
            ],
        )
        for name in METRICS
        if any(name in one for one in measured)
    }


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """The mean of values with these weights; with equal ones exactly the mean."""
    if min(weights) == max(weights):
        return float(np.mean(values))
    return float(np.average(values, weights=weights))


def means(measured: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric, over the measurements in which it applies."""
    return {
        name: float(np.mean(values))
        for name in METRICS
        if (values := [one[name] for one in measured if name in one])
    }
