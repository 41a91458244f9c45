"""Draft-length policies for tests: mixed lengths, also 0, as pure functions of their states."""

from dataclasses import dataclass
from typing import final

import numpy as np

from bass.interfaces import DraftLengthPolicy
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
    1.
    """

    max_length: int = 3

    def init(self, batch_size: int) -> tuple[int, int]:
        return batch_size, 0

    def lengths(self, state: tuple[int, int]) -> np.ndarray:
        batch, step = state
        return ((np.arange(batch) + step) % (self.max_length + 1)).astype(np.int32)

    def update(self, state: tuple[int, int], feedback: Feedback) -> tuple[int, int]:
        return state[0], state[1] + 1


@final
@dataclass(frozen=True)
class Mostly(DraftLengthPolicy[tuple[int, int]]):
    """`max_length` for most rows, so that many samples reach the last slots of a draft;

    0..max_length for every fourth row.
    """

    max_length: int = 4

    def init(self, batch_size: int) -> tuple[int, int]:
        return batch_size, 0

    def lengths(self, state: tuple[int, int]) -> np.ndarray:
        batch, step = state
        rows = np.arange(batch)
        return np.where(
            rows % 4, self.max_length, (rows // 4 + step) % (self.max_length + 1)
        ).astype(np.int32)

    def update(self, state: tuple[int, int], feedback: Feedback) -> tuple[int, int]:
        return state[0], state[1] + 1


@final
@dataclass(frozen=True)
class Cycle(DraftLengthPolicy[tuple[int, int]]):
    """One length for the batch, from a repeated list with runs of zeros between drafts."""

    cycle: tuple[int, ...] = (3, 0, 0, 2, 0, 4)

    @property
    def max_length(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return max(self.cycle)

    def init(self, batch_size: int) -> tuple[int, int]:
        return batch_size, 0

    def lengths(self, state: tuple[int, int]) -> np.ndarray:
        batch, step = state
        return np.full(batch, self.cycle[step % len(self.cycle)], dtype=np.int32)

    def update(self, state: tuple[int, int], feedback: Feedback) -> tuple[int, int]:
        return state[0], state[1] + 1
