"""Intervals of means and comparisons of paired values, by Student's t."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import stdtr, stdtrit  # Student's t: its distribution, and the inverse

LEVEL = 0.95
MOST_SPAN = 3.0  # of an interval, high over low: a wider one decides nothing


@final
@dataclass(frozen=True)
class Interval:
    """A mean of n independent values, and the bounds of its 95 % interval; None with n < 2."""

    mean: float
    low: float | None
    high: float | None
    n: int


def interval(values: Sequence[float] | np.ndarray) -> Interval:
    """Student's t interval of the mean of independent values."""
    found = np.asarray(values, dtype=float)
    n = len(found)
    mean = float(found.mean()) if n else math.nan
    if n < 2:
        return Interval(mean, None, None, n)
    half = float(stdtrit(n - 1, (1 + LEVEL) / 2) * found.std(ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


@final
@dataclass(frozen=True)
class Comparison:
    """The ratio of two means over n paired values, with its 95 % interval.

    low, high: None where the interval is not bounded, or n < 2. median: of the paired ratios, which
    a noisy machine moves less. p: of the hypothesis that both means are equal.
    """

    ratio: float
    low: float | None
    high: float | None
    median: float
    p: float
    n: int

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval; NaN if it is missing or spans more than a factor of 3."""
        if self.low is None or self.high is None or self.high > MOST_SPAN * self.low:
            return math.nan, math.nan
        return self.low, self.high

    @property
    def undecided(self) -> bool:
        """Whether there are no bounds."""
        return math.isnan(self.bounds[0])

    @property
    def text(self) -> str:
        """`1.42 (1.30 to 1.55)`, or `undecided (n = 3)`."""
        if self.undecided:
            return f"undecided (n = {self.n})"
        return f"{self.ratio:.2f} ({self.low:.2f} to {self.high:.2f})"


def compare(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> Comparison:
    """The ratio mean(a) / mean(b) of paired positive values.

    p is that of Student's t test on the paired differences. The interval is Fieller's (1954): the
    ratios r for which the t test on a - r b does not reject that its mean is 0. So it holds 1 if
    and only if p >= 0.05. Where all differences are equal, as of repeats that are copies, p is 1
    and there is no interval.
    """
    x, y = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if len(x) != len(y):
        raise ValueError(f"{len(x)} and {len(y)} values are not paired.")
    n = len(x)
    if not n or not y.all():
        return Comparison(math.nan, None, None, math.nan, 1.0, n)
    ratio, median = float(x.mean() / y.mean()), float(np.median(x / y))
    difference = x - y
    if n < 2 or np.ptp(difference) == 0:
        return Comparison(ratio, None, None, median, 1.0, n)
    t = difference.mean() / (difference.std(ddof=1) / math.sqrt(n))
    p = float(2 * stdtr(n - 1, -abs(t)))
    return Comparison(ratio, *_fieller(x, y), median, p, n)


def _fieller(x: np.ndarray, y: np.ndarray) -> tuple[float, float] | tuple[None, None]:
    """The bounds of the ratio of the means, roots of a quadratic; None if not positive."""
    n = len(x)
    t = float(stdtrit(n - 1, (1 + LEVEL) / 2))
    (xx, xy), (_, yy) = np.cov(x, y) * t**2 / n
    a = y.mean() ** 2 - yy
    b = x.mean() * y.mean() - xy
    c = x.mean() ** 2 - xx
    root = b * b - a * c
    if a <= 0 or root < 0:
        return None, None
    low, high = (b - math.sqrt(root)) / a, (b + math.sqrt(root)) / a
    return (float(low), float(high)) if low > 0 else (None, None)


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """The p-values of a family of tests, adjusted by Holm (1979); NaN stands for no test."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p)  # NaN last
    left = np.isfinite(p).sum() - np.arange(len(p))
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, left * p[order]))
    return adjusted
