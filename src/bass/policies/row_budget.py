"""A fixed number of drafted tokens per step, for the rows with the highest acceptance."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy
from bass.option import within


@dataclass(frozen=True)
class RowAcceptance:
    """Decayed counts of each row's tried and accepted tokens, and which rows are active."""

    tried: np.ndarray  # float [B]
    accepted: np.ndarray  # float [B]
    active: np.ndarray  # bool [B]

    @classmethod
    def none(cls, batch_size: int) -> "RowAcceptance":
        """No counts; all rows are active."""
        return cls(np.zeros(batch_size), np.zeros(batch_size), np.ones(batch_size, dtype=bool))

    @classmethod
    def of(cls, feedback: Feedback) -> "RowAcceptance":
        """The counts of a step. A draft says nothing about tokens after the first rejected one."""
        tried = np.where(feedback.active, np.minimum(feedback.accepted + 1, feedback.drafted), 0)
        accepted = np.where(feedback.active, feedback.accepted, 0)
        return cls(tried, accepted, feedback.active.copy())

    def after(self, step: "RowAcceptance", decay: float) -> "RowAcceptance":
        """The counts after a step, decayed in the rows that took part."""
        fade = np.where(step.active, decay, 1.0)
        tried, accepted = self.tried * fade + step.tried, self.accepted * fade + step.accepted
        return RowAcceptance(tried, accepted, step.active)

    def begun(self, rows: np.ndarray) -> "RowAcceptance":
        """No counts in rows with new prompts."""
        tried, accepted, active = self.tried.copy(), self.accepted.copy(), self.active.copy()
        tried[rows], accepted[rows], active[rows] = 0.0, 0.0, True
        return RowAcceptance(tried, accepted, active)

    def rates(self, prior: float, strength: float) -> np.ndarray:
        """The acceptance of each row [B], shrunk to `prior`, which counts as `strength` tokens."""
        return (self.accepted + strength * prior) / (self.tried + strength)


@final
@dataclass(frozen=True)
class RowBudget(DraftLengthPolicy[RowAcceptance]):
    """`budget` drafted tokens per step over all active rows, by their probability of acceptance.

    The idea of TETRIS (Wu et al., 2025, arXiv 2502.15197) with past information only: TETRIS ranks
    the tokens of this step's drafts, so lengths depend on the drawn tokens; here the ranking
    precedes every draw. The j-th token of row b is reached and accepted with probability a_b^j, so
    the most accepted tokens for the budget are

        the `budget` largest of { a_b^j : b active, 1 <= j <= max_length }
        a_b = (accepted_b + strength acceptance) / (tried_b + strength)

    which are a prefix of each row, as the powers fall. Ties go to the shallower token, then to the
    lower row. The counts decay by `decay` per step of the row, drafted or not, so a row without
    drafts is tried again; a new prompt starts again. Cost: a sort of B x max_length numbers.
    """

    paper: ClassVar[str] = "after Wu et al., 2025 (TETRIS)"

    budget: int = within("[0, inf)", 16)
    acceptance: float = within("(0, 1)", 0.7)
    strength: float = within("(0, inf)", 4.0)
    decay: float = within("(0, 1]", 0.95)
    max_length: int = within("[0, inf)", 8)

    def init(self, batch_size: int) -> RowAcceptance:
        return RowAcceptance.none(batch_size)

    def lengths(self, state: RowAcceptance) -> np.ndarray:
        a = state.rates(self.acceptance, self.strength)
        # Depth first, so that a stable sort serves equal chances evenly; below 1, so that each
        # row's chances fall.
        chance = np.minimum(a, 1 - 1e-9) ** np.arange(1, self.max_length + 1)[:, None]
        chance = np.where(state.active, chance, 0.0).ravel()
        chosen = np.argsort(-chance, kind="stable")[: self.budget]
        chosen = chosen[chance[chosen] > 0]
        return np.bincount(chosen % len(a), minlength=len(a)).astype(np.int32)

    def update(self, state: RowAcceptance, feedback: Feedback) -> RowAcceptance:
        return state.after(RowAcceptance.of(feedback), self.decay)

    def reset(self, state: RowAcceptance, rows: np.ndarray) -> RowAcceptance:
        return state.begun(rows)
