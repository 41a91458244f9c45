"""Intervals cover the truth as often as they say, comparisons find what was planted and raise false
alarms at the stated rate.

All draws are seeded. A bound on a share of n runs is the stated probability, more or less 4.9
standard errors: a correct method would miss it for one seed in a million.
"""

import math
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bass.analysis.statistics import (
    FEW,
    bootstrap,
    compare,
    interval,
    intervals,
    mean,
    ratio,
    student,
    student_quantile,
)
from bass.errors import OptionError

FAR = 4.9  # standard errors


def slack(p: float, runs: int) -> float:
    return FAR * math.sqrt(p * (1 - p) / runs)


@pytest.mark.parametrize(
    ("freedom", "level", "t"),
    [
        (1, 0.95, 12.706),
        (2, 0.95, 4.303),
        (3, 0.95, 3.182),
        (3, 0.99, 5.841),
        (4, 0.9, 2.132),
        (10, 0.95, 2.228),
        (29, 0.99, 2.756),
        (120, 0.95, 1.980),
    ],
)
def test_student_quantiles_are_those_of_the_tables(freedom: int, level: float, t: float) -> None:
    assert student_quantile(freedom, level) == pytest.approx(t, abs=5e-4)


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_student_intervals_of_few_normal_values_cover_at_exactly_their_level(
    n: int, level: float
) -> None:
    draws = np.random.default_rng(n).normal(3.0, 2.0, (3000, n))
    found = [student(values, level) for values in draws]
    assert abs(np.mean([i.low <= 3.0 <= i.high for i in found]) - level) < slack(level, 3000)


def test_the_bootstrap_of_three_values_would_cover_far_less_than_it_claims() -> None:
    """Why there is Student's t: three of a symmetric law are on one side of its mean every fourth
    time.
    """
    draws = np.random.default_rng(0).normal(size=(300, 3, 1))
    found = [bootstrap(values, resamples=200, seed=i) for i, values in enumerate(draws)]
    assert np.mean([i.low <= 0 <= i.high for i in found]) < 0.75 + slack(0.75, 300)


LAWS: dict[str, tuple[float, Callable[[np.random.Generator], np.ndarray]]] = {
    "normal": (0.0, lambda random: random.normal(size=60)),
    "geometric": (5.0, lambda random: random.geometric(0.2, size=60).astype(float)),
    "exponential": (1.0, lambda random: random.exponential(size=60)),
}


@pytest.mark.parametrize("law", LAWS)
def test_bootstrap_intervals_cover_near_their_level(law: str) -> None:
    """95 % is claimed;

    3 points are allowed for 60 values of a skewed law, beside the error of 250 runs.
    """
    truth, draw = LAWS[law]
    random = np.random.default_rng(7)
    found = [bootstrap(draw(random)[:, None], resamples=400, seed=i) for i in range(250)]
    covered = np.mean([i.low <= truth <= i.high for i in found])
    assert 0.92 - slack(0.92, 250) < covered
    assert np.mean([i.high - i.low for i in found]) < 1.2 * np.mean(
        [2 * 1.96 * draw(random).std() / math.sqrt(60) for _ in range(250)]
    )


@pytest.mark.parametrize("n", [5, 40, 300])
def test_intervals_of_many_columns_are_those_of_each(n: int) -> None:
    random = np.random.default_rng(n)
    values = np.stack([random.random(n), random.integers(0, 2, n), np.full(n, 0.1)], 1)
    for found, column in zip(intervals(values), values.T, strict=True):
        alone = student(column) if n < FEW else bootstrap(column[:, None])
        assert found.method == alone.method
        for name in ("estimate", "low", "high"):
            assert getattr(found, name) == pytest.approx(getattr(alone, name), abs=1e-12)


def test_an_interval_of_many_values_takes_no_time() -> None:
    """Leaving out each of 60,000 values one by one took ten seconds."""
    began = time.process_time()
    interval(np.random.default_rng(0).random(60_000))
    assert time.process_time() - began < 6


def test_the_bootstrap_takes_pooled_rates() -> None:
    """tau of requests of unequal length: 3 tokens a call, whatever the number of calls."""
    random = np.random.default_rng(3)
    covered = 0
    for i in range(200):
        calls = random.integers(1, 20, 40)
        emitted = random.binomial(4 * calls, 0.75)
        found = bootstrap(np.stack([emitted, calls], 1).astype(float), ratio, resamples=400, seed=i)
        assert found.estimate == emitted.sum() / calls.sum()
        covered += found.low <= 3.0 <= found.high
    assert covered / 200 > 0.92 - slack(0.92, 200)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=50), st.integers(0, 5))
def test_an_interval_holds_its_estimate_and_is_the_same_for_the_same_seed(
    values: list[float], seed: int
) -> None:
    array = np.array(values)
    found = interval(array, seed=seed)
    assert found == interval(array, seed=seed)
    assert found.estimate == pytest.approx(array.mean())
    assert found.low - 1e-9 <= found.estimate <= found.high + 1e-9
    assert found.method == ("student" if len(values) < FEW else "bootstrap")
    if found.method == "bootstrap":
        assert array.min() - 1e-9 <= found.low <= found.high <= array.max() + 1e-9


@pytest.mark.parametrize("n", [2, FEW, 100])
def test_values_that_are_all_equal_leave_no_doubt(n: int) -> None:
    found = interval(np.full(n, 2.5))
    assert (found.estimate, found.low, found.high) == (2.5, 2.5, 2.5)


def test_one_outlier_does_not_break_the_acceleration() -> None:
    values = np.zeros((40, 1))
    values[0] = 1e9
    found = bootstrap(values, level=0.999999)
    assert 0 <= found.low <= found.estimate <= found.high <= 1e9


@pytest.mark.parametrize(("n", "paired"), [(3, False), (3, True), (5, False), (FEW, True)])
def test_equal_runs_are_told_apart_no_more_often_than_stated(n: int, paired: bool) -> None:
    """At 95 %:

    5 of 100, Welch's t fewer for its rounding, the bootstrap of 30 differences up to 3 more.
    """
    random, runs = np.random.default_rng(11), 200 if n >= FEW else 2000
    found = [
        compare(random.normal(size=n), random.normal(size=n), paired, seed=i).beyond_noise
        for i in range(runs)
    ]
    allowed = 0.08 if n >= FEW else 0.05
    assert np.mean(found) < allowed + slack(allowed, runs)


@pytest.mark.parametrize(
    ("n", "paired", "planted"),
    [(3, False, 12.0), (5, True, 8.0), (FEW, True, 2.0), (50, False, 2.0)],
)
def test_a_planted_difference_is_found_and_measured(n: int, paired: bool, planted: float) -> None:
    """In at least 98 of 100 runs; the differences are what each size can see."""
    random = np.random.default_rng(13)
    found = [
        compare(10 + random.normal(size=n), 10 + planted + random.normal(size=n), paired, seed=i)
        for i in range(100)
    ]
    assert np.mean([c.beyond_noise and c.difference.estimate > 0 for c in found]) >= 0.98
    assert np.mean([c.difference.estimate for c in found]) == pytest.approx(
        planted, abs=FAR * math.sqrt(2 / n / 100)
    )
    assert np.mean([c.relative for c in found]) == pytest.approx(planted / 10, rel=0.1)


def test_pairing_sees_what_the_differences_between_requests_would_hide() -> None:
    random = np.random.default_rng(17)
    requests = 100 * random.normal(size=40)
    a, b = requests + random.normal(size=40), requests + 2 + random.normal(size=40)
    assert compare(a, b, paired=True).beyond_noise
    assert not compare(a, b, paired=False).beyond_noise


def test_many_comparisons_at_once_share_their_false_alarms() -> None:
    """Twenty comparisons of equal runs: one alarm in nearly two of three tries if each took 5 %, in
    5 % if they share it.
    """
    random = np.random.default_rng(19)
    tries = [
        [(random.normal(size=4), random.normal(size=4)) for _ in range(20)] for _ in range(150)
    ]
    alone = np.mean([any(compare(a, b, True).beyond_noise for a, b in pairs) for pairs in tries])
    shared = np.mean(
        [any(compare(a, b, True, among=20).beyond_noise for a, b in pairs) for pairs in tries]
    )
    assert shared < 0.05 + slack(0.05, 150)
    assert alone > 1 - 0.95**20 - slack(0.64, 150)


@pytest.mark.parametrize(("count", "paired", "beyond"), [
    (2, True, False), (5, True, False), (6, True, True), (FEW, True, True),
    (3, False, False), (4, False, True),
])  # fmt: skip
def test_equal_differences_are_beyond_noise_only_if_there_are_enough(
    count: int, paired: bool, beyond: bool
) -> None:
    """Six pairs differ in one direction with probability 2 to the -5; any four of eight values are
    the largest, or the smallest, with 2 / 70.
    """
    a = np.full(count, 3.2)
    b = a - 0.3 + (1e-15 * np.arange(count) if count < FEW else 0)  # equal but for rounding
    found = compare(a, b, paired)
    assert (found.beyond_noise, found.count, found.difference.method) == (
        beyond, count, "permutation"
    )  # fmt: skip
    assert found.difference.estimate == pytest.approx(-0.3)
    assert not compare(a, b, paired, among=100).beyond_noise or count >= FEW
    same = compare(a, a, paired)
    assert (same.beyond_noise, same.chance, same.difference.estimate) == (False, 1.0, 0.0)
    assert math.isnan(compare(np.zeros(3), np.ones(3), paired=True).relative)


def test_statistics_take_the_last_axes() -> None:
    values = np.arange(24.0).reshape(3, 4, 2)
    np.testing.assert_array_equal(mean(values), values[..., 0].mean(1))
    np.testing.assert_array_equal(ratio(values), values[..., 0].sum(1) / values[..., 1].sum(1))


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(OptionError, match="at least 2 values, and was given 1"):
        interval(np.array([1.0]))
    with pytest.raises(OptionError, match="at least 2 values, and was given 1"):
        compare(np.ones(1), np.ones(1), paired=True)
    with pytest.raises(OptionError, match="of 3 and 4 values"):
        compare(np.zeros(3), np.zeros(4), paired=True)
    with pytest.raises(OptionError, match="`among=0`"):
        compare(np.zeros(3), np.zeros(3), paired=True, among=0)
    with pytest.raises(OptionError, match="`level="):
        interval(np.zeros(3), level=1.0)
