"""The public kit proves every registered strategy exact."""

from collections.abc import Iterable
from typing import Any

import pytest

from bass.drafters import DRAFTERS, Replay, Suffix
from bass.policies import POLICIES
from bass.stop_rules import STOP_RULES
from bass.testing import (
    check_drafter,
    check_pair,
    check_policy,
    check_stop_rule,
    check_trim,
    check_verifier,
)
from bass.testing.doubles import ByRow, OwnPast, Unsure
from bass.trims import TRIMS
from bass.verifiers import VERIFIERS
from support.block_heads import WithHead
from support.doubles import Cycle
from support.engines import PAIRINGS
from support.heads import Headed
from support.matrix import by_day, night

pytestmark = pytest.mark.usefixtures("unchecked")  # as a user's pytest has it
FEW = 4
# of those whose properties the laws, too, try in every run
SOME = ("bass", "model", "confidence", "rejection", next(iter(PAIRINGS)))
# of drafters that cannot be made without
ARGUMENTS: dict[str, Any] = {
    "replay": Replay(((1, 2, 0, 1), (0, 2))),
    "eagle": Headed(),
    "mtp": Headed("mtp of mimo"),
    "medusa": WithHead("FasterDecoding"),
    "block": WithHead("z-lab"),
}


def some(names: Iterable[str]) -> list[Any]:
    """The names, those that are not of `SOME` for the night."""
    return by_day(names, SOME)


@pytest.mark.parametrize("policy", [*some(POLICIES), OwnPast(), night(ByRow()), Cycle], ids=str)
def test_every_policy_is_exact(policy: Any) -> None:
    check_policy(policy, examples=FEW)


@pytest.mark.parametrize("rule", [*some(STOP_RULES), night(Unsure())], ids=str)
def test_every_stop_rule_is_exact(rule: Any) -> None:
    check_stop_rule(rule, examples=FEW)


@pytest.mark.parametrize("trim", some(TRIMS))
def test_every_trim_is_exact_or_says_that_it_is_not(trim: str) -> None:
    check_trim(trim, examples=FEW)


@pytest.mark.parametrize("drafter", [*some(DRAFTERS), night(Suffix(memory=2))], ids=str)
def test_every_drafter_is_exact(drafter: Any) -> None:
    made = ARGUMENTS[drafter] if drafter in [*ARGUMENTS] else drafter
    check_drafter(made, examples=FEW)


@pytest.mark.parametrize("verifier", some(VERIFIERS))
def test_every_verifier_is_exact_or_says_that_it_is_not(verifier: str) -> None:
    check_verifier(verifier, examples=FEW)


@pytest.mark.parametrize("pairing", some(PAIRINGS))
def test_every_pair_of_layout_and_backend_is_exact(pairing: str) -> None:
    check_pair(*PAIRINGS[pairing], examples=FEW)
