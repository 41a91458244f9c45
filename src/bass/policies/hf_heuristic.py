"""The rule of Hugging Face's assisted generation."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy
from bass.option import within


@final
@dataclass(frozen=True)
class HuggingFaceHeuristic(DraftLengthPolicy[np.ndarray]):
    """Two tokens more after a fully accepted draft, else one fewer
    (`num_assistant_tokens_schedule` of `transformers`).

    `transformers` decodes one sequence at a time, so the rule is applied to each row b with x_b of
    d_b tokens accepted:

        x_b == d_b:  l_b <- min(l_b + 2, max_length)
        otherwise:   l_b <- max(1, l_b - 1)

    `transient` resets the length at each new prompt ("heuristic_transient"); without it a row keeps
    its length ("heuristic"). A step without a draft leaves the row's length unchanged.
    The state is the lengths, int [B]. Cost: a few vector operations of length B.
    """

    paper: ClassVar[str] = "Hugging Face transformers"

    start: int = within("[1, {max_length}]", 5)
    transient: bool = True
    max_length: int = 16

    def init(self, batch_size: int) -> np.ndarray:
        return np.full(batch_size, self.start, dtype=np.int32)

    def lengths(self, state: np.ndarray) -> np.ndarray:
        return state.copy()

    def update(self, state: np.ndarray, feedback: Feedback) -> np.ndarray:
        whole = feedback.accepted >= feedback.drafted
        following = np.where(
            whole, np.minimum(state + 2, self.max_length), np.maximum(state - 1, 1)
        )
        return np.where(feedback.active & (feedback.drafted > 0), following, state).astype(np.int32)

    def reset(self, state: np.ndarray, rows: np.ndarray) -> np.ndarray:
        if not self.transient:
            return state
        fresh = state.copy()
        fresh[rows] = self.start
        return fresh
