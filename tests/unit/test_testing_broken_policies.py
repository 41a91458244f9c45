"""The public kit finds out policies and stop rules that break a law, names it, and shows a small
case.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bass.interfaces import DraftLengthPolicy, StopRule
from bass.testing import ExactnessError, check_policy, check_stop_rule
from bass.testing import laws_of_policies as policies
from bass.testing import laws_of_stop_rules as rules
from bass.testing.proof import NO_ERROR
from support.matrix import night

pytestmark = pytest.mark.usefixtures("unchecked")


class Steps(DraftLengthPolicy[list[int]]):
    """Correct: lengths follow the step's number."""

    max_length = 3

    def init(self, batch_size: int) -> Any:
        return [batch_size, 0]

    def lengths(self, state: Any) -> Any:
        return np.full(state[0], state[1] % 4)

    def update(self, state: Any, feedback: Any) -> Any:
        return [state[0], state[1] + 1]


class OneTooMany(Steps):
    def lengths(self, state: Any) -> Any:
        return np.full(state[0], state[1] % 5)


class Floats(Steps):
    def lengths(self, state: Any) -> Any:
        return np.full(state[0], 1.0)


class OneForAll(Steps):
    def lengths(self, state: Any) -> Any:
        return np.array([2])


class Lists(Steps):
    def lengths(self, state: Any) -> Any:
        return [1] * state[0]


class Mutating(Steps):
    def update(self, state: Any, feedback: Any) -> Any:
        state[1] += 1
        return state


class MutatingWhenReset(Steps):
    def reset(self, state: Any, rows: Any) -> Any:
        state[1] = 0
        return state


class Greedy(Steps):
    """Takes from the feedback what it likes."""

    def update(self, state: Any, feedback: Any) -> Any:
        feedback.accepted[:] = 0
        return [state[0], state[1] + 1]


class OfTheHour(Steps):
    def lengths(self, state: Any) -> Any:
        return np.full(state[0], int(time.time() * 10) % 4)


class Rolling(Steps):
    def lengths(self, state: Any) -> Any:
        return np.random.randint(0, 4, state[0])


class Rng(Steps):
    """A generator in the state, which every look at the lengths moves on."""

    def init(self, batch_size: int) -> Any:
        return [batch_size, 0, np.random.default_rng(0)]

    def lengths(self, state: Any) -> Any:
        return state[2].integers(0, 4, state[0])


class Counting(Steps):
    """Keeps count outside the state."""

    calls = 0

    def update(self, state: Any, feedback: Any) -> Any:
        type(self).calls += 1
        return [state[0], self.calls]


class OnSelf(Steps):
    """Keeps everything on itself, and begins again with each run."""

    def init(self, batch_size: int) -> Any:
        self.kept = np.full(batch_size, 3)

    def lengths(self, state: Any) -> Any:
        return self.kept

    def update(self, state: Any, feedback: Any) -> Any:
        self.kept = np.minimum(feedback.accepted, 2)


class Queue(Steps):
    """Changes a deque in place."""

    def init(self, batch_size: int) -> Any:
        return [batch_size, 0, deque([1], maxlen=2)]

    def update(self, state: Any, feedback: Any) -> Any:
        state[2].append(int(feedback.accepted.max()))
        return [state[0], state[1] + 1, state[2]]


class OnDevice(Steps):
    def init(self, batch_size: int) -> Any:
        return [batch_size, 0, torch.zeros(1)]

    def update(self, state: Any, feedback: Any) -> Any:
        return [state[0], state[1] + 1, state[2]]


class Unsteady(Steps):
    constant_length = True


class RarelyInPlace(Steps):
    """Writes to its state when a row after the third begins a new prompt while the first goes
    on.
    """

    def reset(self, state: Any, rows: Any) -> Any:
        if rows.min() > 2:
            state[1] = 0
        return [state[0], 0]


class Failing(Steps):
    def reset(self, state: Any, rows: Any) -> Any:
        if len(rows) == 2:
            raise KeyError("two")
        return state


@pytest.mark.parametrize(
    ("policy", "law", "found"),
    [
        night(OneTooMany, policies.LENGTHS, "[4]"),
        (Floats, policies.LENGTHS, "float64 of shape [1]: [1.0]"),
        (OneForAll, policies.LENGTHS, "int64 of shape [1]: [2]"),
        (Lists, policies.LENGTHS, "list: [1]"),
        (Mutating, policies.STATE.format("update"), "[1, 1]"),
        night(MutatingWhenReset, policies.STATE.format("reset"), ""),
        night(RarelyInPlace, policies.STATE.format("reset"), ""),
        night(Greedy, policies.FEEDBACK, "accepted [0]"),
        (OfTheHour, policies.TWICE, ""),
        (Rolling, policies.TWICE, ""),
        (Rng, policies.STATE.format("lengths"), "Generator"),
        (Counting, policies.SAME, ""),
        (OnSelf, policies.TWICE, ""),
        (Queue, policies.STATE.format("update"), "deque"),
        (OnDevice, policies.HOST, "tensor"),
        night(Unsteady, policies.STEADY, ""),
        (Failing, NO_ERROR, "KeyError: 'two'"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_policy_that_breaks_a_law_is_told_which_and_where(
    policy: type, law: str, found: str
) -> None:
    with pytest.raises(ExactnessError) as error:
        check_policy(policy, examples=40)
    broken = error.value
    assert broken.law == law
    assert found in broken.found
    assert str(broken).startswith(f"`{policy.__name__}` violates a property: {law}\n  expected: ")
    assert broken.case.startswith(("1 row(s); step 1", "2 row(s); step 1", "4 row(s); step 1"))
    assert broken.case.count("step") <= 5
    assert len(str(broken).splitlines()) == 4


class Decisive(StopRule):
    """Correct: ends where the mode is clear."""

    def __call__(self, draft_probs: Any, so_far: int) -> Any:
        return draft_probs.amax(1) > 0.5


class OtherRow(Decisive):
    def __call__(self, draft_probs: Tensor, so_far: int) -> Any:
        return draft_probs.roll(1, 0).amax(1) > 0.5


class Mean(Decisive):
    """The same for rows in any order, but of all of them together."""

    def __call__(self, draft_probs: Tensor, so_far: int) -> Any:
        return (draft_probs.amax(1).mean() > 0.5).expand(len(draft_probs))


class Place(Decisive):
    def __call__(self, draft_probs: Tensor, so_far: int) -> Any:
        return torch.arange(len(draft_probs)) % 2 == 0


class Numbers(Decisive):
    def __call__(self, draft_probs: Tensor, so_far: int) -> Any:
        return draft_probs.argmax(1)


class WholeBatch(Decisive):
    def __call__(self, draft_probs: Tensor, so_far: int) -> Any:
        return draft_probs.amax() > 0.5


class Overwriting(Decisive):
    def __call__(self, draft_probs: Tensor, so_far: int) -> Any:
        return draft_probs.mul_(2).amax(1) > 1


class Alternating(Decisive):
    calls = 0

    def __call__(self, draft_probs: Tensor, so_far: int) -> Any:
        type(self).calls += 1
        return torch.full((len(draft_probs),), self.calls % 2 == 0)


class FullBatch(Decisive):
    """Ends the first row's draft in a batch of more than five."""

    def __call__(self, draft_probs: Tensor, so_far: int) -> Any:
        first = (torch.arange(len(draft_probs)) == 0) & (len(draft_probs) > 5)
        return (draft_probs.amax(1) > 0.5) | first


class TopFive(Decisive):
    """Correct: needs five tokens."""

    def __call__(self, draft_probs: Tensor, so_far: int) -> Any:
        return draft_probs.topk(5).values.sum(1) < 0.9


@pytest.mark.parametrize(
    ("rule", "laws"),
    [
        night(OtherRow, [rules.OWN]),
        night(Mean, [rules.OWN]),
        night(Place, [rules.OWN]),
        night(Numbers, [rules.ANSWER]),
        (WholeBatch, [rules.ANSWER]),
        (Overwriting, [rules.PURE]),
        night(Alternating, [rules.PURE]),
        night(FullBatch, [rules.OWN]),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_stop_rule_that_breaks_a_law_is_told_which_and_where(rule: type, laws: list[str]) -> None:
    with pytest.raises(ExactnessError) as error:
        check_stop_rule(rule, examples=40)
    assert error.value.law in laws
    assert error.value.case.startswith("distributions [[")
    assert len(error.value.case) < 600


@pytest.mark.parametrize(
    ("check", "strategy"),
    [
        (check_policy, Steps),
        night(check_stop_rule, Decisive),
        (check_stop_rule, TopFive),
    ],
)
def test_what_the_broken_ones_were_made_from_breaks_no_law(
    check: Callable[..., None], strategy: type
) -> None:
    check(strategy, examples=3)
