"""What every registered policy and wrapper keeps to, whatever it is told."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bass.interfaces import DraftLengthPolicy
from bass.policies import POLICIES, Clamped, Goodput, Lagged, Oracle
from bass.records import Feedback

TRACE = np.random.default_rng(0).integers(0, 9, (12, 6))
EVERY: dict[str, DraftLengthPolicy[Any]] = {
    **{name: cls() for name, cls in POLICIES.items()},
    "hf-heuristic, kept": POLICIES["hf-heuristic"](transient=False),
    "oracle": Oracle(TRACE, max_length=6),
    "clamped": Clamped(POLICIES["auto"](), 1, 5),
    "lagged": Lagged(POLICIES["per-row-budget"](), 2),
}
# A row's length depends on its own past alone. (A budget is shared, so it is not among them.)
PER_ROW = ["bass-per-row", "hf-heuristic", "hf-heuristic, kept", "oracle", "fixed"]


def frozen(state: Any) -> bytes:
    """The state's whole content, to see whether someone wrote to it."""
    return pickle.dumps(state)


def draw_feedback(data: st.DataObject, lengths: np.ndarray) -> Feedback:
    """Anything an engine may report: drafts cut at a row's end or by a stop rule, idle rows, a step
    without a time.
    """
    batch = len(lengths)
    active = np.array(data.draw(st.lists(st.booleans(), min_size=batch, max_size=batch)))
    drafted = np.array([data.draw(st.integers(0, int(n))) for n in lengths]) * active
    accepted = np.array([data.draw(st.integers(0, int(n))) for n in drafted])
    return Feedback(
        drafted, accepted, active, data.draw(st.sampled_from([0.0, 1e-9, 0.004, 0.01, 0.02, 30.0]))
    )


@pytest.mark.parametrize("name", EVERY)
@given(data=st.data())
def test_a_policy_is_pure_writes_to_no_state_and_stays_within_its_maximum(
    name: str, data: st.DataObject
) -> None:
    policy = EVERY[name]
    batch = data.draw(st.integers(1, 5))
    state = policy.init(batch)
    for _ in range(data.draw(st.integers(1, 14))):
        if data.draw(st.booleans()):
            rows = np.array(sorted(data.draw(st.sets(st.integers(0, batch - 1)))), dtype=np.int64)
            before = frozen(state)
            following = policy.reset(state, rows)
            assert frozen(state) == before
            assert (policy.lengths(following) == policy.lengths(policy.reset(state, rows))).all()
            state = following
        before = frozen(state)
        lengths = policy.lengths(state)
        assert lengths.dtype == np.int32
        assert lengths.shape == (batch,)
        assert (lengths >= 0).all()
        assert (lengths <= policy.max_length).all()
        feedback = draw_feedback(data, lengths)
        report = copy.deepcopy(feedback)
        following = policy.update(state, feedback)
        lengths[:] = 99  # an answer belongs to the caller
        assert frozen(state) == before
        assert all(
            (getattr(feedback, f) == getattr(report, f)).all()
            for f in ("drafted", "accepted", "active")
        )
        assert frozen(policy.update(state, feedback)) == frozen(following)
        state = following


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


@pytest.mark.parametrize("name", EVERY)
def test_a_policy_serves_thousands_of_rows(name: str) -> None:
    policy, rows = EVERY[name], 3000
    state = policy.reset(policy.init(rows), np.arange(rows))
    for _ in range(3):
        lengths = policy.lengths(state)
        assert lengths.shape == (rows,)
        state = policy.update(
            state, Feedback(lengths, lengths // 2, np.ones(rows, dtype=bool), 0.1)
        )


def test_every_policy_can_be_made_without_arguments_and_is_equal_to_its_like() -> None:
    for cls in POLICIES.values():
        assert cls() == cls()
        assert hash(cls()) == hash(cls())


def test_goodput_without_times_trusts_its_prior_cost() -> None:
    """Acceptance 0.7: (1 - a^(k+1)) / ((1 - a)(1 + c k)) is largest at k = 3 for c = 0.2."""
    policy = Goodput(acceptance=0.7, cost_ratio=0.2)
    assert (
        policy.lengths(policy.init(2)).tolist()
        == [2 if (1 + 0.7 + 0.49) / 1.4 > (1 + 0.7 + 0.49 + 0.343) / 1.6 else 3] * 2
    )
