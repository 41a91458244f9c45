"""Statistical assertions with a bound on the false-failure rate, and on the bias that they detect.

Let p be the distribution of n independent samples over finitely many cells, p̂ the empirical one,
and TV half the L1 distance. Changing one sample changes TV(p̂, p) by at most 1/n, so by McDiarmid's
inequality, for every n,

    P(TV(p̂, p) >= E TV(p̂, p) + s) <= exp(-2 n s²),    E TV(p̂, p) <= ½ Σ sqrt(p_i (1 - p_i) / n).

Hence TV(p̂, p) > `threshold` occurs for a correct engine with a probability of at most
FALSE_FAILURE. If instead the samples follow q with TV(q, p) = δ, then E TV(p̂, p) >= δ
(Jensen: TV is convex and E p̂ = q), so the same inequality, downwards, makes the assertion fail
with probability 1 - MISS or more for every δ >= `detectable`. Nothing here is asymptotic.
"""

import numpy as np
from jaxtyping import Float, Int

FALSE_FAILURE = 1e-6
MISS = 1e-3


Law = Float[np.ndarray, "..."]  # a distribution: of any shape, sums to 1


def threshold(expected: Law, n: int, false_failure: float = FALSE_FAILURE) -> float:
    """The distance that a correct engine exceeds with probability at most `false_failure`."""
    mean = 0.5 * np.sqrt(expected * (1 - expected) / n).sum()
    return float(mean + np.sqrt(np.log(1 / false_failure) / (2 * n)))


def detectable(expected: Law, n: int) -> float:
    """The smallest bias (total variation) that fails the test with probability 1 - MISS."""
    return threshold(expected, n) + float(np.sqrt(np.log(1 / MISS) / (2 * n)))


def distance(counts: Int[np.ndarray, "..."], expected: Law) -> float:
    """Total variation between samples and a distribution."""
    assert counts.shape == expected.shape
    return float(0.5 * np.abs(counts / counts.sum() - expected).sum())


def count(samples: Int[np.ndarray, "n tokens"], vocab: int) -> Int[np.ndarray, "..."]:
    """The number of occurrences of each sequence of tokens: an array with one axis per token."""
    counts = np.zeros((vocab,) * samples.shape[1], dtype=np.int64)
    np.add.at(counts, tuple(samples.T), 1)
    return counts
