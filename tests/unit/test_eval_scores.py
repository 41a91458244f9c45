"""The scores are what their papers define, on cases that can be counted by hand."""

import itertools
import math
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bass.analysis.scores import (
    CLOCKS,
    Scored,
    curve,
    mean_pass_at_k,
    pass_at_k,
    point,
    scores_within,
    useful_budgets,
    within,
)
from bass.errors import OptionError
from bass.evaluation.scoring import exact_match, rouge2
from bass.evaluation.tasks import Problem, final_number
from bass.runs.evaluation_folder import Sample


def scored(
    value: float,
    logprob: float = 0.0,
    seconds: float = 1.0,
    finish: str = "eos",
    prefill: float = 0.5,
    sample: int = 0,
) -> Scored:
    return Scored(Sample("p", sample, "", [1], logprob, finish, seconds, seconds + prefill), value)


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_all_choices_of_k_samples_in_which_one_passes(
    samples: int, data: st.DataObject
) -> None:
    passed = data.draw(st.integers(0, samples))
    k = data.draw(st.integers(1, samples))
    choices = list(itertools.combinations([True] * passed + [False] * (samples - passed), k))
    assert pass_at_k(samples, passed, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_pass_at_k_of_many_samples_takes_no_time() -> None:
    """The binomials have 300,000 digits, and their quotient took 30 s."""
    began = time.process_time()
    assert pass_at_k(2**20, 1, 2**19) == pytest.approx(0.5)
    assert pass_at_k(2**20, 2**19, 2**19) == 1.0
    assert time.process_time() - began < 1


@pytest.mark.parametrize("seed", range(20))
def test_scores_within_many_budgets_are_those_within_each(seed: int) -> None:
    draw = random.Random(seed)
    problems = [
        [
            scored(
                draw.choice([0.0, 0.25, 1.0]), draw.choice([-2.0, -1.0]),
                draw.choice([1.0, 2.0, 3.0]), draw.choice(["eos", "time"]), sample=i,
            )
            for i in range(draw.randint(1, 4))
        ]
        for _ in range(10)
    ]  # fmt: skip
    budgets = draw.sample([0.5, 1.0, 2.0, 2.5, math.inf], 4)
    for clock in CLOCKS:
        first, best = scores_within(problems, budgets, clock)
        for i, budget in enumerate(budgets):
            found = [within(group, budget, clock) for group in problems]
            assert [*zip(first[i], best[i], strict=True)] == [one[:2] for one in found]


@pytest.mark.parametrize("k", [0, 4])
def test_pass_at_k_wants_as_many_samples(k: int) -> None:
    with pytest.raises(OptionError, match=rf"pass@{k} needs"):
        pass_at_k(3, 1, k)


def test_first_is_the_finished_sample_with_the_highest_mean_log_probability_and_all_is_any() -> (
    None
):
    problems = [
        [scored(1.0, -2.0), scored(0.0, -1.0)],  # the more probable one fails
        [scored(1.0, -1.0), scored(0.0, -2.0)],
        [scored(1.0, -1.0, seconds=9.0), scored(0.0, -3.0)],  # the right one comes too late
        [scored(1.0, -1.0, finish="time"), scored(0.0, -3.0)],  # it was never finished
        [scored(1.0, seconds=9.0)],  # nothing was finished in time, which counts as failing
    ]
    at = point(problems, 2.0, "prefill")
    assert (at.first, at.all, at.served) == (1 / 5, 2 / 5, 4 / 5)
    assert at.finished == pytest.approx(6 / 9)
    assert point(problems, math.inf, "prefill").all == 4 / 5
    assert mean_pass_at_k(problems, 1) == pytest.approx((0.5 * 4 + 1) / 5)


def test_of_equally_probable_samples_the_first_counts() -> None:
    assert point([[scored(0.0, sample=1), scored(1.0, sample=0)]], 9.0, "start").first == 1.0


def test_the_budget_runs_from_either_clock() -> None:
    group = [[scored(1.0, seconds=1.0, prefill=0.5)]]
    assert (
        point(group, 1.0, "prefill").first,
        point(group, 1.0, "start").first,
        point(group, 1.5, "start").first,
    ) == (1.0, 0.0, 1.0)


@given(
    st.lists(
        st.lists(
            st.tuples(st.booleans(), st.floats(-3, 0), st.floats(0.1, 9)), min_size=1, max_size=4
        ),
        min_size=1,
        max_size=5,
    )
)
def test_with_more_time_more_is_finished_and_all_never_falls_below_first(
    drawn: list[list[tuple[bool, float, float]]],
) -> None:
    problems = [
        [scored(float(v), p, s, sample=i) for i, (v, p, s) in enumerate(group)] for group in drawn
    ]
    budgets = useful_budgets(problems)
    points = curve(problems, budgets)
    assert [(p.clock, p.budget) for p in points] == [
        (clock, b) for clock in ("prefill", "start") for b in budgets
    ]
    for a, b in itertools.pairwise(points):
        if a.clock == b.clock:
            assert a.all <= b.all
            assert a.finished <= b.finished
            assert a.served <= b.served
    assert all(p.first <= p.all <= p.served for p in points)
    assert points[-1].finished == 1.0


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("a 1,234.50 b", "1234.5"),
        ("$18.", "18"),
        ("-3.00", "-3"),
        ("7 apples, 8 pears", "8"),
        ("none", None),
        ("5,", "5"),
    ],
)
def test_the_last_number_of_a_text(text: str, number: str | None) -> None:
    assert final_number(text) == number


def test_exact_match_prefers_the_number_after_the_mark() -> None:
    problem = Problem("g", "", (), answer="18")
    assert [
        exact_match(problem, t) for t in ("so 9 * 2 = 18", "#### 18\n and 3 more", "18 of 20", "")
    ] == [1.0, 1.0, 0.0, 0.0]


def test_rouge_2_is_the_f_measure_of_shared_pairs_of_words() -> None:
    pytest.importorskip("rouge_score", reason="the extra `eval` is not installed")
    problem = Problem("s", "", (), reference="the cat sat on the mat")
    assert rouge2(problem, "the cat sat on the mat") == 1.0
    assert rouge2(problem, "a dog") == 0.0
    assert rouge2(problem, "the cat sat there") == pytest.approx(
        2 * (2 / 3) * (2 / 5) / (2 / 3 + 2 / 5)
    )
