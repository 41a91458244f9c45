"""A draft length by batch size and context length, from the user's table."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import numpy as np

from bass.errors import OptionError
from bass.host_records import Feedback
from bass.policies.batch_table import LengthTable


class ContextState(NamedTuple):
    """active: bool [B]. lens: int [B], tokens of the rows; 0 before the first step of a prompt."""

    active: np.ndarray
    lens: np.ndarray


@final
@dataclass(frozen=True)
class ContextTable(LengthTable[ContextState]):
    """The length of the first row of a table (batch, context, k) with room for the active rows and
    for their mean number of tokens, prompt included; else that of its last row.

    The default table is no measurement: large batches draft more where contexts are long, since the
    step then mostly reads keys and values (MagicDec, Chen et al., 2024, arXiv 2408.11049). Cost: a
    look-up. It ignores acceptance.
    """

    paper: ClassVar[str] = "this project, after the tables of serving engines"

    table: tuple[tuple[int, int, int], ...] | list[list[int]] = (
        (8, 1 << 20, 6),
        (32, 2048, 4),
        (32, 1 << 20, 6),
        (256, 2048, 3),
        (256, 1 << 20, 4),
    )

    def __post_init__(self) -> None:
        if not self.table or any(len(row) != 3 or min(row) < 0 for row in self.table):
            raise OptionError(
                f"`ContextTable(table={self.table!r})` must be rows `[batch, context, k]` of "
                "integers of 0 or more."
            )
        super().__post_init__()

    def init(self, batch_size: int) -> ContextState:
        return ContextState(np.ones(batch_size, dtype=bool), np.zeros(batch_size, dtype=np.int64))

    def lengths(self, state: ContextState) -> np.ndarray:
        rows, known = state.active.sum(), state.lens[state.active & (state.lens > 0)]
        context = known.mean() if len(known) else 0
        fitting = (k for batch, most, k in self.table if rows <= batch and context <= most)
        return np.full(len(state.active), next(fitting, self.table[-1][2]), dtype=np.int32)

    def update(self, state: ContextState, feedback: Feedback) -> ContextState:
        before = state.lens if feedback.lens is None else feedback.lens
        lens = np.where(feedback.active, before + feedback.accepted + 1, 0)
        return ContextState(feedback.active.copy(), lens)

    def reset(self, state: ContextState, rows: np.ndarray) -> ContextState:
        active, lens = state.active.copy(), state.lens.copy()
        active[rows], lens[rows] = True, 0
        return ContextState(active, lens)
