"""Reads a run folder."""

import functools
import hashlib
import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, final

from bass.errors import RunFolderError
from bass.runs import made_with
from bass.runs.lines import count_lines, read_lines
from bass.runs.made_with import MadeWith
from bass.runs.own_files import check_cell, content, decoded, inside
from bass.runs.records import (
    AgainstPlain,
    CellEntry,
    EndLine,
    Manifest,
    RequestLine,
    StepLine,
    Summary,
)
from bass.runs.strict import checked, parsed


def _of_another(folder: Path) -> RunFolderError:
    return RunFolderError(
        f"{folder} holds results of another run or cell: delete it, and give the run's command "
        "again, which runs the cell again."
    )


def _joined(own: list[dict[str, float]], more: list[dict[str, float]]) -> list[dict[str, float]]:
    """The metrics of both, by repeat or prompt."""
    return [one | other for one, other in itertools.zip_longest(own, more, fillvalue={})]


def _request_or_end(text: str, where: str) -> RequestLine | EndLine:
    data = parsed(text, where)
    return checked(EndLine if "end" in data else RequestLine, data, where)


@final
@dataclass(frozen=True)
class CellLines:
    """A cell's lines of the complete repeats. `notes`: sentences about omitted lines."""

    steps: list[StepLine]
    requests: list[RequestLine]
    repeats: list[int]  # those that ended, in order
    notes: list[str]


@final
@dataclass(frozen=True)
class RunFolder:
    """Reads a run folder. A missing file gives None, a damaged file is an error."""

    path: Path

    MANIFEST: ClassVar[str] = "manifest.json"
    SUMMARY: ClassVar[str] = "summary.json"
    STEPS: ClassVar[str] = "steps.jsonl"
    REQUESTS: ClassVar[str] = "requests.jsonl"
    AGAINST_PLAIN: ClassVar[str] = "against_plain.json"
    MADE_WITH: ClassVar[str] = made_with.FILE

    @functools.cached_property
    def manifest(self) -> Manifest:
        """The run's manifest: its config, cells and versions."""
        path = self.path / self.MANIFEST
        if not path.exists():
            raise RunFolderError(
                f"{self.path} is no run folder: it has no {self.MANIFEST}; give a folder that "
                "`bass ablate` wrote."
            )
        return Manifest.from_json(decoded(content(path), str(path), Manifest.REMEDY), str(path))

    @property
    def cells(self) -> list[CellEntry]:
        """All cells of the plan, run or not."""
        return self.manifest.cells

    def cell_folder(self, cell: str) -> Path:
        """The folder of a cell's files."""
        check_cell(cell)
        return inside(self.path, "cells", cell)

    def made_with(self, cell: CellEntry) -> MadeWith:
        """The hash of the current inputs of this cell."""
        run = self.manifest
        return MadeWith.of(
            run.config.get("base"), cell.settings, cell.own, run.inputs_of(cell.id),
            run.bass, run.torch, run.device,
        )  # fmt: skip

    def check_own(self, cell: CellEntry) -> None:
        """Raise an error for results of another run or cell in the folder of a cell.

        Raises `RunFolderError`.
        """
        folder = self.cell_folder(cell.id)
        path = folder / self.MADE_WITH
        if path.exists() and MadeWith.from_json(
            decoded(content(path), str(path)), str(path)
        ) != self.made_with(cell):
            raise _of_another(folder)

    def summary(self, cell: str) -> Summary | None:
        """The results of a cell, with its comparison with autoregressive decoding if there is one;
        None for an unfinished cell.
        """
        path = self.cell_folder(cell) / self.SUMMARY
        if not path.exists():
            return None
        summary = Summary.from_json(decoded(content(path), str(path)), str(path))
        if summary.cell != cell:
            raise _of_another(path.parent)
        against = self.against_plain(cell)
        # made of earlier results of one of the two cells
        if against is None or against.made_of != self.fingerprint(cell, against.plain):
            return summary
        return replace(
            summary,
            metrics=summary.metrics | against.metrics,
            repeats=_joined(summary.repeats, against.repeats),
            prompts=_joined(summary.prompts, against.prompts),
            plain=against.plain,
            unlike=against.unlike,
        )

    def fingerprint(self, *cells: str) -> str:
        """A hash of summaries; times of files are unreliable, since a clock may go backwards."""
        paths = [self.cell_folder(cell) / self.SUMMARY for cell in cells]
        return hashlib.sha256(b"".join(content(one) for one in paths if one.exists())).hexdigest()

    def line_counts(self, cell: str) -> dict[str, int]:
        """The number of lines of each of a cell's files, without an incomplete last one."""
        folder = self.cell_folder(cell)
        return {name: count_lines(folder / name) for name in (self.STEPS, self.REQUESTS)}

    def check_whole(self, cell: str, summary: Summary | None) -> None:
        """Raise an error for a finished cell whose files have fewer lines, or more, than when it
        ended.
        """
        if summary is None or summary.state != "done":
            return
        for name, count in self.line_counts(cell).items():
            if count != (then := summary.lines.get(name, 0)):
                raise RunFolderError(
                    f"{self.cell_folder(cell) / name} has {count:,} lines, and had {then:,} when "
                    "its cell ended: restore it, or delete the cell's folder and give the run's "
                    "command again, which runs the cell again."
                )

    def against_plain(self, cell: str) -> AgainstPlain | None:
        """The comparison of a cell with autoregressive decoding; None without such a cell in the
        run, or before it is finished.
        """
        path = self.cell_folder(cell) / self.AGAINST_PLAIN
        if not path.exists():
            return None
        text = content(path)
        try:
            return AgainstPlain.from_json(decoded(text, str(path)), str(path))
        except RunFolderError as error:  # nothing is lost: it is derived from the cells' lines
            raise RunFolderError(
                f"{path} is damaged: delete it, and give the run's command again, which makes it "
                "again."
            ) from error

    def summaries(self) -> dict[str, Summary]:
        """Those of the finished cells, in the order of the plan."""
        found: dict[str, Summary] = {}
        for cell in self.cells:
            if (summary := self.summary(cell.id)) is not None:
                found[cell.id] = summary
                if summary.state == "done":
                    self.check_own(cell)
        return found

    def read(self, cell: CellEntry) -> tuple[Summary | None, CellLines]:
        """The summary and the lines of a cell, after a check that they are its own."""
        summary, lines = self.summary(cell.id), self.lines(cell.id)
        if lines.repeats or (summary is not None and summary.state == "done"):
            self.check_own(cell)
        self.check_whole(cell.id, summary)
        return summary, lines

    def lines(self, cell: str) -> CellLines:
        """The steps and requests of the complete repeats."""
        folder = self.cell_folder(cell)
        steps = read_lines(folder / self.STEPS, StepLine.from_json)
        requests = read_lines(folder / self.REQUESTS, _request_or_end)
        ended = [line.repeat for line in requests.values if isinstance(line, EndLine)]
        if len({*ended}) < len(ended):
            raise RunFolderError(
                f"{folder / self.REQUESTS} ends a repeat twice: delete the cell's folder, and run "
                "it again."
            )
        return CellLines(
            [line for line in steps.values if line.repeat in ended],
            [
                line
                for line in requests.values
                if isinstance(line, RequestLine) and line.repeat in ended
            ],
            ended,
            [note for note in (steps.dropped, requests.dropped) if note],
        )
