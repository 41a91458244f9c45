"""The cells of a run as a report needs them: with a label, a batch, and their lines read once."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from bass.experiments.metrics import over_repeats
from bass.experiments.records import CellEntry, CellLines, RunFolder, Summary
from bass.experiments.repeats import Repeat, repeats_of
from bass.experiments.settings import SETTINGS

# Settings that say what is decoded; the others say how.
WORK = {
    "target",
    "prompts",
    "num_prompts",
    "samples",
    "max_new_tokens",
    "ignore_eos",
    "stop",
    "seed",
    "time_budget",
    "batch",
}
WORK |= {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"}


@final
@dataclass(frozen=True, eq=False)  # a cell is itself: comparing all its lines would be slow
class Cell:
    """One cell, finished or not.

    label: the settings that tell it from the others, its batch not among them. choice, work: the
    part of the label that is a way to decode, and the part that says what is decoded; only cells of
    the same batch and the same work are rivals.
    """

    entry: CellEntry
    label: str
    choice: str
    work: str
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
    def place(self) -> str:
        """Where it has rivals: its batch, and its work."""
        return f"batch {self.batch}{self.work and f', {self.work}'}"

    @property
    def speculative(self) -> bool:
        """Whether anything was drafted."""
        return any(any(step.drafted) for step in self.lines.steps)

    def values(self, name: str) -> list[float]:
        """The metric of every repeat that has it."""
        return (
            []
            if self.summary is None
            else [repeat[name] for repeat in self.summary.repeats if name in repeat]
        )

    def value(self, name: str) -> float | None:
        """That of the cell; None where it has none."""
        return self._metrics.get(name)

    @functools.cached_property
    def _metrics(self) -> dict[str, float]:
        return {} if self.summary is None else over_repeats(self.summary.repeats)

    @functools.cached_property
    def repeats(self) -> list[Repeat]:
        """Those that ended, in order."""
        return repeats_of(self.lines, None if self.summary is None else self.summary.facts)


def read_cells(run: RunFolder) -> list[Cell]:
    """All cells of the plan, in its order."""
    read = [(entry, run.summary(entry.id), run.lines(entry.id)) for entry in run.cells]
    rows = [
        max((len(step.request_rows) for step in lines.steps), default=0) for _, _, lines in read
    ]
    axes = telling_axes(
        [(entry.settings, batch) for (entry, _, _), batch in zip(read, rows, strict=True)],
        run.manifest.axes,
    )
    work = [axis for axis in axes if is_work(run.manifest.config, axis)]
    # where nothing but the work varies, that is what is compared
    choice = [axis for axis in axes if axis not in work] or axes
    work = [axis for axis in work if axis not in choice]
    return [
        Cell(
            entry,
            label(entry.settings, axes),
            label(entry.settings, choice),
            words(entry.settings, work),
            batch,
            summary,
            lines,
        )
        for (entry, summary, lines), batch in zip(read, rows, strict=True)
    ]


def is_work(config: Mapping[str, Any], axis: str) -> bool:
    """Whether an axis of the config varies what is decoded, and not how."""
    values = (config.get("axes") or {}).get(axis)
    own = axis.partition(".")[0] in SETTINGS
    varied = (
        {axis}
        if own or not isinstance(values, Mapping)
        else {key for settings in values.values() for key in settings}
    )
    return varied <= WORK


def telling_axes(cells: Sequence[tuple[dict[str, Any], int]], axes: Sequence[str]) -> list[str]:
    """The axes with more than one value, without the one that is the number of rows."""
    varied = [axis for axis in axes if len({repr(settings[axis]) for settings, _ in cells}) > 1]
    sized = [(settings, rows) for settings, rows in cells if rows]
    return [
        axis
        for axis in varied
        if not sized or not all(settings[axis] == rows for settings, rows in sized)
    ]


def label(settings: dict[str, Any], axes: Iterable[str]) -> str:
    """The values of the axes, or what there is to say without any."""
    return words(settings, axes) or "this setting"


def words(settings: Mapping[str, Any], axes: Iterable[str]) -> str:
    """The values of the axes, with the axis's name where the value is no name itself."""
    return ", ".join(
        value if isinstance(value := settings[axis], str) else f"{axis}={value}" for axis in axes
    )


def by_label(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """The cells of each label, by batch."""
    groups: dict[str, list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.batch):
        groups.setdefault(cell.label, []).append(cell)
    return groups


def at_one_batch(cells: Sequence[Cell]) -> tuple[list[Cell], int]:
    """The cells of the largest batch that most settings have."""
    batches = [cell.batch for cell in cells]
    batch = max(set(batches), key=lambda b: (batches.count(b), b), default=0)
    return [cell for cell in cells if cell.batch == batch], batch
