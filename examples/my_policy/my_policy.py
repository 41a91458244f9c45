"""A separate draft-length policy: one length for the batch, from the recent mean of accepted
tokens.
"""

from dataclasses import dataclass
from typing import final

import numpy as np

from bass.interfaces import DraftLengthPolicy
from bass.records import Feedback


@final
@dataclass(frozen=True)
class MyPolicy(DraftLengthPolicy[np.ndarray]):
    """All rows draft the recent mean of accepted tokens, plus `margin`."""

    margin: float = 2.0
    memory: float = 0.9
    max_length: int = 8

    def init(self, batch_size: int) -> np.ndarray:
        return np.full(batch_size, 2.0)  # recent mean, the same for every row

    def lengths(self, state: np.ndarray) -> np.ndarray:
        return np.clip(np.rint(state + self.margin), 1, self.max_length).astype(np.int32)

    def update(self, state: np.ndarray, feedback: Feedback) -> np.ndarray:
        if not feedback.active.any():
            return state
        accepted = feedback.accepted[feedback.active].mean()
        return self.memory * state + (1 - self.memory) * accepted
