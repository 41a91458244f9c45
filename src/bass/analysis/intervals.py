"""Intervals of mean scores, and comparisons of methods, over problems."""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float

from bass.analysis.statistics import LEVEL, intervals, student


@final
@dataclass(frozen=True)
class Mean:
    """A mean over problems, and the interval of the mean over all such problems."""

    value: float
    low: float
    high: float

    @property
    def beyond_noise(self) -> bool:
        """Whether the interval leaves out 0."""
        return not self.low <= 0 <= self.high


def mean_score(values: Float[np.ndarray, " problems"]) -> Mean:
    """The mean of values from 0 to 1, with its interval at `LEVEL`: by bootstrap, for few values by
    Student's t, see `bass.analysis.statistics`.

    If all values are equal, both methods give an empty interval. Then the bound of Clopper and
    Pearson (1934) applies: the share q of other values among all problems with
    (1 - q)^n = (1 - level) / 2.
    """
    return mean_scores(values[None])[0]


def mean_scores(rows: Float[np.ndarray, "rows problems"]) -> list[Mean]:
    """`mean_score` of each row, in little more time than that of one."""
    known: dict[bytes, Mean] = {}  # by row: between two budgets often nothing changes
    noisy: dict[bytes, Float[np.ndarray, " problems"]] = {}
    for row in rows:
        if (row == row[0]).all():
            value, q = float(row.mean()), 1 - ((1 - LEVEL) / 2) ** (1 / len(row))
            known[row.tobytes()] = Mean(value, value - q * value, value + q * (1 - value))
        else:
            noisy[row.tobytes()] = row
    if noisy:
        found = intervals(np.stack([*noisy.values()], 1), LEVEL)
        for key, one in zip(noisy, found, strict=True):
            known[key] = Mean(one.estimate, max(one.low, 0.0), min(one.high, 1.0))
    return [known[row.tobytes()] for row in rows]


def mean_difference(
    a: Float[np.ndarray, " problems"], b: Float[np.ndarray, " problems"], among: int = 1
) -> Mean:
    """The mean of b - a, paired by problem, at `LEVEL` over `among` such comparisons (Bonferroni).

    Two methods mostly agree, so few differences are nonzero, and the bootstrap is too confident
    (measured: up to 9.5 % false alarms at a nominal 5 %). Student's t of the differences with two
    more values, 1 and -1, stays below the nominal rate: the interval of Agresti and Min (2005) for
    paired shares.
    """
    found = student(np.append(b - a, [1.0, -1.0]), 1 - (1 - LEVEL) / among)
    return Mean(float((b - a).mean()), max(found.low, -1.0), min(found.high, 1.0))
