"""The formulas of the stop rules by hand, their ranges, and what they may depend on."""

import inspect
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bass.api.resolve import make
from bass.interfaces import StopRule
from bass.stop_rules import STOP_RULES, Confidence, Entropy, Svip

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


def test_svip_ends_a_draft_where_the_root_of_its_entropy_is_above_the_threshold() -> None:
    assert fires(Svip(), SURE, LIKELY, HALF, QUARTER) == [False, False, True, True]
    root = math.sqrt(math.log(4))
    assert fires(Svip(root - 1e-3), QUARTER) == [True]
    assert fires(Svip(root + 1e-3), QUARTER) == [False]
    assert fires(Svip(0.0), SURE, LIKELY) == [False, True]
    assert math.isclose(Svip().threshold, 0.3 / math.sqrt(0.15), abs_tol=1e-3)


@pytest.mark.parametrize("name", STOP_RULES)
@given(data=st.data())
def test_a_rule_answers_for_each_row_alone_and_in_every_precision(
    name: str, data: st.DataObject
) -> None:
    rule, rows = STOP_RULES[name](), data.draw(st.integers(1, 5))
    weights = data.draw(
        st.lists(
            st.lists(st.integers(0, 9), min_size=6, max_size=6).filter(any),
            min_size=rows,
            max_size=rows,
        )
    )
    probs = torch.tensor(weights, dtype=torch.float64)
    probs /= probs.sum(1, keepdim=True)
    together = rule(probs, 3)
    assert together.dtype == torch.bool
    assert together.tolist() == [bool(rule(probs[b : b + 1], 3)) for b in range(rows)]
    assert together.flip(0).tolist() == rule(probs.flip(0), 3).tolist()


@pytest.mark.parametrize("name", STOP_RULES)
def test_a_rule_ends_a_draft_at_a_uniform_distribution_and_never_at_a_certain_one(
    name: str,
) -> None:
    rule = STOP_RULES[name]()
    for dtype in (torch.float32, torch.float64):
        assert rule(torch.full((2, 1000), 1e-3, dtype=dtype), 0).all()
        assert not rule(torch.eye(5, dtype=dtype), 0).any()


@pytest.mark.parametrize("name", STOP_RULES)
def test_a_rule_is_given_no_token_and_says_where_it_comes_from(name: str) -> None:
    assert list(inspect.signature(STOP_RULES[name].__call__).parameters) == [
        "self",
        "draft_probs",
        "so_far",
    ]
    assert STOP_RULES[name].paper
    assert make("stop_rule", name) == STOP_RULES[name]()
