"""Strategies for tests: policies of mixed lengths and a stop rule."""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from bass.interfaces import DraftLengthPolicy, StopRule
from bass.records import Feedback


@final
@dataclass(frozen=True)
class OwnPast(DraftLengthPolicy[np.ndarray]):
    """Scrambled lengths 0..max_length; each row's is a function of its own accepted counts."""

    max_length: int = 4

    def init(self, batch_size: int) -> np.ndarray:
        return np.full(batch_size, 3)

    def lengths(self, state: np.ndarray) -> np.ndarray:
        return ((state * 2654435761 % 1000003) % (self.max_length + 1)).astype(np.int32)

    def update(self, state: np.ndarray, feedback: Feedback) -> np.ndarray:
        return (state * 31 + feedback.accepted + 7) % 9973

    def reset(self, state: np.ndarray, rows: np.ndarray) -> np.ndarray:
        fresh = state.copy()
        fresh[rows] = 3
        return fresh


@final
@dataclass(frozen=True)
class ByRow(DraftLengthPolicy[tuple[int, int]]):
    """Every length 0..max_length in every batch and step: row b's is (b + step) modulo max_length +
    1. A state is (batch, step).

    every: only every so many rows have these lengths, and the others `max_length`, so that many
    samples reach the last slots of a draft.
    """

    max_length: int = 3
    every: int = 1

    def init(self, batch_size: int) -> tuple[int, int]:
        return batch_size, 0

    def lengths(self, state: tuple[int, int]) -> np.ndarray:
        batch, step = state
        rows = np.arange(batch)
        own = (rows // self.every + step) % (self.max_length + 1)
        return np.where(rows % self.every, self.max_length, own).astype(np.int32)

    def update(self, state: tuple[int, int], feedback: Feedback) -> tuple[int, int]:
        return state[0], state[1] + 1


@final
@dataclass(frozen=True)
class Unsure(StopRule):
    """Ends a draft if no token's probability exceeds `threshold`, or if the most probable token id
    is a multiple of three plus two.

    The second condition also ends the drafts of one-hot distributions. The rule never sees the
    drawn token.
    """

    threshold: float = 0.6

    def __call__(
        self, draft_probs: Float[Tensor, "batch vocab"], so_far: int
    ) -> Bool[Tensor, " batch"]:
        return (draft_probs.amax(-1) < self.threshold) | (draft_probs.argmax(-1) % 3 == 2)
