"""The cells of a run as a report needs them: with a label, a batch, and their lines read once."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from bass.experiments.records import CellEntry, CellLines, RunFolder, Summary
from bass.experiments.repeats import Repeat, repeats_of


@final
@dataclass(frozen=True, eq=False)  # a cell is itself: comparing all its lines would be slow
class Cell:
    """One cell, finished or not. `label`: the settings that tell it from the others, its batch not among them."""

    entry: CellEntry
    label: str
    batch: int  # rows; 0 where it has no steps
    summary: Summary | None
    lines: CellLines

    @property
    def done(self) -> bool:
        """Whether it has figures."""
        return self.summary is not None and self.summary.state == "done"

    @property
    def title(self) -> str:
        """Label and batch."""
        return f"{self.label}, batch {self.batch}" if self.batch else self.entry.id

    @property
    def speculative(self) -> bool:
        """Whether anything was drafted."""
        return any(any(step.drafted) for step in self.lines.steps)

    def values(self, name: str) -> list[float]:
        """The metric of every repeat that has it."""
        return [] if self.summary is None else [repeat[name] for repeat in self.summary.repeats if name in repeat]

    def mean(self, name: str) -> float | None:
        """The mean of the metric over the repeats that have it."""
        values = self.values(name)
        return float(np.mean(values)) if values else None

    @functools.cached_property
    def repeats(self) -> list[Repeat]:
        """Those that ended, in order."""
        return repeats_of(self.lines, None if self.summary is None else self.summary.facts)


def read_cells(run: RunFolder) -> list[Cell]:
    """All cells of the plan, in its order."""
    read = [(entry, run.summary(entry.id), run.lines(entry.id)) for entry in run.cells]
    rows = [max((len(step.request_rows) for step in lines.steps), default=0) for _, _, lines in read]
    axes = telling_axes([(entry.settings, batch) for (entry, _, _), batch in zip(read, rows, strict=True)], run.manifest.axes)
    return [
        Cell(entry, label(entry.settings, axes), batch, summary, lines) for (entry, summary, lines), batch in zip(read, rows, strict=True)
    ]


def telling_axes(cells: Sequence[tuple[dict[str, Any], int]], axes: Sequence[str]) -> list[str]:
    """The axes with more than one value, without the one that is the number of rows."""
    varied = [axis for axis in axes if len({repr(settings[axis]) for settings, _ in cells}) > 1]
    sized = [(settings, rows) for settings, rows in cells if rows]
    return [axis for axis in varied if not sized or not all(settings[axis] == rows for settings, rows in sized)]


def label(settings: dict[str, Any], axes: Iterable[str]) -> str:
    """The values of the axes, with the axis's name where the value is no name itself."""
    words = (value if isinstance(value := settings[axis], str) else f"{axis}={value}" for axis in axes)
    return ", ".join(words) or "this setting"


def pooled(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, least and greatest."""
    return float(np.mean(values)), min(values), max(values)


def by_label(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """The cells of each label, by batch."""
    groups: dict[str, list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.batch):
        groups.setdefault(cell.label, []).append(cell)
    return groups
