"""The contract of draft-length policies. It imports NumPy, not torch."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import ClassVar, Generic, TypeVar

import numpy as np

from bass.host_records import Feedback

State = TypeVar("State")


class DraftLengthPolicy(ABC, Generic[State]):
    """How many tokens to draft for each row. Pure functions on the host: NumPy, no torch.

    `max_length`: the longest draft that it can request. `constant_length`: lengths never change, so
    the engine may launch a step before the report of the previous one. `draft_lengths`: see there.
    """

    max_length: int
    constant_length: ClassVar[bool] = False
    paper: ClassVar[str] = ""

    @property
    def draft_lengths(self) -> Collection[int]:
        """The lengths that `lengths` may contain, next to 0; by default 1..max_length.

        CUDA graphs are captured for these lengths alone. A length between two of them is correct
        too: it runs in the graph of the next longer one.
        """
        return range(1, self.max_length + 1)

    @abstractmethod
    def init(self, batch_size: int) -> State:
        """The state before the first step."""

    @abstractmethod
    def lengths(self, state: State) -> np.ndarray:
        """Draft length of each row, int32 [B] in 0..max_length; 0 is autoregressive decoding."""

    @abstractmethod
    def update(self, state: State, feedback: Feedback) -> State:
        """The state after a step. The old state stays unchanged."""

    def reset(self, state: State, rows: np.ndarray) -> State:
        """The state after `rows`, int [rows], got new prompts. A batch-wide policy keeps it."""
        return state
