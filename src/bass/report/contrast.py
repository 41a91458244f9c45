"""Differences of two cells, with intervals over independent values: see
`bass.analysis.independent`.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar, final, runtime_checkable

import numpy as np
from jaxtyping import Float

from bass.analysis.metrics import Metric
from bass.analysis.statistics import LEVEL, Comparison, compare
from bass.report.cells import Cell

MOST_TIMES = 100  # a larger bound only shows that there are too few repeats
FEWEST_REPEATS = 3  # a speed-up of fewer has no interval


@runtime_checkable
class Timed(Protocol):
    """What a speed-up compares: a cell, or the part of one with a category."""

    @property
    def speculative(self) -> bool:
        """Whether it has drafts."""
        ...

    @property
    def same_target(self) -> tuple[str | None, ...]:
        """What autoregressive decoding shares with all that is compared with it."""
        ...

    def value(self, name: str) -> float | None:
        """Its value of a metric."""
        ...


T = TypeVar("T", bound=Timed)


def fastest_plain(own: T, others: Iterable[T]) -> T | None:
    """What a speed-up is over: of the others, the fastest autoregressive decoding of the same
    target, work and batch; of equals the first. None where none has a time.
    """
    found = {
        one: seconds
        for one in others
        if not one.speculative
        and one.same_target == own.same_target
        and (seconds := one.value("all")) is not None
    }
    return min(found, key=lambda one: found[one], default=None)


@final
@dataclass(frozen=True)
class Lead:
    """The ratio of two cells' speeds, over repeats.

    `low`, `high`: None with a single repeat.
    """

    times: float
    low: float | None
    high: float | None

    @property
    def clear(self) -> bool:
        """Whether the interval excludes 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    @property
    def within(self) -> str:
        """`2.60 to 2.83`; empty without an interval."""
        return (
            ""
            if self.low is None or self.high is None
            else f"{_bound(self.low)} to {_bound(self.high)}"
        )

    def in_words(self) -> str:
        """`2.71 times as fast (2.60 to 2.83)`."""
        return f"{self.times:.2f} times as fast{self.within and f' ({self.within})'}"


def _bound(times: float) -> str:
    return f"{times:.2f}" if times <= MOST_TIMES else f"more than {MOST_TIMES}"


def lead(cell: Cell, other: Cell, metric: Metric, among: int) -> Lead | None:
    """The ratio of two cells in a metric of time, with its interval at `LEVEL` over `among` such
    comparisons.

    The interval is that of the logarithm to first order: log(mean) changes by the sum of
    (x_i - mean) / (n mean).
    """
    a, b = cell.value(metric.name), other.value(metric.name)
    if not a or not b:
        return None
    paired = same_work(cell, other)
    return lead_of(cell.values(metric.name), other.values(metric.name), a, b, paired, among)


def lead_of(
    own: Mapping[int, float],
    others: Mapping[int, float],
    a: float,
    b: float,
    paired: bool,
    among: int = 1,
) -> Lead:
    """`lead` of values by repeat, with the means `a` and `b`; `paired`: by the repeats of both."""
    x, y = _aligned(own, others, paired)
    if min(len(x), len(y)) < 2:
        return Lead(b / a, None, None)
    # an estimate of 0
    around = compare(x / a, y / b, paired, LEVEL, among).difference
    return Lead(b / a, *(b / a * math.exp(min(bound, 50)) for bound in (around.low, around.high)))


def speedup(own: Mapping[int, float], plain: Mapping[int, float], paired: bool) -> Lead | None:
    """The speed-up of every table: seconds per token of autoregressive decoding over a cell's own,
    each the mean over the repeats given by number. Its interval is at `LEVEL`, whatever else is
    compared; None without values.
    """
    a, b = (sum(values.values()) / max(len(values), 1) for values in (own, plain))
    if not a or not b:
        return None
    if min(len(own), len(plain)) < FEWEST_REPEATS:
        return Lead(b / a, None, None)
    return lead_of(own, plain, a, b, paired)


def difference(
    a: Cell, b: Cell, metric: Metric, same_prompts: bool, among: int = 1
) -> Comparison | None:
    """b minus a, paired by repeat or prompt where both have the same. None with fewer than two
    values.
    """
    paired = same_prompts if metric.over == "prompts" else same_work(a, b)
    x, y = _values(a, b, metric, paired)
    return compare(x, y, paired, LEVEL, among) if min(len(x), len(y)) > 1 else None


def _values(
    a: Cell, b: Cell, metric: Metric, paired: bool
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " m"]]:
    """The values of both cells, of those that both have if they are to be paired."""
    return _aligned(a.values(metric.name), b.values(metric.name), paired)


def _aligned(
    x: Mapping[int, float], y: Mapping[int, float], paired: bool
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " m"]]:
    if paired:
        both = sorted(x.keys() & y.keys())
        x, y = ({i: values[i] for i in both} for values in (x, y))
    return np.array([*x.values()]), np.array([*y.values()])


def same_work(a: Cell, b: Cell) -> bool:
    """Whether both cells have the same requests, so that their repeats can be paired."""
    return a.requests == b.requests
