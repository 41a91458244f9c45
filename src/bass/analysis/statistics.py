"""Intervals of means, and comparisons of two runs. Deterministic given the data and the seed.

An interval is over independent values: which those of a metric are is defined in
`bass.analysis.independent`.

The method from `FEW` values on is the bias-corrected and accelerated bootstrap (BCa, Efron 1987),
which supports pooled rates and skew. Below, it is Student's t: a bootstrap interval of n values
lies between their minimum and maximum, and all n lie on one side of the mean of a symmetric
distribution with probability 2^(1-n), so for 3 repeats it fails at least every fourth time.
Measured coverage at a nominal 95 %, in 300 draws: 12 normal values t 94 %, BCa 89 %; 20 values 95
and 93 %; 30 values 96 and 95 %; 30 exponential or geometric values both 89 to 91 %; 50 lognormal
values both 90 %. Skewed data need more values.

scipy has both methods, but would be a large dependency for two formulas.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import final

import numpy as np
from jaxtyping import Float, Int

from bass.errors import OptionError

FEW = 30
RESAMPLES = 2000
ROUNDING = 1e-9  # relative
LEVEL = 0.95

Statistic = Callable[[Float[np.ndarray, "... n columns"]], Float[np.ndarray, "..."]]


@final
@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval at `level`.

    `method`: `student`, `bootstrap`, or `permutation` for a difference without spread.
    """

    estimate: float
    low: float
    high: float
    level: float
    method: str


@final
@dataclass(frozen=True)
class Comparison:
    """Run b compared with run a. `difference`: mean of b - mean of a, with its interval;
    `relative`: the difference over the mean of a (NaN if that is 0).

    For two equal runs, the probability of a false alarm is 1 - `interval.level`, over all
    comparisons of the family. count: the independent values, of the run that has fewer. chance:
    where they have no spread, the probability of such a difference between equal runs.
    """

    difference: Interval
    relative: float
    paired: bool
    count: int
    chance: float | None = None

    @property
    def beyond_noise(self) -> bool:
        """Whether the interval of the difference excludes 0. If it has no width, since the values
        have no spread, whether they are too many for chance: six pairs at 95 %.
        """
        by = self.difference
        if self.chance is None:
            return not by.low <= 0 <= by.high
        return by.estimate != 0 and self.chance <= 1 - by.level


def mean(values: Float[np.ndarray, "... n columns"]) -> Float[np.ndarray, "..."]:
    """The mean of the first column."""
    return np.asarray(values[..., 0].mean(-1))


def ratio(values: Float[np.ndarray, "... n columns"]) -> Float[np.ndarray, "..."]:
    """The sum of the first column over the sum of the second: a pooled rate, such as tau."""
    return np.asarray(values[..., 0].sum(-1) / values[..., 1].sum(-1))


def without_spread(values: Float[np.ndarray, " n"]) -> bool:
    """Whether all values are equal but for rounding, so that they have no interval."""
    return bool(np.ptp(values) <= ROUNDING * np.abs(values).max())


def interval(values: Float[np.ndarray, " n"], level: float = LEVEL, seed: int = 0) -> Interval:
    """The interval of the mean of two or more values: bootstrap from `FEW` on, else Student's t."""
    return intervals(values[:, None], level, seed)[0]


def intervals(
    values: Float[np.ndarray, "n columns"], level: float = LEVEL, seed: int = 0
) -> list[Interval]:
    """`interval` of each column. The columns share their resamples, so many take little longer."""
    n = len(values)
    if n < FEW:
        return [student(column, level) for column in values.T]
    _check(n, level)
    drawn = np.concatenate(
        [_counts(indices) @ values / n for indices in _resamples(n, RESAMPLES, seed)]
    )
    left_out = (values.sum(0) - values) / (n - 1)
    return [
        _accelerated(float(estimate), drawn[:, i], left_out[:, i], level)
        for i, estimate in enumerate(values.mean(0))
    ]


def student(values: Float[np.ndarray, " n"], level: float = LEVEL) -> Interval:
    """The interval of the mean of independent normal values."""
    _check(len(values), level)
    center, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values))
    reach = student_quantile(len(values) - 1, level) * error
    return Interval(center, center - reach, center + reach, level, "student")


def bootstrap(
    values: Float[np.ndarray, "n columns"],
    statistic: Statistic = mean,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The BCa interval of a statistic of independent rows (Efron, 1987)."""
    n = len(values)
    _check(n, level)
    drawn = np.concatenate(
        [statistic(values[indices]) for indices in _resamples(n, resamples, seed)]
    )
    left_out = np.array([statistic(np.delete(values, i, 0)) for i in range(n)])
    return _accelerated(float(statistic(values)), drawn, left_out, level)


def _resamples(n: int, resamples: int, seed: int) -> Iterator[Int[np.ndarray, "block n"]]:
    """Rows drawn with replacement, block by block, which bounds the memory."""
    random = np.random.default_rng(seed)
    block = max(1, 10**6 // n)
    for i in range(0, resamples, block):
        yield random.integers(0, n, (min(block, resamples - i), n))


def _counts(indices: Int[np.ndarray, "block n"]) -> Float[np.ndarray, "block n"]:
    """The number of draws of each row."""
    block, n = indices.shape
    flat = indices + n * np.arange(block)[:, None]
    return np.bincount(flat.ravel(), minlength=block * n).reshape(block, n).astype(float)


def _accelerated(
    estimate: float,
    drawn: Float[np.ndarray, " resamples"],
    left_out: Float[np.ndarray, " n"],
    level: float,
) -> Interval:
    """The BCa interval, from the resamples and the leave-one-out values of the statistic."""
    gaps = left_out.mean() - left_out
    spread = float((gaps**2).sum())
    acceleration = float((gaps**3).sum()) / (6 * spread**1.5) if spread > 0 else 0.0
    # ties count half
    below = (float((drawn < estimate).mean()) + float((drawn <= estimate).mean())) / 2
    normal = NormalDist()
    least = 0.5 / len(drawn)
    bias = normal.inv_cdf(min(max(below, least), 1 - least))

    def at(share: float) -> float:
        z = bias + normal.inv_cdf(share)
        stretch = 1 - acceleration * z
        return float(
            np.quantile(drawn, normal.cdf(bias + z / stretch) if stretch > 0 else float(z > 0))
        )

    return Interval(estimate, at((1 - level) / 2), at((1 + level) / 2), level, "bootstrap")


def compare(
    a: Float[np.ndarray, " n"],
    b: Float[np.ndarray, " m"],
    paired: bool,
    level: float = LEVEL,
    among: int = 1,
    seed: int = 0,
) -> Comparison:
    """Whether the mean of `b` differs from that of `a` by more than noise.

    paired: value i of both is of the same prompt (or seed), and the test uses their differences;
    otherwise it is Welch's t. Differences (or values of each run) without spread have no interval:
    there it is the permutation test, which counts the rearrangements that differ as much. among:
    the number of simultaneous comparisons; each gets 1/among of the false alarms (Bonferroni), so
    that 1 - level is the probability of any.
    """
    if among < 1:
        raise OptionError(
            f"`among={among}` must be the number of comparisons made at once, 1 or more."
        )
    level = 1 - (1 - level) / among
    if paired and len(a) != len(b):
        raise OptionError(
            f"A paired comparison of {len(a)} and {len(b)} values: give one of each run for the "
            "same requests in the same order."
        )
    count, base = min(len(a), len(b)), abs(float(a.mean()))
    _check(count, level)
    chance = _chance(a, b, paired)
    if chance is not None:
        center = 0.0 if chance == 1 else float(b.mean() - a.mean())
        difference = Interval(center, center, center, level, "permutation")
    else:
        difference = interval(b - a, level, seed) if paired else _welch(a, b, level)
    relative = difference.estimate / base if base else math.nan
    return Comparison(difference, relative, paired, count, chance)


def _chance(a: Float[np.ndarray, " n"], b: Float[np.ndarray, " m"], paired: bool) -> float | None:
    """The share of rearrangements of values without spread that differ as much as they do; None for
    values with spread.

    Of n pairs, each may be swapped; of unpaired ones, any n of all n + m may be the first run's.
    """
    size = ROUNDING * max(np.abs(a).max(), np.abs(b).max())
    if any(np.ptp(values) > size for values in ([b - a] if paired else [a, b])):
        return None
    if abs(b.mean() - a.mean()) <= size:
        return 1.0
    return 2.0 ** (1 - len(a)) if paired else 2 / math.comb(len(a) + len(b), len(a))


def _welch(a: Float[np.ndarray, " n"], b: Float[np.ndarray, " m"], level: float) -> Interval:
    """The interval of the difference of two means with unequal variances; degrees of freedom are
    rounded down, which widens it.
    """
    _check(min(len(a), len(b)), level)
    shares = np.array([a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)])
    error, center = math.sqrt(shares.sum()), float(b.mean() - a.mean())
    freedom = (
        math.floor(shares.sum() ** 2 / float((shares**2 / [len(a) - 1, len(b) - 1]).sum()))
        if error
        else 1
    )
    reach = student_quantile(max(freedom, 1), level) * error
    return Interval(center, center - reach, center + reach, level, "student")


@functools.cache
def student_quantile(freedom: int, level: float) -> float:
    """The t with P(|T| < t) = `level` for Student's T with `freedom` degrees of freedom."""
    low, high = 0.0, 1.0
    while _within(high, freedom) < level:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < level else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """P(|T| < t), Abramowitz and Stegun (1964), 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for i in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine**2 * (i - 1) / i
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def _check(n: int, level: float) -> None:
    if n < 2:
        raise OptionError(
            f"An interval needs at least 2 values, and was given {n}: take more repeats or "
            "requests."
        )
    if not 0 < level < 1:
        raise OptionError(f"`level={level}` must be between 0 and 1.")
