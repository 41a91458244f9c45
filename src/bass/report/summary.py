"""The winning setting, its lead, and the confidence."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from bass.analysis.metrics import METRICS
from bass.analysis.statistics import LEVEL
from bass.analysis.units import number, shown
from bass.report.cells import Cell
from bass.report.contrast import Lead, fastest_plain, lead
from bass.runs.words import listed

# the metric that ranks settings: seconds per token, the mean of all sequences
DECIDES = METRICS["all"]
MOST_REPORTED = 6  # places, out of up to hundreds
MOST_LEVEL = 3  # settings of a place over which the lead may be noise
MEANINGLESS = "their texts do not follow the target's distribution, whatever their times"
RATIO = (  # the only one on the page
    f"A is x times as fast as B: the time per token of B over that of A (`{DECIDES.name}`: the "
    "mean over sequences, from the end of the "
    "prefill; then the mean over repeats)."
)


@final
@dataclass(frozen=True)
class Winner:
    """The fastest cell of a place, and the others in order.

    A place is a batch, or a batch and a work; settings that are not lossless have their own, so
    that none is compared with a lossless one. See `Cell.place`.
    """

    best: Cell
    others: list[Cell]

    @property
    def lossless(self) -> bool:
        """Whether the settings of the place are lossless."""
        return self.best.entry.lossless

    @property
    def plain(self) -> Cell | None:
        """The autoregressive cell that the fastest one is compared with, if they differ."""
        return self.plain_for(self.best) if self.best.speculative else None

    def plain_for(self, cell: Cell) -> Cell | None:
        """The fastest cell without drafts, with the target on the same device and of the same dtype
        and quantization.
        """
        return fastest_plain(cell, (self.best, *self.others))

    @property
    def second(self) -> Cell | None:
        """The second fastest."""
        return self.others[0] if self.others else None

    def over(self, other: Cell) -> Lead | None:
        """The lead of the fastest; its interval accounts for the selection among several."""
        return lead(self.best, other, DECIDES, max(1, len(self.others)))

    @property
    def clear(self) -> bool:
        """Whether the fastest is faster than every other beyond the noise; False without another
        cell, or with an impossible speed-up.
        """
        return bool(self.others) and self.best.doubt is None and not self.level

    @functools.cached_property
    def level(self) -> list[Cell]:
        """The others over which the lead of the fastest is not shown, in order."""
        return [cell for cell in self.others if not self._is_clear(cell)]

    @property
    def beats_all_drafts(self) -> bool | None:
        """For autoregressive decoding as the fastest: whether it is faster than every setting that
        drafts for the same target beyond the noise. None if there is none, or another is the
        fastest.
        """
        drafting = [
            cell for cell in self.others if cell.speculative and self.plain_for(cell) is self.best
        ]
        return all(map(self._is_clear, drafting)) if drafting else None

    def _is_clear(self, other: Cell) -> bool:
        found = self.over(other)
        return found is not None and found.clear


def winners(cells: Sequence[Cell]) -> dict[str, Winner]:
    """The fastest finished cell of each place, those of lossless settings first."""
    found: dict[str, Winner] = {}
    ordered = sorted(cells, key=lambda cell: (not cell.entry.lossless, cell.batch))
    for place in dict.fromkeys(cell.place for cell in ordered):
        ranked = sorted(
            (
                cell
                for cell in cells
                if cell.place == place and cell.value(DECIDES.name) is not None
            ),
            key=_decides,
        )
        if ranked:
            found[place] = Winner(ranked[0], ranked[1:])
    return found


def _decides(cell: Cell) -> float:
    """Seconds per token of a cell, if it has them."""
    return cell.value(DECIDES.name) or 0.0


def sentences(found: Mapping[str, Winner]) -> list[str]:
    """The summary, the most important sentence first, without differences that may be noise.

    Settings that are not lossless come last, and are compared with each other only.
    """
    if not found:
        return [
            (
                f"No cell has a time per token (`{DECIDES.name}`), since none finished a request: "
                "no setting is the fastest."
            )
        ]
    ranked = {place: winner for place, winner in found.items() if winner.lossless}
    reported = [] if ranked else [f"None of these settings is lossless: {MEANINGLESS}."]
    reported += _conclusions(ranked or found, "lossless " if 0 < len(ranked) < len(found) else "")
    reported += [_of_place(place, winner) for place, winner in list(found.items())[:MOST_REPORTED]]
    if len(found) > MOST_REPORTED:
        reported.append(f"The table has {len(found) - MOST_REPORTED} more places.")
    leads = _leads(found)
    alone = [place for place, ones in leads.items() if any(one.low is None for one in ones)]
    if alone:
        reported.append(
            f"At {_places(alone, found)} a setting has one repeat, which does not show whether "
            "the lead is noise: take more repeats."
        )
    if any(one.low is not None for ones in leads.values() for one in ones):
        reported.append(
            f"In brackets: {100 * LEVEL:.0f} % intervals over repeats, which account for the "
            "selection of the fastest among several."
        )
    return [*reported, *([RATIO] if leads else [])]


def _conclusions(found: Mapping[str, Winner], kind: str) -> list[str]:
    """Which settings are the fastest, and whether drafting is faster. `kind`: `lossless ` where
    others are left out, else empty.
    """
    doubted = [place for place, winner in found.items() if winner.best.doubt is not None]
    reported = []
    if doubted:
        reported.append(
            f"At {_places(doubted, found)} the speed-up of the fastest {kind}setting is "
            "impossible: the warnings give the reason, and no setting is called the fastest there."
        )
    if len(doubted) < len(found):
        reported += [_head(found, kind), *_over_plain(found, kind)]
    return reported


def _head(found: Mapping[str, Winner], kind: str) -> str:
    """The settings that are the fastest beyond the noise, and where."""
    rivals = {
        place: winner
        for place, winner in found.items()
        if winner.others and winner.best.doubt is None
    }
    if not rivals:
        return (
            f"Only one {kind}setting was run: there is nothing to compare."
            if len(found) == 1
            else f"No two {kind}settings have the same place."
        )
    clear = {place: winner for place, winner in rivals.items() if winner.clear}
    if not clear:
        return _none_is_clear(found, rivals, kind)
    names = [winner.best.choice for winner in clear.values()]
    most = max(dict.fromkeys(names), key=names.count)
    where = [place for place, winner in clear.items() if winner.best.choice == most]
    rare = f"No {kind}setting is the fastest everywhere, " if len(set(names)) > 1 else ""
    head = (
        f"{rare}{most} is the fastest {'most often, ' if rare else f'{kind}setting '}at "
        f"{_places(where, found)}"
    )
    by = [
        lead.times
        for place in where
        if (lead := _lead_over_plain(clear[place])) is not None and lead.clear
    ]
    head += f", {_range(by)} times as fast as autoregressive decoding" if by else ""
    unsure = [place for place in rivals if place not in clear]
    rest = (
        f"; at {_places(unsure, found)} the lead of the fastest is within the noise"
        if unsure
        else ""
    )
    return f"{head}: a lead beyond the noise ({100 * LEVEL:.0f} %){rest}."


def _none_is_clear(found: Mapping[str, Winner], rivals: Mapping[str, Winner], kind: str) -> str:
    where = _places([*rivals], found)
    if all(lead.low is None for leads in _leads(rivals).values() for lead in leads):
        return (
            f"One repeat of each {kind}setting does not show which is the fastest at {where}: take "
            "more repeats."
        )
    return (
        f"At {where} the lead of the fastest {kind}setting is within the noise: take more repeats "
        "before you rely on it."
    )


def _over_plain(found: Mapping[str, Winner], kind: str) -> list[str]:
    """Places where drafting is faster than autoregressive decoding although no setting is clearly
    the fastest, and places where it is not.
    """
    reported = []
    unsure = {
        place: lead
        for place, w in found.items()
        if not w.clear and (lead := _lead_over_plain(w)) is not None and lead.clear
    }
    if unsure:
        by = _range([lead.times for lead in unsure.values()])
        reported.append(
            f"At {_places([*unsure], found)} the fastest {kind and f'{kind}setting '}is {by} times "
            "as fast as autoregressive decoding, which is beyond the noise."
        )
    for beaten, verb in ((True, "is"), (False, "is shown to be")):
        where = [place for place, winner in found.items() if winner.beats_all_drafts is beaten]
        if where:
            reported.append(
                f"At {_places(where, found)} no {kind}drafting setting {verb} faster than "
                "autoregressive decoding."
            )
    return reported


def _lead_over_plain(winner: Winner) -> Lead | None:
    """The lead over autoregressive decoding; None if impossible."""
    doubted = winner.best.doubt is not None
    return None if winner.plain is None or doubted else winner.over(winner.plain)


def _range(times: Sequence[float]) -> str:
    low, high = (f"{value:.2f}" for value in (min(times), max(times)))
    return low if low == high else f"{low} to {high}"


def _leads(found: Mapping[str, Winner]) -> dict[str, list[Lead]]:
    """The leads over the others of each place that has others."""
    return {
        place: [lead for other in winner.others if (lead := winner.over(other)) is not None]
        for place, winner in found.items()
        if winner.others
    }


def _places(places: Sequence[str], found: Mapping[str, Winner]) -> str:
    """`batch 1 and 4`, or `every batch`, or `5 of 12 places` where they are many."""
    plain = all("," not in place for place in found)
    if len(places) == len(found) > 1:
        return "every batch" if plain else "every place"
    if len(places) > MOST_REPORTED:
        return f"{len(places)} of {len(found)} {'batches' if plain else 'places'}"
    return (
        f"batch {listed([place.removeprefix('batch ') for place in places])}"
        if plain
        else listed([f"({place})" for place in places])
    )


def _of_place(place: str, winner: Winner) -> str:
    took = f"{number(winner.best.value(DECIDES.name), DECIDES.unit)} {shown(DECIDES.unit)}"
    reported = [f"{place[0].upper()}{place[1:]}: {winner.best.choice} takes {took}"]
    level = [cell for cell in winner.level if _has_interval(winner, cell)]
    named = dict.fromkeys((winner.plain, winner.second, *level[:MOST_LEVEL]))
    for other in named:
        if other is not None and (found := winner.over(other)) is not None:
            name = other.choice if other.speculative else f"{other.choice} (nothing drafted)"
            doubt = "" if found.clear or found.low is None else ", which is within the noise"
            if other is winner.plain and winner.best.doubt is not None:
                doubt = ", which is impossible"
            reported.append(f"{found.in_words()} as {name}{doubt}")
    more = len([cell for cell in level if cell not in named])
    if more:
        reported.append(f"with a lead within the noise over {more} more")
    return f"{', '.join(reported)}{'' if winner.others else ', and is the only setting there'}."


def _has_interval(winner: Winner, other: Cell) -> bool:
    lead = winner.over(other)
    return lead is not None and lead.low is not None
