"""Records the forward passes that a step launches.

    drafter --> LoggedScorer --> ModelScorer        PassLog: [(cost, positions), ...]
                     |                                 |
                     +------- positions, device -------+--> columns of the step's report --> host:
                     bytes and FLOPs

A scorer records a pass when it launches it, or when a graph captures it. The positions are part of
each step's report, so that the counts follow the rows' own lengths without another host read. A
drafter needs no code for this: the scorers of its `DrafterContext` are logged.
"""

from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from bass.engine.cost import NO_WORK, Layout, PassCost, Work, work_of_passes
from bass.interfaces import ForwardingRowStore, RowStore, Scorer
from bass.records import Features, Scored, Window


@dataclass(frozen=True)
class Pass:
    """A forward pass of the rows from `start` on."""

    cost: PassCost
    positions: Int[Tensor, "some window"]  # device
    start: int = 0

    def of_batch(self, batch: int) -> Int[Tensor, "batch window"]:
        """The positions of all rows, -1 for rows that the pass leaves out."""
        if len(self.positions) == batch:
            return self.positions
        return F.pad(
            self.positions, (0, 0, self.start, batch - self.start - len(self.positions)), value=-1
        )


@dataclass(frozen=True)
class Seen:
    """Passes on the host.

    positions: int [B, columns], those of all passes, concatenated.
    """

    layout: Layout
    positions: np.ndarray


@final
@dataclass
class PassLog:
    """Forward passes since the last `take`.

    target: cost of the target's pass, which is not recorded: each step has exactly one. copies:
    keeps copies of positions, which the drafter may write to after the pass.
    """

    target: PassCost | None = None
    copies: bool = True
    passes: list[Pass] = field(default_factory=list)

    def add(self, cost: PassCost, window: Window) -> None:
        """Record a pass."""
        positions = window.positions.clone() if self.copies else window.positions
        self.passes.append(Pass(cost, positions, window.start))

    def take(self) -> tuple[Pass, ...]:
        """Return the recorded passes and clear the log."""
        taken = tuple(self.passes)
        self.passes.clear()
        return taken


@final
@dataclass(frozen=True)
class LoggedScorer(ForwardingRowStore, Scorer):
    """Records every pass of `scorer`.

    fill_cost: cost of a pass that only writes keys and values; None: `fill` runs no pass.
    """

    scorer: Scorer
    log: PassLog
    cost: PassCost
    fill_cost: PassCost | None

    @property
    def store(self) -> RowStore:
        return self.scorer

    def fill(self, window: Window) -> Features:
        if self.fill_cost is not None:
            self.log.add(self.fill_cost, window)
        return super().fill(window)

    def __call__(self, window: Window) -> Scored:
        self.log.add(self.cost, window)
        return self.scorer(window)


def with_positions(
    report: Int[Tensor, "batch report"], passes: tuple[Pass, ...]
) -> tuple[Int[Tensor, "batch all"], Layout]:
    """Concatenate the report and the positions of each pass, for one copy to the host."""
    if not passes:
        return report, ()
    columns = [p.of_batch(len(report)).to(report.dtype) for p in passes]
    return torch.cat((report, *columns), 1), tuple((p.cost, p.positions.shape[1]) for p in passes)


def without_positions(
    packed: Int[np.ndarray, "batch all"], layout: Layout
) -> tuple[Int[np.ndarray, "batch report"], Seen]:
    """The inverse of `with_positions`."""
    last = packed.shape[1] - sum(width for _, width in layout)
    return packed[:, :last], Seen(layout, packed[:, last:])


def work_of(
    seen: Seen | None,
    caught_up: tuple[Pass, ...],
    target: PassCost | None,
    lens: Int[np.ndarray, " batch"],
    drafted: Int[np.ndarray, " batch"],
    emitted: Int[np.ndarray, " batch"],
    active: np.ndarray,
) -> Work:
    """Work of a step; `lens` are the committed tokens of each row before it.

    seen: the drafter's passes in the step. caught_up: its passes just before the step. The target's
    pass covers each row's window.
    """
    layout, columns = ([], []) if seen is None else (list(seen.layout), [seen.positions])
    for one in caught_up:
        layout.append((one.cost, one.positions.shape[1]))
        # sync: the step that followed it has ended
        columns.append(one.of_batch(len(lens)).cpu().numpy())
    if target is not None:
        ahead = np.arange(-1, int(drafted.max(initial=0)))
        layout.append((target, len(ahead)))
        columns.append(np.where(ahead < drafted[:, None], lens[:, None] + ahead, -1))
    if not layout:
        return NO_WORK
    positions = np.where(active[:, None], np.concatenate(columns, 1), -1)
    return work_of_passes(tuple(layout), positions, lens + emitted - 1)
