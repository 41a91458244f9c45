"""What every registered policy and wrapper keeps to, whatever it is told."""

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from bass.interfaces import DraftLengthPolicy
from bass.policies import POLICIES, Auto, ContextTable, Exp3, Goodput, Lagged, Oracle
from bass.records import Feedback
from bass.testing.checking import Checker
from bass.testing.inputs import SEEDS, step_events
from bass.testing.properties_of_policies import follow

TIMES = tuple(1 + 0.1 * k for k in range(7))
TWO = Auto(max_length=6, times=TIMES, others=((TIMES, 0.1),))
ARMS = Exp3((0, (0, 2), (1, 2), (1, 5)))
TRACE = np.random.default_rng(0).integers(0, 9, (12, 6))
EVERY: dict[str, DraftLengthPolicy[Any]] = {
    **{name: cls() for name, cls in POLICIES.items()},
    "hf-heuristic, kept": POLICIES["hf-heuristic"](transient=False),
    "oracle": Oracle(TRACE, max_length=6),
    "lagged": Lagged(POLICIES["per-row-budget"](), 2),
    "lagged arms": Lagged(ARMS, 2),
    "auto, two drafters": TWO,
    "lagged, two drafters": Lagged(TWO),
    "lagged context": Lagged(ContextTable([[2, 99, 1], [9, 2500, 3], [9, 9999, 0]])),
}
# A row's length depends on its own past alone. (A budget is shared, so it is not among them.)
PER_ROW = ["bass-per-row", "hf-heuristic", "hf-heuristic, kept", "oracle", "fixed"]


@pytest.mark.parametrize("name", EVERY)
def test_a_policy_keeps_its_contract_for_any_feedback(name: str) -> None:
    checker = Checker(name, examples=12)
    histories = st.builds(step_events, st.integers(1, 5), st.integers(1, 14), SEEDS)
    checker.for_all(histories, lambda history: follow(checker, EVERY[name], history))


@pytest.mark.parametrize("name", PER_ROW)
def test_a_policy_per_row_gives_a_row_what_it_would_get_alone(name: str) -> None:
    """Other rows' acceptance, their idleness and their new prompts do not matter."""
    policy, random = EVERY[name], np.random.default_rng(1)
    together, alone = (
        policy.reset(policy.init(3), np.arange(3)),
        policy.reset(policy.init(1), np.arange(1)),
    )
    for step in range(60):
        lengths = policy.lengths(together)
        assert lengths[0] == policy.lengths(alone)[0]
        active = np.array([step % 7 > 0, *(random.random(2) < 0.5)])
        accepted = random.integers(0, lengths + 1) * active
        feedback = Feedback(lengths * active, accepted, active, 0.01)
        together = policy.update(together, feedback)
        alone = policy.update(alone, Feedback(feedback.drafted[:1], accepted[:1], active[:1], 0.01))
        if step % 9 == 8:
            together = policy.reset(together, np.array([1]))


@pytest.mark.parametrize("name", [name for name in EVERY if name != "oracle"])
def test_what_an_idle_row_reports_changes_nothing(name: str) -> None:
    policy, random = EVERY[name], np.random.default_rng(2)
    honest = lying = policy.reset(policy.init(3), np.arange(3))
    active = np.array([True, False, True])
    for _ in range(40):
        lengths = policy.lengths(honest)
        accepted = random.integers(0, lengths + 1) * active
        honest = policy.update(honest, Feedback(lengths * active, accepted, active, 0.01))
        # The engine promises zeros for idle rows; a policy must not need the promise for the
        # accepted ones.
        lying = policy.update(
            lying, Feedback(lengths * active, accepted + 3 * ~active, active, 0.01)
        )
        assert (policy.lengths(honest) == policy.lengths(lying))[active].all()


def test_goodput_without_times_trusts_its_prior_cost() -> None:
    """Acceptance 0.7: (1 - a^(k+1)) / ((1 - a)(1 + c k)) is largest at k = 3 for c = 0.2."""
    policy = Goodput(acceptance=0.7, cost_ratio=0.2)
    assert (
        policy.lengths(policy.init(2)).tolist()
        == [2 if (1 + 0.7 + 0.49) / 1.4 > (1 + 0.7 + 0.49 + 0.343) / 1.6 else 3] * 2
    )
