"""`check_policy` and `check_stop_rule` find strategies that violate a property."""

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bass.interfaces import DraftLengthPolicy, StopRule
from bass.testing import check_policy, check_stop_rule
from bass.testing import properties_of_policies as properties
from bass.testing.checking import NO_ERROR
from support.matrix import night
from unit.test_testing_broken_drafters import violation

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


class Mutating(Steps):
    def update(self, state: Any, feedback: Any) -> Any:
        state[1] += 1
        return state


class Greedy(Steps):
    """Takes from the feedback what it likes."""

    def update(self, state: Any, feedback: Any) -> Any:
        feedback.accepted[:] = 0
        return [state[0], state[1] + 1]


class Rolling(Steps):
    def lengths(self, state: Any) -> Any:
        return np.random.randint(0, 4, state[0])


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


class OnDevice(Steps):
    def init(self, batch_size: int) -> Any:
        return [batch_size, 0, torch.zeros(1)]

    def update(self, state: Any, feedback: Any) -> Any:
        return [state[0], state[1] + 1, state[2]]


class RarelyInPlace(Steps):
    """Writes to its state when a row after the third begins a new prompt while the first goes
    on.
    """

    def reset(self, state: Any, rows: Any) -> Any:
        if rows.min() > 2:
            state[1] = 0
        return [state[0], 0]


@pytest.mark.parametrize(
    ("policy", "property", "found"),
    [
        night(OneTooMany, NO_ERROR, "holds 4; every length must be"),
        (Floats, NO_ERROR, "returned float64 of shape [1]"),
        (Mutating, properties.STATE.format("update"), "[1, 1]"),
        night(RarelyInPlace, properties.STATE.format("reset"), ""),
        night(Greedy, properties.FEEDBACK, "accepted=array([0"),
        (Rolling, properties.TWICE, ""),
        (Counting, properties.SAME, ""),
        (OnSelf, properties.TWICE, ""),
        (OnDevice, properties.HOST, "tensor"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_the_check_names_the_property_that_a_policy_violates(
    policy: type, property: str, found: str
) -> None:
    broken = violation(check_policy, policy, examples=40)
    assert broken.property == property
    assert found in broken.found
    assert str(broken).startswith(
        f"`{policy.__name__}` violates a property: {property}\n  expected: "
    )
    assert re.match(r"\[StepEvents\(new=\[[^]]*\], active=\[\w+(, \w+){,4}\]", broken.case)
    assert broken.case.count("StepEvents(") <= 5


class Decisive(StopRule):
    """Correct: ends where the mode is clear."""

    def __call__(self, draft_probs: Any, so_far: int) -> Any:
        return draft_probs.amax(1) > 0.5


def rule(name: str, answer: Callable[[Tensor], Any]) -> type[Decisive]:
    """A rule that answers so."""
    return type(name, (Decisive,), {"__call__": lambda self, probs, so_far: answer(probs)})


calls = itertools.count()
# the same for rows in any order, but of all of them together
Mean = rule("Mean", lambda p: (p.amax(1).mean() > 0.5).expand(len(p)))
WholeBatch = rule("WholeBatch", lambda p: p.amax() > 0.5)
Overwriting = rule("Overwriting", lambda p: p.mul_(2).amax(1) > 1)
# ends the first row's draft in a batch of more than five
FullBatch = rule(
    "FullBatch", lambda p: (p.amax(1) > 0.5) | (torch.arange(len(p)) == 0) & (len(p) > 5)
)
TopFive = rule("TopFive", lambda p: p.topk(5).values.sum(1) < 0.9)  # correct: needs five tokens


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        night(Mean, [properties.OWN]),
        (WholeBatch, [properties.ANSWER]),
        (Overwriting, [properties.PURE]),
        night(FullBatch, [properties.OWN]),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_the_check_names_the_property_that_a_rule_violates(
    broken: type, expected: list[str]
) -> None:
    error = violation(check_stop_rule, broken, examples=40)
    assert error.property in expected
    assert error.case.startswith("RuleInput(probs=array([[")
    assert len(error.case) < 700


@pytest.mark.parametrize(
    ("check", "strategy"),
    [(check_policy, Steps), night(check_stop_rule, Decisive), (check_stop_rule, TopFive)],
)
def test_the_strategies_that_these_are_made_from_violate_nothing(
    check: Callable[..., None], strategy: type
) -> None:
    check(strategy, examples=3)
