"""The figures of one row of the table: those of a cell, or of a category of its prompts."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from bass.analysis.categories import SHARED, of_category
from bass.analysis.independent import independent, metrics
from bass.analysis.metrics import METRICS
from bass.analysis.repeats import Repeat, repeats_of
from bass.analysis.statistics import interval, without_spread
from bass.api import results
from bass.engine.cost import data_sheet_bandwidth, data_sheet_flops
from bass.report.cells import Cell
from bass.report.contrast import Lead, fastest_plain, same_work, speedup
from bass.runs.settings import Call

_NAMES = tuple(name for name, metric in METRICS.items() if metric.over != "one value")
_OF_PLAIN = "No finished cell of autoregressive decoding decodes the same requests"


@final
@dataclass(frozen=True, eq=False)  # identity: a comparison of all lines would be slow
class Part:
    """A cell, or a category of its prompts.

    generations: by their index in the cell. whole: whether times of steps are its own. repeats,
    prompts: independent values, see `bass.analysis.independent`.
    """

    cell: Cell
    category: str | None
    generations: Mapping[int, Repeat]
    whole: bool
    repeats: Sequence[Mapping[str, float]]
    prompts: Sequence[Mapping[str, float]]

    @property
    def speculative(self) -> bool:
        """Whether its cell has drafts."""
        return self.cell.speculative

    @property
    def same_target(self) -> tuple[str | None, ...]:
        """That of its cell, and its category."""
        return (*self.cell.same_target, self.category)

    @property
    def runs(self) -> int:
        """The number of repeats."""
        return len(self.repeats)

    @functools.cached_property
    def _values(self) -> dict[str, float]:
        return metrics(self.repeats, self.prompts)

    def value(self, name: str) -> float | None:
        """The mean of the independent values; None where the metric does not apply."""
        return None if self.missing(name) else self._values[name]

    def by_repeat(self, name: str) -> dict[int, float]:
        """The values of repeats that have one."""
        return {i: one[name] for i, one in enumerate(self.repeats) if name in one}

    def missing(self, name: str) -> str | None:
        """Why there is no value of the metric; None if there is one."""
        if not self.whole and name in SHARED:
            return "Prompts of all categories share the steps: leave `samples` out of the config"
        if name == "exact_match_rate":
            if self.cell.settings.get("temperature") != 0:
                return "Exact matches are those of greedy decoding, at temperature 0"
            if name not in self._values and not self.cell.speculative:
                return "The cell is autoregressive decoding itself"
        if name in self._values:
            return None
        return _OF_PLAIN if name == "exact_match_rate" else "The metric does not apply"

    def interval(self, name: str, fewest: int) -> tuple[float, float] | None:
        """The interval of the mean, of `fewest` or more independent values with a spread; not below
        what the metric can be.
        """
        ones = self.repeats if METRICS[name].over == "repeats" else self.prompts
        values = np.array([one[name] for one in ones if name in one])
        if len(values) < fewest or without_spread(values):
            return None
        found = interval(values)
        return max(found.low, METRICS[name].least), found.high

    @functools.cached_property
    def acceptance(self) -> list[float | None]:
        """Conditional acceptance by position, pooled over all calls."""
        steps = [step for one in self.generations.values() for step in one.steps]
        return results.acceptance_by_position(steps)[0]

    def speedup(self, others: Sequence["Part"]) -> "tuple[Part, Lead] | None":
        """Its speed-up, and the fastest autoregressive decoding that it is over; None without one,
        or if it is not lossless.
        """
        base = fastest_plain(self, others) if self.cell.entry.lossless else None
        if base is None:
            return None
        if base is self:
            return self, Lead(1.0, None, None)
        paired = same_work(self.cell, base.cell)
        found = speedup(self.by_repeat("all"), base.by_repeat("all"), paired)
        return None if found is None else (base, found)


def part_of(cell: Cell, category: str | None, plain: Cell | None) -> Part | None:
    """The part of a finished cell with this category, or all of it (None); None where there is
    none.

    plain: the cell that exact matches are counted over.
    """
    generations, summary = cell.generations, cell.summary
    assert summary is not None
    if category is None:
        whole = dict(enumerate(generations))
        return Part(cell, category, whole, True, summary.repeats, summary.prompts)
    compared = _with_plain(cell, generations, plain)
    own, is_whole = of_category(compared, category)
    if not own:
        return None
    calls = _calls(cell, len(summary.repeats))
    names = [name for name in _NAMES if is_whole or name not in SHARED]
    found = independent([calls[i] for i in own], [*own.values()], names)
    prompts = [one for one in found.prompts if one]
    return Part(cell, category, own, is_whole, found.repeats, prompts)


def _with_plain(cell: Cell, generations: Sequence[Repeat], plain: Cell | None) -> list[Repeat]:
    """The generations, each with that of autoregressive decoding of the same prompts and seed."""
    if plain is None or not plain.done:
        return [*generations]
    of_plain = dict(zip(plain.lines.repeats, repeats_of(plain.lines), strict=True))
    return [
        replace(one, plain=of_plain.get(number))
        for number, one in zip(cell.lines.repeats, generations, strict=True)
    ]


def _calls(cell: Cell, repeats: int) -> list[Call]:
    """The calls of a cell, as far as `independent` reads them, with a prompt for each request.

    A folder of version 4 does not say which prompt a request has: each repeat has the same ones,
    and a prompt that occurs twice counts as two.
    """
    count = max(len(cell.generations) // max(repeats, 1), 1)
    samples = cell.settings.get("samples")
    calls = []
    for i, one in enumerate(cell.generations):
        own = {}
        for line in one.requests:
            place = line.request // samples if samples else i % count
            own[line.request] = place if line.prompt is None else line.prompt
        numbers = [own.get(request, -1) for request in range(max(own, default=-1) + 1)]
        calls.append(Call(i, [], 1, i // count, 0, numbers))
    return calls


def weight_bytes(cell: Cell) -> float | None:
    """Bytes of each of the target's weights, of which a token costs two FLOPs; None if unknown."""
    facts = cell.summary and cell.summary.facts
    if facts is None:
        return None
    return round(2 * facts.target["weight_bytes"] / max(facts.target["flops_per_token"], 1), 1)


def data_sheet(name: str, cell: Cell, device: str) -> float | str:
    """The factor from the share of the measured peak to that of the data sheet; or why there is
    none, in a sentence without its period.

    device: the run's, for a cell that does not name its own.
    """
    facts = cell.summary and cell.summary.facts
    if facts is None:
        return "The cell has no measured peaks"
    device = facts.device or device
    if name == "mbu":
        sheet = data_sheet_bandwidth(device)
        return f"No data sheet is known of {device}" if sheet is None else facts.bandwidth / sheet
    dtype = cell.entry.target.get("dtype", "")
    if dtype == "auto" and weight_bytes(cell) == 2:
        dtype = "bfloat16"  # or float16, which has the same peak
    sheet = data_sheet_flops(device, dtype)
    if sheet is not None:
        return facts.flops / sheet
    if data_sheet_bandwidth(device) is None:
        return f"No data sheet is known of {device}"
    return f"The data sheet's FLOP/s are of bfloat16 and float16, and the dtype is {dtype}"
