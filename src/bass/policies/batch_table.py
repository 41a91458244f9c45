"""A draft length for each range of batch sizes, from the user's table."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from bass.errors import OptionError
from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy, State


@dataclass(frozen=True)
class LengthTable(DraftLengthPolicy[State]):
    """The base of tables whose rows end with a draft length."""

    table: tuple[tuple[int, int, int], ...] | list[list[int]] = ()

    def __post_init__(self) -> None:
        table = tuple(tuple(row) for row in self.table)
        object.__setattr__(self, "table", table)  # tuples, so that the policy is hashable

    @property
    def max_length(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return max(k for *_, k in self.table)

    @property
    def draft_lengths(self) -> Collection[int]:
        return {k for *_, k in self.table}


@final
@dataclass(frozen=True)
class BatchTable(LengthTable[np.ndarray]):
    """k tokens while `lo..hi` rows are active, from a table `[[lo, hi, k], ...]` in vLLM's format;
    k = 0 is autoregressive decoding.

        k(n) = k_j   with   lo_j <= n <= hi_j

    The ranges begin at 1 and leave no gap; the last range also covers more rows. The count includes
    the active rows of the last step and the rows with a new prompt since: the state is that mask
    [B]. The default table follows the measured H200 of `bass.policies.simulate` at an acceptance of
    0.8. Cost: a look-up. It ignores acceptance.
    """

    paper: ClassVar[str] = "a table in vLLM's format"

    table: tuple[tuple[int, int, int], ...] | list[list[int]] = (
        (1, 16, 7),
        (17, 32, 6),
        (33, 64, 4),
        (65, 256, 3),
    )

    def __post_init__(self) -> None:
        if not _covers(self.table):
            raise OptionError(
                f"`BatchTable(table={self.table!r})` must be ranges `[lo, hi, k]` that begin at 1 "
                "and leave no gap, with k of 0 or more."
            )
        super().__post_init__()

    def init(self, batch_size: int) -> np.ndarray:
        return np.ones(batch_size, dtype=bool)

    def lengths(self, state: np.ndarray) -> np.ndarray:
        rows = int(state.sum())
        k = next((k for _, hi, k in self.table if rows <= hi), self.table[-1][2])
        return np.full(len(state), k, dtype=np.int32)

    def update(self, state: np.ndarray, feedback: Feedback) -> np.ndarray:
        return feedback.active.copy()

    def reset(self, state: np.ndarray, rows: np.ndarray) -> np.ndarray:
        active = state.copy()
        active[rows] = True
        return active


def _covers(table: Sequence[Sequence[int]]) -> bool:
    """Whether ranges begin at 1 and leave no gap."""
    following = 1
    for row in table:
        if len(row) != 3 or row[0] != following or row[1] < row[0] or row[2] < 0:
            return False
        following = row[1] + 1
    return following > 1
