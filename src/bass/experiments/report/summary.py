"""Which setting wins, by how much, and how sure that is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from bass.experiments.metrics import METRICS
from bass.experiments.report.cells import Cell
from bass.experiments.report.contrast import Lead, lead
from bass.experiments.report.words import number, shown
from bass.experiments.statistics import LEVEL

DECIDES = METRICS["all"]  # the metric by which a setting wins: seconds per token, the mean of all sequences


@final
@dataclass(frozen=True)
class Winner:
    """The best cell of a batch, and the others in order."""

    best: Cell
    others: list[Cell]

    @property
    def plain(self) -> Cell | None:
        """The best one that drafts nothing, if that is another one."""
        return None if not self.best.speculative else next((cell for cell in self.others if not cell.speculative), None)

    @property
    def second(self) -> Cell | None:
        """The second best."""
        return self.others[0] if self.others else None

    def over(self, other: Cell) -> Lead | None:
        """How many times as fast the best is; the interval allows for its having been chosen as the best."""
        return lead(self.best, other, DECIDES, max(1, len(self.others)))


def winners(cells: Sequence[Cell]) -> dict[int, Winner]:
    """The best of each batch, among the cells that are done."""
    found: dict[int, Winner] = {}
    for batch in sorted({cell.batch for cell in cells}):
        ranked = sorted((cell for cell in cells if cell.batch == batch and cell.values(DECIDES.name)), key=typical)
        if ranked:
            found[batch] = Winner(ranked[0], ranked[1:])
    return found


def typical(cell: Cell) -> float:
    """Seconds per token: the geometric mean over repeats, as in `lead`, so that the best one leads."""
    return math.exp(np.log(cell.values(DECIDES.name)).mean())


def sentences(found: dict[int, Winner]) -> list[str]:
    """The summary, the most important sentence first."""
    if not found:
        return []
    names = [winner.best.label for winner in found.values()]
    most = max(dict.fromkeys(names), key=names.count)
    batches = [batch for batch, winner in found.items() if winner.best.label == most]
    if not any(winner.others for winner in found.values()):
        head = "One setting was run: there is nothing to compare it with."
    elif len(batches) == len(found) > 1:
        head = f"{most} is the fastest setting at every batch."
    else:
        head = f"{most} is the fastest setting at batch {listed(batches)}."
    told = [head, *(_of_batch(batch, winner) for batch, winner in found.items())]
    leads = {batch: winner.over(winner.second) for batch, winner in found.items() if winner.second is not None}
    unclear = [batch for batch, one in leads.items() if one is not None and one.low is not None and not one.clear]
    alone = [batch for batch, one in leads.items() if one is not None and one.low is None]
    if unclear:
        told.append(
            f"At batch {listed(unclear)} the lead over the second best is within the noise: take more repeats before you rely on it."
        )
    if alone:
        told.append(f"At batch {listed(alone)} there is one repeat, so nobody can say how far a lead is noise.")
    if any(one is not None and one.low is not None for one in leads.values()):
        told.append(f"In brackets: {100 * LEVEL:.0f} % intervals over repeats, which allow for the best having been chosen among several.")
    return told


def listed(values: Sequence[object]) -> str:
    """`1, 2 and 4`."""
    *most, last = map(str, values)
    return f"{', '.join(most)} and {last}" if most else last


def _of_batch(batch: int, winner: Winner) -> str:
    told = [f"Batch {batch}: {winner.best.label} takes {number(typical(winner.best), DECIDES.unit)} {shown(DECIDES.unit)}"]
    for other in dict.fromkeys((winner.plain, winner.second)):
        if other is not None and (found := winner.over(other)) is not None:
            name = other.label if other.speculative else f"{other.label} (nothing drafted)"
            told.append(f"{found.in_words()} as {name}")
    return f"{', '.join(told)}."
