"""The formulas of the stop rules by hand, their ranges, and what they may depend on."""

import math

import pytest
import torch
from hypothesis import strategies as st

from bass.interfaces import StopRule
from bass.stop_rules import STOP_RULES, Confidence, Entropy
from bass.testing.checking import Checker
from bass.testing.inputs import SEEDS
from bass.testing.properties_of_policies import RuleInput, answers

HALF, QUARTER = [0.5, 0.5, 0.0, 0.0], [0.25] * 4  # of ln 2 = 0.693 and ln 4 = 1.386 nats
SURE, LIKELY = [1.0, 0.0, 0.0, 0.0], [0.9, 0.1, 0.0, 0.0]  # of 0 and 0.325 nats


def fires(rule: StopRule, *rows: list[float]) -> list[bool]:
    return rule(torch.tensor(rows), 0).tolist()


def test_confidence_ends_a_draft_below_its_threshold_and_not_at_it() -> None:
    assert fires(Confidence(), SURE, LIKELY, HALF, QUARTER) == [False, False, False, True]
    assert fires(Confidence(0.5), HALF, [0.49, 0.51, 0.0, 0.0], [0.49, 0.49, 0.02, 0.0]) == [
        False,
        False,
        True,
    ]
    assert fires(Confidence(1.0), SURE, LIKELY) == [False, True]


def test_entropy_ends_a_draft_where_its_bound_is_below_the_threshold() -> None:
    """1 - sqrt(0.2 H): 1, 0.745, 0.628, 0.473."""
    assert fires(Entropy(), SURE, LIKELY, HALF, QUARTER) == [False, False, False, True]
    bound = 1 - math.sqrt(0.2 * math.log(2))
    assert fires(Entropy(bound - 1e-3), HALF) == [False]
    assert fires(Entropy(bound + 1e-3), HALF) == [True]
    assert fires(Entropy(bound + 1e-3, gamma=0.19), HALF) == [False]
    assert fires(Entropy(-0.1, gamma=1.0), LIKELY, HALF, QUARTER) == [False, False, True]


def test_at_the_threshold_of_svip_a_draft_ends_where_the_root_of_its_entropy_is_above_another() -> (
    None
):
    assert fires(Entropy(0.6536), SURE, LIKELY, HALF, QUARTER) == [False, False, True, True]
    root = 0.3 / math.sqrt(0.15)
    assert math.isclose(1 - math.sqrt(0.2) * root, 0.6536, abs_tol=1e-4)


@pytest.mark.parametrize("name", STOP_RULES)
def test_a_rule_keeps_its_contract_for_any_distributions(name: str) -> None:
    checker = Checker(name, examples=40)
    sizes = st.integers(1, 5), st.integers(6, 8), st.integers(0, 5), SEEDS
    inputs = st.builds(RuleInput.drawn, *sizes)
    checker.for_all(inputs, lambda one: answers(checker, STOP_RULES[name](), one))


@pytest.mark.parametrize("name", STOP_RULES)
def test_a_rule_ends_a_draft_at_a_uniform_distribution_and_never_at_a_certain_one(
    name: str,
) -> None:
    rule = STOP_RULES[name]()
    for dtype in (torch.float32, torch.float64):
        assert rule(torch.full((2, 1000), 1e-3, dtype=dtype), 0).all()
        assert not rule(torch.eye(5, dtype=dtype), 0).any()
