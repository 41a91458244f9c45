"""Algorithm 1 of BASS: one length for the whole batch, which follows the best row, or one a row."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy
from bass.option import within


@dataclass(frozen=True)
class LengthState:
    """The current length of each row, and whether the row's previous step shrank it (then the next
    one shrinks it by one more).
    """

    length: np.ndarray  # int [B]
    shrunk: np.ndarray  # bool [B]


@dataclass(frozen=True)
class Adaptive(DraftLengthPolicy[LengthState]):
    """The base of both forms of Algorithm 1, which differ in what a row follows."""

    start: int = within("[1, {max_length}]", 7)
    increment: int = within("[1, inf)", 2)
    modulus: int = within("[1, inf)", 10)
    max_length: int = 32

    def init(self, batch_size: int) -> LengthState:
        return LengthState(np.full(batch_size, self.start), np.zeros(batch_size, dtype=bool))

    def lengths(self, state: LengthState) -> np.ndarray:
        return state.length.astype(np.int32)

    def after(self, state: LengthState, accepted: np.ndarray, rows: np.ndarray) -> LengthState:
        """The state after a step in which `rows`, bool [B], accepted `accepted` tokens, int [B]."""
        length, full = state.length, accepted >= state.length
        longer = np.minimum(length + self.increment, self.max_length)
        less = length - -(-length // self.modulus) - state.shrunk
        following = np.where(full, longer, np.maximum(np.maximum(1, accepted), less))
        return LengthState(np.where(rows, following, length), np.where(rows, ~full, state.shrunk))


@final
@dataclass(frozen=True)
class BatchAdaptive(Adaptive):
    """Grow if some row accepts its whole draft, else shrink towards the accepted length (Qian et
    al., 2024, Algorithm 1).

    With x the accepted draft tokens of the active rows and l the length (l0, limit, modulus as in
    the paper):

        max(x) == l:  l <- min(l + increment, limit)
        otherwise:    l <- max(1, max(x), l - ceil(l / modulus) - [shrank last time])

    Cost: a maximum over the batch. Because of the maximum, drafts get longer in larger batches.
    """

    paper: ClassVar[str] = "Qian et al., 2024, Algorithm 1"

    def update(self, state: LengthState, feedback: Feedback) -> LengthState:
        if not feedback.active.any():
            return state
        best = feedback.accepted[feedback.active].max()
        every = np.ones_like(feedback.active)
        return self.after(state, np.full_like(state.length, best), every)


@final
@dataclass(frozen=True)
class RowAdaptive(Adaptive):
    """Algorithm 1 of BASS (Qian et al., 2024) with each row as its own batch: grow after a full
    acceptance, else shrink.

    With x_b the accepted draft tokens of row b and l_b its length:

        x_b == l_b:  l_b <- min(l_b + increment, max_length)
        otherwise:   l_b <- max(1, x_b, l_b - ceil(l_b / modulus) - [row b shrank last time])

    A row with a new prompt starts again. Cost: a few vector operations of length B. Lengths do not
    grow with the batch, but a step still takes as long as its longest draft.
    """

    paper: ClassVar[str] = "after Qian et al., 2024, Algorithm 1"

    max_length: int = 16

    def update(self, state: LengthState, feedback: Feedback) -> LengthState:
        return self.after(state, feedback.accepted, feedback.active)

    def reset(self, state: LengthState, rows: np.ndarray) -> LengthState:
        length, shrunk = state.length.copy(), state.shrunk.copy()
        length[rows], shrunk[rows] = self.start, False
        return LengthState(length, shrunk)
