"""Wrappers that check every pass of a scorer."""

from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch
from jaxtyping import Int

from bass.interfaces import ForwardingRowStore, RowStore, Scorer
from bass.records import Features, RowAssignment, Scored, Sequences, Window


@final
@dataclass
class Witness(ForwardingRowStore, Scorer):
    """Records the token that a scorer read at each (row, position), and checks every query.

    A query at position p attends to 0..p of its row, so the scorer must have read the committed
    token at each of these positions, and the drafted token above the committed ones.
    """

    scorer: Scorer
    sequences: Sequences
    is_target: bool
    fed: Int[np.ndarray, "batch capacity"] = field(init=False)
    passes: int = 0

    def __post_init__(self) -> None:
        self.fed = np.full(tuple(self.sequences.tokens.shape), -1)

    @property
    def store(self) -> RowStore:
        return self.scorer

    def copy_rows(self, assignment: RowAssignment) -> None:
        super().copy_rows(assignment)
        before = self.fed.copy()
        for row in assignment.followers:
            self.fed[row] = -1
            self.fed[row, : assignment.shared[row]] = before[
                assignment.source[row], : assignment.shared[row]
            ]

    def fill(self, window: Window) -> Features:
        self._take(window)
        return super().fill(window)

    def __call__(self, window: Window) -> Scored:
        self._take(window)
        tokens, positions = window.tokens, window.positions
        self.passes += 1
        s = self.sequences
        for row in torch.nonzero(s.active)[:, 0].tolist():
            length, here = int(s.lens[row]), positions[row].tolist()
            used = [p for p in here if p >= 0]
            assert used == list(range(used[0], used[0] + len(used))) if used else True, (
                f"row {row} has holes: {here}"
            )
            assert max(used, default=-1) < int(s.limits[row]), f"row {row} goes beyond its limit"
            if self.is_target:
                assert used, "an active row has no window"
                assert used[0] == length - 1, (
                    f"row {row}'s window starts at {used[0]}, its last committed token is at "
                    f"{length - 1}"
                )
                assert int(tokens[row, 0]) == int(s.tokens[row, length - 1])
            if used:
                known = self.fed[row, : min(length, used[-1] + 1)]
                assert (known == s.tokens[row, : len(known)].cpu().numpy()).all(), (
                    f"row {row} was not fed what it committed"
                )
                assert (self.fed[row, : used[-1] + 1] >= 0).all()
        return self.scorer(window)

    def _take(self, window: Window) -> None:
        rows = zip(window.tokens.tolist(), window.positions.tolist(), strict=True)
        for row, (some, places) in enumerate(rows):
            for token, place in zip(some, places, strict=True):
                assert place < window.span, f"position {place} is outside the span {window.span}"
                if place >= 0:
                    self.fed[window.start + row, place] = token
