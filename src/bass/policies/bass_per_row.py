"""Algorithm 1 of BASS, for each row separately."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from bass.host_records import Feedback
from bass.policies.batch_adaptive import Adaptive, LengthState


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
