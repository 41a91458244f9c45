"""Counts the bytes and FLOPs of the forward passes of a step, on the host.

    drafter --> LoggedScorer --> ModelScorer      PassLog: [(cost, columns), ...]
                                                      |
    lengths of the rows, from the step's report ------+--> bytes and FLOPs

A scorer records a pass when it launches it, or when a graph captures it. A drafter needs no code
for this: the scorers of its `DrafterContext` are logged. Its pass i, counted from 0, is taken to
feed the rows that drafted more than i tokens; the first one feeds all rows, from their last
committed tokens on. That is what a drafter does that feeds one token after the other. Of an
ensemble it is an estimate: rows that another part drafted count too.
"""

from dataclasses import dataclass, field
from typing import final

import numpy as np
from jaxtyping import Int

from bass.engine.cost import NO_WORK, PassCost, Work
from bass.interfaces import ForwardingRowStore, RowStore, Scorer
from bass.records import Features, Scored, Window

Pass = tuple[PassCost, int]  # and its number of columns


@final
@dataclass
class PassLog:
    """Forward passes since the last `take`.

    target: cost of the target's pass, which is not recorded: each step has exactly one.
    """

    target: PassCost | None = None
    passes: list[Pass] = field(default_factory=list)

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
            self.log.passes.append((self.fill_cost, window.positions.shape[1]))
        return super().fill(window)

    def __call__(self, window: Window) -> Scored:
        self.log.passes.append((self.cost, window.positions.shape[1]))
        return self.scorer(window)


def work_of(
    passes: tuple[Pass, ...],
    caught_up: tuple[Pass, ...],
    target: PassCost | None,
    lens: Int[np.ndarray, " batch"],
    drafted: Int[np.ndarray, " batch"],
    emitted: Int[np.ndarray, " batch"],
    active: np.ndarray,
) -> Work:
    """Work of a step; `lens` are the committed tokens of each row before it.

    passes: those of the drafter in the step. caught_up: those just before it, which feed the last
    committed tokens of each row, the earliest first. The target's pass covers each row's window.
    """
    work, ends = NO_WORK, lens + emitted - 1
    after = sum(columns for _, columns in caught_up)
    for cost, columns in caught_up:
        after -= columns
        work += cost.work(columns, lens - after, active, ends)
    widths: dict[PassCost, list[int]] = {}
    for cost, columns in passes:
        widths.setdefault(cost, []).append(columns)
    for cost, columns in widths.items():
        i = np.arange(len(columns))[:, None]
        fed = active & ((drafted > i) | (i == 0))
        work += cost.work(np.array(columns)[:, None], lens + i, fed, ends)
    return work if target is None else work + target.work(drafted + 1, lens + drafted, active, ends)
