"""The same length for every row and step: the baseline of all policies."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy
from bass.option import within


@final
@dataclass(frozen=True)
class Fixed(DraftLengthPolicy[int]):
    """Always `k` tokens; k = 0 is autoregressive decoding (Leviathan et al., 2023).

    The state is the batch size. Cost: none.
    """

    constant_length: ClassVar[bool] = True
    paper: ClassVar[str] = "Leviathan et al., 2023"

    k: int = within("[0, inf)", 4)

    @property
    def max_length(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.k

    @property
    def draft_lengths(self) -> Collection[int]:
        return (self.k,)

    def init(self, batch_size: int) -> int:
        return batch_size

    def lengths(self, state: int) -> np.ndarray:
        return np.full(state, self.k, dtype=np.int32)

    def update(self, state: int, feedback: Feedback) -> int:
        return state
