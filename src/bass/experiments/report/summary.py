"""Which setting wins, by how much, and how sure that is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from bass.experiments.metrics import METRICS
from bass.experiments.report.cells import Cell
from bass.experiments.report.contrast import Lead, lead
from bass.experiments.report.words import number, shown
from bass.experiments.statistics import LEVEL

DECIDES = METRICS["all"]  # the metric by which a setting wins: seconds per token, the mean of all sequences
MOST_TOLD = 6  # places, of perhaps hundreds


@final
@dataclass(frozen=True)
class Winner:
    """The best cell of a place, and the others in order. A place is a batch, or a batch and a work: see `Cell.place`."""

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


def winners(cells: Sequence[Cell]) -> dict[str, Winner]:
    """The best of each place, among the cells that are done."""
    found: dict[str, Winner] = {}
    for place in dict.fromkeys(cell.place for cell in sorted(cells, key=lambda cell: cell.batch)):
        ranked = sorted((cell for cell in cells if cell.place == place and cell.value(DECIDES.name) is not None), key=_decides)
        if ranked:
            found[place] = Winner(ranked[0], ranked[1:])
    return found


def _decides(cell: Cell) -> float:
    """Seconds per token, of a cell that has them."""
    return cell.value(DECIDES.name) or 0.0


def sentences(found: Mapping[str, Winner]) -> list[str]:
    """The summary, the most important sentence first."""
    if not found:
        return [f"No cell has a time per token (`{DECIDES.name}`), since none finished a request: no setting can be called the fastest."]
    told = [_head(found)]
    told += [_of_place(place, winner) for place, winner in list(found.items())[:MOST_TOLD]]
    if len(found) > MOST_TOLD:
        told.append(f"So it goes on for {len(found) - MOST_TOLD} more places: the table has them all, the best of each in bold.")
    leads = _leads(found)
    lost = [place for place, winner in found.items() if winner.others and not winner.best.speculative]
    if lost and any(cell.speculative for winner in found.values() for cell in winner.others):
        told.append(f"At {_places(lost, found)} nothing that drafts is faster than plain decoding.")
    alone = [place for place, one in leads.items() if one.low is None]
    if alone:
        told.append(f"At {_places(alone, found)} a setting has one repeat, so nobody can say how far the lead is noise: take more repeats.")
    if len(alone) < len(leads):
        told.append(f"In brackets: {100 * LEVEL:.0f} % intervals over repeats, which allow for the best having been chosen among several.")
    told.append("Times are means over repeats.")
    return told


def _head(found: Mapping[str, Winner]) -> str:
    """Which setting wins, where, and whether that is more than noise."""
    names = [winner.best.choice for winner in found.values()]
    most = max(dict.fromkeys(names), key=names.count)
    where = [place for place, winner in found.items() if winner.best.choice == most]
    leads = {place: lead for place, lead in _leads(found).items() if place in where}
    if not any(winner.others for winner in found.values()):
        return "One setting was run: there is nothing to compare it with." if len(found) == 1 else "No setting has a rival at its place."
    rare = "No setting wins everywhere, " if 2 * len(where) <= len(found) else ""
    head = f"{rare}{most} is the fastest {'most often, ' if rare else 'setting '}at {_places(where, found)}"
    over_plain = [lead.times for place in where if (plain := found[place].plain) and (lead := found[place].over(plain))]
    if over_plain:
        low, high = (f"{times:.2f}" for times in (min(over_plain), max(over_plain)))
        head += f", {low if low == high else f'{low} to {high}'} times as fast as plain decoding"
    clear = [place for place, lead in leads.items() if lead.clear]
    sure = f"beyond the noise ({100 * LEVEL:.0f} %)"
    if all(lead.low is None for lead in leads.values()):
        return f"{head}."
    if not clear:
        return f"{head}; its lead over the second best is within the noise: take more repeats before you rely on it."
    if len(clear) == len(leads):
        return f"{head}; its lead over the second best is {sure}."
    return f"{head}; its lead over the second best is {sure} at {_places(clear, found)}, and elsewhere within it."


def _leads(found: Mapping[str, Winner]) -> dict[str, Lead]:
    """Over the second best of each place."""
    every = {place: winner.over(winner.second) for place, winner in found.items() if winner.second is not None}
    return {place: lead for place, lead in every.items() if lead is not None}


def _places(places: Sequence[str], found: Mapping[str, Winner]) -> str:
    """`batch 1 and 4`, or `every batch`, or `5 of 12 places` where they are many."""
    plain = all("," not in place for place in found)
    if len(places) == len(found) > 1:
        return "every batch" if plain else "every place"
    if len(places) > MOST_TOLD:
        return f"{len(places)} of {len(found)} {'batches' if plain else 'places'}"
    return f"batch {listed([place.removeprefix('batch ') for place in places])}" if plain else listed([f"({place})" for place in places])


def listed(values: Sequence[object]) -> str:
    """`1, 2 and 4`."""
    *most, last = map(str, values)
    return f"{', '.join(most)} and {last}" if most else last


def _of_place(place: str, winner: Winner) -> str:
    took = f"{number(winner.best.value(DECIDES.name), DECIDES.unit)} {shown(DECIDES.unit)}"
    told = [f"{place[0].upper()}{place[1:]}: {winner.best.choice} takes {took}"]
    for other in dict.fromkeys((winner.plain, winner.second)):
        if other is not None and (found := winner.over(other)) is not None:
            name = other.choice if other.speculative else f"{other.choice} (nothing drafted)"
            told.append(f"{found.in_words()} as {name}{'' if found.clear or found.low is None else ', which is within the noise'}")
    return f"{', '.join(told)}{'' if winner.others else ', and has no rival there'}."
