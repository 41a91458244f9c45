"""The cells of a run for a report: each with a label, a batch, and its lines."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from bass.analysis.against_plain import impossible, not_of_drafts
from bass.analysis.independent import metrics
from bass.analysis.metrics import METRICS
from bass.analysis.repeats import Repeat, repeats_of
from bass.runs.conditions import ConditionLine, read_conditions
from bass.runs.records import CellEntry, Manifest, Summary
from bass.runs.run_folder import CellLines, RunFolder
from bass.runs.settings import SETTINGS
from bass.runs.words import in_words
from bass.runs.work import WORK, settings_of

LOSSY = " (not lossless)"


@final
@dataclass(frozen=True, eq=False)  # equality by identity: comparing all lines would be slow
class Cell:
    """One cell, finished or not.

    label: the settings that distinguish it, without its batch. choice: the part of the label that
    says how it decodes. work: the decoded work, if cells differ in it; only cells of the same batch
    and work are ranked together. settings: all, as `settings_of` returns them.
    """

    entry: CellEntry
    label: str
    choice: str
    work: str
    settings: Mapping[str, Any]
    batch: int  # rows; 0 without steps
    summary: Summary | None
    lines: CellLines
    conditions: Sequence[ConditionLine] = ()  # of the machine, by generation

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
        """The group in which it is ranked: its batch and its work, and whether it is lossless."""
        lossy = "" if self.entry.lossless else ", not lossless"
        return f"batch {self.batch}{self.work and f', {self.work}'}" + lossy

    @property
    def same_target(self) -> tuple[str, ...]:
        """The properties that its autoregressive counterpart must share: its place, and the
        target's device, dtype and quantization.
        """
        return (self.place, *self.entry.target.values())

    @property
    def speculative(self) -> bool:
        """Whether it has drafts."""
        return any(any(step.drafted) for step in self.lines.steps)

    def values(self, name: str) -> dict[int, float]:
        """The independent values of the metric, by the number of the repeat or prompt."""
        over = METRICS[name].over
        if self.summary is None or over == "one value":
            return {}
        ones = self.summary.repeats if over == "repeats" else self.summary.prompts
        return {i: one[name] for i, one in enumerate(ones) if name in one}

    def value(self, name: str) -> float | None:
        """The cell's value of the metric; None if it has none."""
        return self._metrics.get(name)

    @property
    def doubt(self) -> str | None:
        """Why its speed-up over autoregressive decoding is impossible; None if it is possible."""
        return self.summary and impossible(self.summary)

    @property
    def remark(self) -> str | None:
        """What its speed-up is due to besides drafts, if it is more than drafts can give."""
        return self.summary and not_of_drafts(self.summary)

    @functools.cached_property
    def _metrics(self) -> dict[str, float]:
        return {} if self.summary is None else metrics(self.summary.repeats, self.summary.prompts)

    @functools.cached_property
    def generations(self) -> list[Repeat]:
        """The complete generations, in order."""
        return repeats_of(self.lines, None if self.summary is None else self.summary.facts)

    @functools.cached_property
    def requests(self) -> list[tuple[int, int, int, int]]:
        """Of each request: its generation and number, the length of its prompt (0 for a later turn,
        where it depends on the answers), and its seed.
        """
        return sorted(
            (line.repeat, line.request, 0 if line.turn else line.prompt_tokens, line.seed)
            for line in self.lines.requests
        )


def read_cells(run: RunFolder) -> list[Cell]:
    """All cells of the plan, in its order."""
    manifest = run.manifest
    read = [(entry, *run.read(entry)) for entry in run.cells]
    rows = [
        max((len(step.request_rows) for step in lines.steps), default=0) for _, _, lines in read
    ]
    axes = telling_axes(
        [(entry.settings, batch) for (entry, _, _), batch in zip(read, rows, strict=True)],
        manifest.axes,
    )
    settings = [settings_of(entry, manifest.config) for entry in run.cells]
    named, works = choices(manifest), _works(manifest, settings, rows, axes)
    return [
        Cell(
            entry,
            label(entry, axes),
            named[entry.id],
            work,
            own,
            batch,
            summary,
            lines,
            read_conditions(run.cell_folder(entry.id)),
        )
        for (entry, summary, lines), work, own, batch in zip(
            read, works, settings, rows, strict=True
        )
    ]


def choices(manifest: Manifest) -> dict[str, str]:
    """The way to decode of each cell, in words, by the cell's id."""
    axes = telling_axes([(entry.settings, 0) for entry in manifest.cells], manifest.axes)
    ways = [axis for axis in axes if not varied(manifest.config, axis) <= {*WORK}]
    return {entry.id: label(entry, ways) for entry in manifest.cells}


def _works(
    manifest: Manifest,
    settings: Sequence[Mapping[str, Any]],
    rows: Sequence[int],
    axes: Sequence[str],
) -> list[str]:
    """The work of each cell, in words, if cells of one batch differ in it."""
    own = [axis for axis in axes if varied(manifest.config, axis) <= {*WORK}]
    reported = [words(entry.settings, own) for entry in manifest.cells]
    places = [*zip(reported, rows, strict=True)]

    def is_shown(name: str) -> bool:
        values = {
            (*place, repr(one.get(name)))
            for place, one in zip(places, settings, strict=True)
            if place[1]
        }
        return len(values) == len({value[:2] for value in values})

    names = [name for name in WORK if not is_shown(name)]
    return [
        ", ".join(
            [
                *([reported] if reported else []),
                *(f"{name}={in_words(one.get(name))}" for name in names),
            ]
        )
        for reported, one in zip(reported, settings, strict=True)
    ]


def varied(config: Mapping[str, Any], axis: str) -> set[str]:
    """The settings that an axis of the config varies."""
    axes, head = config.get("axes"), axis.partition(".")[0]
    values = axes.get(axis) if isinstance(axes, Mapping) else None
    if head in SETTINGS or not isinstance(values, Mapping):
        return {head}
    labelled = [labels for labels in values.values() if isinstance(labels, Mapping)]
    return {str(key).partition(".")[0] for labels in labelled for key in labels} or {head}


def telling_axes(cells: Sequence[tuple[dict[str, Any], int]], axes: Sequence[str]) -> list[str]:
    """The axes with more than one value, without the number of rows."""
    varied = [axis for axis in axes if len({repr(settings[axis]) for settings, _ in cells}) > 1]
    sized = [(settings, rows) for settings, rows in cells if rows]
    return [
        axis
        for axis in varied
        if not sized or not all(settings[axis] == rows for settings, rows in sized)
    ]


def label(entry: CellEntry, axes: Iterable[str]) -> str:
    """The values of the axes, or a default without axes, and whether the cell is not lossless."""
    return (words(entry.settings, axes) or "this setting") + ("" if entry.lossless else LOSSY)


def words(settings: Mapping[str, Any], axes: Iterable[str]) -> str:
    """The values of the axes, with the axis's name unless the value is itself a name."""
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
    """The cells of the largest batch that the most settings share."""
    batches = [cell.batch for cell in cells]
    batch = max(set(batches), key=lambda b: (batches.count(b), b), default=0)
    return [cell for cell in cells if cell.batch == batch], batch
