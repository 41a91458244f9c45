"""Intervals and comparisons: their rates under equal settings, and their bounds."""

import math

import numpy as np
import pytest
from scipy import stats

from bass.analysis.statistics import compare, holm, interval
from support.matrix import night

LAWS = {
    "normal": lambda rng, size: rng.normal(10, 1, size),
    "geometric": lambda rng, size: rng.geometric(0.3, size).astype(float),
    "lognormal": lambda rng, size: rng.lognormal(0, 1, size),
}
FAMILIES = 200  # of m comparisons each
# 5 % of them, plus what chance adds with a probability of 1e-6
MOST_ALARMS = int(stats.binom.isf(1e-6, FAMILIES, 0.05))


@pytest.mark.parametrize("n", [3, night(10), night(29), 30, night(60)])
@pytest.mark.parametrize("m", [1, 20])
@pytest.mark.parametrize("law", LAWS)
def test_equal_settings_alarm_in_at_most_5_percent_of_families(law: str, m: int, n: int) -> None:
    """False-failure rate 1e-6; a true rate of 18 % fails in 95 of 100 runs."""
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(FAMILIES):
        drawn = LAWS[law](rng, (m, 2, n))
        alarms += min(holm([compare(a, b).p for a, b in drawn])) < 0.05
    assert alarms <= MOST_ALARMS


def test_the_interval_of_a_ratio_holds_1_if_and_only_if_the_test_does_not_reject() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        a, b = rng.lognormal(0, 0.3, 8), rng.lognormal(rng.choice([0, 0.3]), 0.3, 8)
        found = compare(a, b)
        assert found.low is not None
        assert (found.low <= 1 <= found.high) == (found.p >= 0.05)
        assert found.low <= found.ratio <= found.high


def test_the_interval_of_a_ratio_covers_it() -> None:
    """Paired times with a common factor per repeat: 95 % of 2,000 intervals, within 3 sigma."""
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(2000):
        machine = rng.lognormal(0, 0.2, 5)
        found = compare(machine * rng.normal(2, 0.05, 5), machine * rng.normal(1, 0.05, 5))
        covered += found.low is not None and found.low <= 2 <= found.high
    assert covered / 2000 == pytest.approx(0.95, abs=3 * math.sqrt(0.95 * 0.05 / 2000))


def test_a_wide_interval_is_undecided() -> None:
    narrow, wide = compare([2.0, 2.2, 1.9], [1.0, 1.05, 1.0]), compare([1, 9, 30], [8, 1, 2])
    assert narrow.text.startswith("2.00 (1.")
    assert wide.undecided
    assert wide.text == "undecided (n = 3)"
    assert wide.median == 9.0
    assert np.isnan(wide.bounds).all()
    assert narrow.bounds == (narrow.low, narrow.high)
    assert compare([1.0], [2.0]).text == "undecided (n = 1)"
    copies = compare([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])  # repeats that are copies
    assert (copies.p, copies.undecided, copies.ratio) == (1.0, True, 2.0)


def test_holm_adjusts_as_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.01, math.nan, 0.04]) == pytest.approx([0.02, math.nan, 0.04], nan_ok=True)
    assert len(holm([])) == 0


def test_p_is_that_of_the_paired_t_test() -> None:
    a, b = np.array([2.0, 2.5, 1.9, 2.2]), np.array([1.8, 2.6, 1.7, 1.9])
    assert compare(a, b).p == pytest.approx(stats.ttest_rel(a, b).pvalue)


def test_the_interval_of_a_mean_is_students() -> None:
    found = interval([1.0, 2.0, 4.0])
    half = 4.302653 * math.sqrt(7 / 3 / 3)
    assert (found.low, found.high) == pytest.approx((7 / 3 - half, 7 / 3 + half), rel=1e-6)
    assert (interval([1.0]).low, interval([1.0]).n) == (None, 1)
