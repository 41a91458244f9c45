"""Committed tokens per second, maximised with a geometric acceptance and a linear time."""

from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np

from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy
from bass.option import within
from bass.policies.row_budget import RowAcceptance


@dataclass(frozen=True)
class GoodputState:
    """Decayed sums: tried and accepted tokens of all rows and of each, and the regression of
    seconds on k (n, k, k^2, t, kt).
    """

    pool: np.ndarray  # float [2]
    rows: RowAcceptance
    times: np.ndarray  # float [5]


@final
@dataclass(frozen=True)
class Goodput(DraftLengthPolicy[GoodputState]):
    """The k of the largest expected goodput (SmartSpec / TurboSpec, Liu et al., 2024, arXiv
    2406.14066); it may be 0.

        k = argmax over 0..max_length of   Σ_b (1 - a_b^(k+1)) / (1 - a_b)   /   (t0 + t1 k)

    over the active rows b.

    a_b = (accepted_b + strength a) / (tried_b + strength), where a is the same ratio over the whole
    batch with the prior `acceptance`. `tried` counts a draft's tokens up to and including the first
    rejected one; a draft says nothing about later ones. t0, t1 are a regression of the measured
    seconds on the step's longest draft, with a prior t1 = `cost_ratio` t0. Every sum decays by
    `decay` per step. At k = 0 no acceptance is observed, so the prior slowly dominates and
    speculation starts again. All rows have the same length, because a step takes as long as its
    longest draft. Cost: a [B, max_length] power.
    """

    paper: ClassVar[str] = "Liu et al., 2024 (SmartSpec)"

    acceptance: float = within("(0, 1)", 0.7)
    cost_ratio: float = within("[0, inf)", 0.1)
    decay: float = within("(0, 1]", 0.98)
    strength: float = within("(0, inf)", 4.0)
    max_length: int = within("[0, inf)", 16)

    def init(self, batch_size: int) -> GoodputState:
        return GoodputState(np.zeros(2), RowAcceptance.none(batch_size), np.zeros(5))

    def lengths(self, state: GoodputState) -> np.ndarray:
        active = state.rows.active
        rows = active if active.any() else np.ones_like(active)
        a = self._acceptance(state)[rows]
        tokens = np.cumsum(a[:, None] ** np.arange(self.max_length + 1), axis=1).sum(axis=0)
        seconds = self._seconds(state.times)
        return np.full(len(rows), int(np.argmax(tokens / seconds)), dtype=np.int32)

    def update(self, state: GoodputState, feedback: Feedback) -> GoodputState:
        step = RowAcceptance.of(feedback)
        times = state.times * self.decay
        if feedback.seconds > 0 and feedback.active.any():
            k, t = float(feedback.drafted.max()), feedback.seconds
            times = times + np.array([1.0, k, k * k, t, k * t])
        pool = state.pool * self.decay + (step.tried.sum(), step.accepted.sum())
        return GoodputState(pool, state.rows.after(step, self.decay), times)

    def reset(self, state: GoodputState, rows: np.ndarray) -> GoodputState:
        """Reset the rows to the batch's acceptance: a new prompt may be easier or harder."""
        return replace(state, rows=state.rows.begun(rows))

    def _acceptance(self, state: GoodputState) -> np.ndarray:
        """Acceptance of each row [B], shrunk to the batch's, which is shrunk to the prior."""
        pooled = (state.pool[1] + self.strength * self.acceptance) / (state.pool[0] + self.strength)
        return state.rows.rates(pooled, self.strength)

    def _seconds(self, times: np.ndarray) -> np.ndarray:
        """t0 + t1 k [max_length + 1]; before the first measurement, up to a factor."""
        k = np.arange(self.max_length + 1)
        n, sum_k, sum_kk, sum_t, sum_kt = times
        if n < 1e-9:
            return 1 + self.cost_ratio * k
        # The prior: one observation of t1 - cost_ratio t0 = 0, at the scale of k = 1.
        c = self.cost_ratio
        t0, t1 = np.linalg.solve([[n + c * c, sum_k - c], [sum_k - c, sum_kk + 1]], [sum_t, sum_kt])
        t0, t1 = max(t0, 1e-3 * sum_t / n), max(t1, 0.0)
        return t0 + t1 * k
