"""Each policy's rule, on vectors that follow from its definition."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import bass
from bass.api.resolve import make
from bass.errors import OptionError
from bass.interfaces.policy import captured_lengths
from bass.policies import (
    Bandit,
    BatchAdaptive,
    BatchTable,
    ContextTable,
    EmaTiers,
    Exp3,
    HuggingFaceHeuristic,
    Lagged,
    Oracle,
    RowAdaptive,
    RowBudget,
)
from bass.records import Feedback
from bass.testing import check_policy


def told(
    drafted: list[int], accepted: list[int], active: list[bool] | None = None, seconds: float = 0.01
) -> Feedback:
    return Feedback(
        np.array(drafted), np.array(accepted), np.array(active or [True] * len(drafted)), seconds
    )


def test_algorithm_1_per_row_is_algorithm_1_of_a_batch_of_one() -> None:
    random = np.random.default_rng(3)
    policy, single = RowAdaptive(max_length=32), BatchAdaptive()
    state, states = policy.init(4), [single.init(1) for _ in range(4)]
    for _ in range(300):
        lengths = policy.lengths(state)
        assert lengths.tolist() == [int(single.lengths(s)[0]) for s in states]
        accepted = np.minimum(random.geometric([0.5, 0.2, 0.1, 0.02]) - 1, lengths)
        state = policy.update(state, Feedback(lengths, accepted, np.ones(4, dtype=bool), 0.01))
        states = [
            single.update(s, told([int(n)], [int(x)]))
            for s, n, x in zip(states, lengths, accepted, strict=True)
        ]
    assert policy.lengths(policy.reset(state, np.array([2])))[2] == 7


def test_the_heuristic_adds_two_after_a_whole_draft_and_else_takes_one() -> None:
    policy = HuggingFaceHeuristic(start=2, max_length=5)
    state = policy.update(policy.init(4), told([2, 2, 0, 1], [2, 1, 0, 1]))
    # whole, not whole, nothing drafted, whole though cut short
    assert state.tolist() == [4, 1, 2, 4]
    assert policy.update(
        state, told([4, 1, 2, 4], [4, 0, 0, 0], [True, True, False, True])
    ).tolist() == [5, 1, 2, 3]
    assert policy.reset(state, np.array([0, 1])).tolist() == [2, 2, 2, 4]
    assert HuggingFaceHeuristic(start=2, transient=False).reset(
        state, np.array([0, 1])
    ).tolist() == [4, 1, 2, 4]


def test_a_policy_that_needs_more_drafters_than_a_run_has_is_an_error_at_load() -> None:
    policy = Exp3(arms=(0, (1, 2), (0, 3)))
    assert (policy.drafters, Lagged(policy).drafters, Exp3().drafters) == (2, 2, 1)
    with pytest.raises(bass.BassError, match=r"`Exp3` chooses from 2 drafters, and the run has 1"):
        bass.load(policy=policy)
    assert bass.load(policy=policy, drafter="choice")
    check_policy(policy, examples=4)


def test_the_table_is_read_at_the_number_of_active_rows() -> None:
    policy = BatchTable([[1, 1, 5], [2, 3, 2], [4, 8, 0]])
    assert policy.max_length == 5
    state = policy.init(9)
    assert policy.lengths(state).tolist() == [0] * 9  # more than the table names
    for active, k in ((1, 5), (2, 2), (3, 2), (4, 0), (8, 0)):
        state = policy.update(
            policy.init(9), told([0] * 9, [0] * 9, [b < active for b in range(9)])
        )
        assert policy.lengths(state).tolist() == [k] * 9
    assert (
        policy.lengths(
            policy.reset(
                policy.update(state, told([0] * 9, [0] * 9, [True] + [False] * 8)), np.array([4])
            )
        ).tolist()
        == [2] * 9
    )


def test_tiers_are_climbed_by_the_average_and_left_with_hysteresis() -> None:
    policy = EmaTiers(warmup=0, interval=1, alpha=1.0)
    state = policy.init(1)
    seen = []
    for accepted in (3, 7, 3, 2, 2, 1, 0, 0, 1):
        k = int(policy.lengths(state)[0])
        seen.append(k)
        state = policy.update(state, told([k], [min(accepted, k)]))
    # 3 is left at e = 3 > 2.5; 7 at e <= 2.25; 3 at e <= 0.25; 1 at e > 0.5.
    assert seen == [3, 7, 7, 7, 3, 3, 3, 1, 1]
    assert policy.lengths(state).tolist() == [3]
    slow = EmaTiers()
    state = slow.init(2)
    for _ in range(10):
        state = slow.update(state, told([3, 3], [3, 3]))
        assert slow.lengths(state).tolist() == [3, 3]  # it warms up


def test_a_budget_goes_to_the_rows_that_accept() -> None:
    policy = RowBudget(budget=12, max_length=8)
    state = policy.init(3)
    assert policy.lengths(state).tolist() == [4, 4, 4]
    for _ in range(50):
        drafted = policy.lengths(state)
        assert drafted.sum() == 12
        state = policy.update(
            state,
            Feedback(
                drafted,
                np.array([drafted[0], 0, (drafted[2] + 1) // 2]),
                np.ones(3, dtype=bool),
                0.01,
            ),
        )
    assert policy.lengths(state)[0] > policy.lengths(state)[2] > policy.lengths(state)[1]
    idle = policy.update(
        state,
        Feedback(
            np.zeros(3, dtype=int), np.zeros(3, dtype=int), np.array([False, True, True]), 0.01
        ),
    )
    assert policy.lengths(idle)[0] == 0
    assert policy.lengths(policy.reset(idle, np.array([0])))[0] > 0


def test_a_budgets_split_accepts_the_most_that_any_split_can() -> None:
    """Against every split of five tokens over three rows of known acceptance."""
    a = np.array([0.9, 0.5, 0.2])
    policy = RowBudget(budget=5, max_length=5, strength=1e-9, acceptance=0.5)
    chosen = policy.lengths(type(policy.init(3))(np.full(3, 1e3), 1e3 * a, np.ones(3, dtype=bool)))

    def worth(split: tuple[int, ...]) -> float:
        return sum(
            float((row ** np.arange(1, n + 1)).sum()) for row, n in zip(a, split, strict=True)
        )

    splits = [(i, j, 5 - i - j) for i in range(6) for j in range(6 - i)]
    assert worth(tuple(int(n) for n in chosen)) == pytest.approx(max(map(worth, splits)))


def test_a_bandit_tries_every_arm_in_each_context_and_settles_on_the_best() -> None:
    policy = Bandit(max_length=4)
    state, seen = policy.init(2), []
    for step in range(400):
        k = int(policy.lengths(state)[0])
        seen.append(k)
        active = [True, step < 200]
        accepted = min(k, 2)  # two tokens are worth 1 + 2 over 1 + 0.1 k: best at k = 2
        state = policy.update(state, told([k, k], [accepted, accepted], active, 1 + 0.1 * k))
    assert seen[:5] == [0, 1, 2, 3, 4]
    assert seen[201:206] == [0, 1, 2, 3, 4]  # a new number of rows is a new context
    assert np.bincount(seen).argmax() == 2
    assert np.mean(np.array(seen[100:200]) == 2) > 0.5


def test_an_oracle_asks_for_what_its_trace_says_request_by_request() -> None:
    policy = Oracle(np.array([[2, 0, 5], [1, 3, 4]]), max_length=4)
    state = policy.init(2)
    assert policy.lengths(state).tolist() == [0, 0]
    state = policy.reset(state, np.array([0, 1]))
    assert policy.lengths(state).tolist() == [2, 0]
    state = policy.update(state, told([2, 0], [2, 0], [True, True]))
    assert policy.lengths(state).tolist() == [1, 3]
    state = policy.reset(state, np.array([1]))
    assert policy.lengths(state).tolist() == [1, 4]
    state = policy.update(policy.update(state, told([1, 4], [1, 4])), told([0, 0], [0, 0]))
    assert policy.lengths(state).tolist() == [0, 0]  # the trace has ended


def test_lagged_feedback_arrives_so_many_steps_late() -> None:
    policy, lagged = HuggingFaceHeuristic(), Lagged(HuggingFaceHeuristic(), 2)
    state, late, expected = policy.init(1), lagged.init(1), [5, 5]
    for accepted in (1, 0, 5, 2, 2):
        expected.append(int(policy.lengths(state)[0]))
        assert lagged.lengths(late).tolist() == [expected[-3]] if len(expected) > 2 else True
        feedback = told([5], [accepted])
        state, late = policy.update(state, feedback), lagged.update(late, feedback)
    assert lagged.lengths(late).tolist() == [expected[-2]]


def test_lagged_feedback_of_an_old_prompt_does_not_reach_the_new_one() -> None:
    policy = Lagged(HuggingFaceHeuristic(), 1)
    state = policy.update(policy.init(2), told([5, 5], [5, 5]))
    state = policy.reset(state, np.array([0]))
    state = policy.update(state, told([5, 5], [0, 0]))
    assert policy.lengths(state).tolist() == [5, 7]


def test_exp3_raises_the_weight_of_the_drawn_arm_by_the_reward_over_its_probability() -> None:
    """With K = 2 and rate 0.5 each probability is at first a half, so ln w = 0.5 r / (0.5 x 2)."""
    policy = Exp3(arms=(0, 4), rate=0.5, seed=1)
    state = policy.init(2)
    k = int(policy.lengths(state)[0])
    drawn = policy.arms.index(k)
    first = policy.update(state, told([k, k], [0, k], seconds=0.01))  # the highest so far: r = 1
    expected = [-0.5, -0.5]
    expected[drawn] = 0.0
    np.testing.assert_allclose(first.log_weights, expected)
    assert (first.highest, first.steps) == ((2 + k) / 2 / 0.01, 1)
    slow = told([k, k], [0, k], seconds=0.04)
    again = policy.update(state._replace(highest=first.highest), slow)
    assert np.ptp(again.log_weights) == pytest.approx(0.5 / 4)  # a quarter of the highest
    assert policy.update(state, told([0, 0], [0, 0], [False, False])) is state


def test_exp3_draws_by_its_probabilities_and_its_seed_and_finds_the_best_arm() -> None:
    policy, state = Exp3(arms=(0, 2, 4), rate=0.3), Exp3(arms=(0, 2, 4)).init(1)
    state = state._replace(log_weights=np.log([1, 0.5, 0.5]))
    drawn = [int(policy.lengths(state._replace(steps=t))[0]) for t in range(4000)]
    # 0.7 / 2 + 0.1, 0.7 / 4 + 0.1 twice; standard deviation 0.008
    np.testing.assert_allclose(np.bincount(drawn)[::2] / 4000, [0.45, 0.275, 0.275], atol=0.03)
    other = replace(policy, seed=1)
    assert drawn[:9] != [int(other.lengths(state._replace(steps=t))[0]) for t in range(9)]
    for _ in range(400):
        k = int(policy.lengths(state)[0])
        state = policy.update(state, told([k], [min(k, 2)], seconds=0.01 * (1 + 0.1 * k)))
    assert np.argmax(state.log_weights) == 1


def test_exp3_finds_the_best_of_lengths_of_several_drafters() -> None:
    spec = {"class_path": "exp3", "init_args": {"arms": [0, [1, 2], 2, [1, 4]], "rate": 0.3}}
    policy = make("policy", spec)
    assert policy == Exp3(arms=(0, (1, 2), 2, (1, 4)), rate=0.3)
    assert (policy.max_length, captured_lengths(policy)) == (4, (0, 2, 4))
    state, drawn = policy.init(1), set[tuple[int, int]]()
    for _ in range(500):
        k, part = int(policy.lengths(state)[0]), policy.drafter(state)
        drawn.add((part, k))
        accepted = min(k, 3) if part else 0  # of the second one all
        state = policy.update(state, told([k], [accepted], seconds=0.01 * (1 + 0.1 * k)))
    assert drawn == {(0, 0), (1, 2), (0, 2), (1, 4)}
    assert np.argmax(state.log_weights) == 3


def test_the_table_is_read_at_the_active_rows_and_their_mean_context() -> None:
    policy = ContextTable([[1, 100, 5], [1, 900, 6], [3, 100, 2], [3, 900, 4]])
    assert policy.max_length == 6
    cases = (
        ([10, 0, 0], [True, False, False], 5),
        ([98, 0, 0], [True, False, False], 5),  # 100 after the step, which committed two
        ([99, 0, 0], [True, False, False], 6),
        ([10, 99, 0], [True, True, False], 2),
        ([180, 99, 0], [True, True, False], 4),
        ([2000, 2000, 2000], [True, True, True], 4),  # the last row
        ([2000, 0, 0], [True, False, False], 4),
    )
    for lens, active, k in cases:
        feedback = replace(told([1] * 3, [1] * 3, active), lens=np.array(lens))
        state = policy.update(policy.init(3), feedback)
        assert policy.lengths(state).tolist() == [k] * 3
    started = policy.reset(state, np.array([1, 2]))  # whose contexts are not known yet
    assert policy.lengths(started).tolist() == [4] * 3
    assert policy.lengths(policy.init(3)).tolist() == [2] * 3
    counted = policy.init(1)
    for _ in range(51):  # without `lens`, tokens since the prompt: two of each step
        assert policy.lengths(counted).tolist() == [5]
        counted = policy.update(counted, told([1], [1]))
    assert policy.lengths(counted).tolist() == [6]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Exp3(arms=()), r"`Exp3\(arms=\(\)\)` must be different lengths"),
        (lambda: Exp3(arms=(1, 1)), "must be different lengths"),
        (lambda: Exp3(arms=(1, (0, 1))), "must be different lengths"),
        (lambda: Exp3(arms=(0, (1, 0))), "must be different lengths"),
        (lambda: Exp3(arms=((-1, 2),)), r"or pairs `\[drafter, k\]`, of integers of 0"),
        (lambda: ContextTable([[1, 2]]), "must be rows"),
        (lambda: ContextTable([]), "must be rows"),
    ],
)
def test_tables_and_arms_that_make_no_sense_are_refused(make: Any, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        make()
