"""Differences of two cells, with intervals: over requests for the value of drafts, over repeats for
times (reasons: `bass.analysis.statistics`).
"""

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from bass.analysis.metrics import Metric
from bass.analysis.repeats import Repeat
from bass.analysis.statistics import LEVEL, Comparison, compare, compare_requests
from bass.report.cells import Cell

MOST_TIMES = 100  # a larger bound only shows that there are too few repeats


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
    own, others = (np.array(one.values(metric.name)) for one in (cell, other))
    a, b = cell.value(metric.name), other.value(metric.name)
    if not a or not b:
        return None
    if min(len(own), len(others)) < 2:
        return Lead(b / a, None, None)
    # an estimate of 0
    around = compare(own / a, others / b, same_work(cell, other), LEVEL, among).difference
    return Lead(b / a, *(b / a * math.exp(min(x, 50)) for x in (around.low, around.high)))


def difference(a: Cell, b: Cell, metric: Metric, among: int = 1) -> Comparison | None:
    """b minus a. None with too few repeats, or too few requests."""
    if metric.by_request is not None and "second" not in metric.unit:
        first, second = ([metric.by_request(repeat) for repeat in cell.repeats] for cell in (a, b))
        shared = {request for values in first for request in values} & {
            request for values in second for request in values
        }
        return compare_requests(first, second, LEVEL, among) if len(shared) > 1 else None
    x, y = np.array(a.values(metric.name)), np.array(b.values(metric.name))
    return (
        compare(x, y, same_work(a, b), LEVEL, among)
        if min(len(x), len(y)) > 1 and len(x) == len(a.repeats)
        else None
    )


def same_work(a: Cell, b: Cell) -> bool:
    """Whether the repeats of both cells have the same requests, so that they can be paired."""
    return [_work(repeat) for repeat in a.repeats] == [_work(repeat) for repeat in b.repeats]


def _work(repeat: Repeat) -> list[tuple[int, int, int]]:
    return sorted((line.request, line.prompt_tokens, line.seed) for line in repeat.requests)
