"""A fixed number of drafted tokens per step, for the rows with the highest acceptance."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from bass.errors import check_ranges
from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy


@dataclass(frozen=True)
class RowAcceptance:
    """Decayed counts of each row's tried and accepted tokens, and which rows are active."""

    tried: np.ndarray  # float [B]
    accepted: np.ndarray  # float [B]
    active: np.ndarray  # bool [B]


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

    budget: int = 16
    acceptance: float = 0.7
    strength: float = 4.0
    decay: float = 0.95
    max_length: int = 8

    def __post_init__(self) -> None:
        check_ranges(self, acceptance="(0, 1)", decay="(0, 1]", max_length="[0, inf)")
        check_ranges(self, budget="[0, inf)", strength="(0, inf)")

    def init(self, batch_size: int) -> RowAcceptance:
        return RowAcceptance(
            np.zeros(batch_size), np.zeros(batch_size), np.ones(batch_size, dtype=bool)
        )

    def lengths(self, state: RowAcceptance) -> np.ndarray:
        a = (state.accepted + self.strength * self.acceptance) / (state.tried + self.strength)
        # Depth first, so that a stable sort serves equal chances evenly; below 1, so that each
        # row's chances fall.
        chance = np.minimum(a, 1 - 1e-9) ** np.arange(1, self.max_length + 1)[:, None]
        chance = np.where(state.active, chance, 0.0).ravel()
        chosen = np.argsort(-chance, kind="stable")[: self.budget]
        chosen = chosen[chance[chosen] > 0]
        return np.bincount(chosen % len(a), minlength=len(a)).astype(np.int32)

    def update(self, state: RowAcceptance, feedback: Feedback) -> RowAcceptance:
        decay = np.where(feedback.active, self.decay, 1.0)
        tried = np.where(feedback.active, np.minimum(feedback.accepted + 1, feedback.drafted), 0)
        accepted = np.where(feedback.active, feedback.accepted, 0)
        return RowAcceptance(
            state.tried * decay + tried, state.accepted * decay + accepted, feedback.active.copy()
        )

    def reset(self, state: RowAcceptance, rows: np.ndarray) -> RowAcceptance:
        tried, accepted, active = state.tried.copy(), state.accepted.copy(), state.active.copy()
        tried[rows], accepted[rows], active[rows] = 0.0, 0.0, True
        return RowAcceptance(tried, accepted, active)
