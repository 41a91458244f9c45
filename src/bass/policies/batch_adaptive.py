"""Algorithm 1 of BASS: one length for the whole batch, which follows the best row."""

from dataclasses import dataclass
from math import ceil
from typing import ClassVar, final

import numpy as np

from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy
from bass.option import within


@dataclass(frozen=True)
class LengthState:
    """The current length, and whether the previous step shrank it (then the next one shrinks it by
    one more).
    """

    batch: int
    length: int
    shrunk: bool = False


@final
@dataclass(frozen=True)
class BatchAdaptive(DraftLengthPolicy[LengthState]):
    """Grow if some row accepts its whole draft, else shrink towards the accepted length (Qian et
    al., 2024, Algorithm 1).

    With x the accepted draft tokens of the active rows and l the length (l0, limit, modulus as in
    the paper):

        max(x) == l:  l <- min(l + increment, limit)
        otherwise:    l <- max(1, max(x), l - ceil(l / modulus) - [shrank last time])

    Cost: a maximum over the batch. Because of the maximum, drafts get longer in larger batches.
    """

    paper: ClassVar[str] = "Qian et al., 2024, Algorithm 1"

    start: int = within("[1, {max_length}]", 7)
    increment: int = within("[1, inf)", 2)
    modulus: int = within("[1, inf)", 10)
    max_length: int = 32

    def init(self, batch_size: int) -> LengthState:
        return LengthState(batch_size, self.start)

    def lengths(self, state: LengthState) -> np.ndarray:
        return np.full(state.batch, state.length, dtype=np.int32)

    def update(self, state: LengthState, feedback: Feedback) -> LengthState:
        if not feedback.active.any():
            return state
        best = int(feedback.accepted[feedback.active].max())
        if best >= state.length:
            length = min(state.length + self.increment, self.max_length)
            return LengthState(state.batch, length)
        shorter = state.length - ceil(state.length / self.modulus) - state.shrunk
        return LengthState(state.batch, max(1, best, shorter), shrunk=True)
