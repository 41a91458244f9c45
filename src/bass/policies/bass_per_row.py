"""Algorithm 1 of BASS, for each row separately."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy
from bass.option import within


@dataclass(frozen=True)
class RowLengths:
    """The current length of each row, and whether the row's previous step shrank it."""

    length: np.ndarray  # int [B]
    shrunk: np.ndarray  # bool [B]


@final
@dataclass(frozen=True)
class RowAdaptive(DraftLengthPolicy[RowLengths]):
    """Algorithm 1 of BASS (Qian et al., 2024) with each row as its own batch: grow after a full
    acceptance, else shrink.

    With x_b the accepted draft tokens of row b and l_b its length:

        x_b == l_b:  l_b <- min(l_b + increment, max_length)
        otherwise:   l_b <- max(1, x_b, l_b - ceil(l_b / modulus) - [row b shrank last time])

    A row with a new prompt starts again. Cost: a few vector operations of length B. Lengths do not
    grow with the batch, but a step still takes as long as its longest draft.
    """

    paper: ClassVar[str] = "after Qian et al., 2024, Algorithm 1"

    start: int = within("[1, {max_length}]", 7)
    increment: int = within("[1, inf)", 2)
    modulus: int = within("[1, inf)", 10)
    max_length: int = 16

    def init(self, batch_size: int) -> RowLengths:
        return RowLengths(np.full(batch_size, self.start), np.zeros(batch_size, dtype=bool))

    def lengths(self, state: RowLengths) -> np.ndarray:
        return state.length.astype(np.int32)

    def update(self, state: RowLengths, feedback: Feedback) -> RowLengths:
        length, x = state.length, feedback.accepted
        full = x >= length
        longer = np.minimum(length + self.increment, self.max_length)
        shorter = np.maximum(np.maximum(1, x), length - -(-length // self.modulus) - state.shrunk)
        return RowLengths(
            np.where(feedback.active, np.where(full, longer, shorter), length),
            np.where(feedback.active, ~full, state.shrunk),
        )

    def reset(self, state: RowLengths, rows: np.ndarray) -> RowLengths:
        length, shrunk = state.length.copy(), state.shrunk.copy()
        length[rows], shrunk[rows] = self.start, False
        return RowLengths(length, shrunk)
