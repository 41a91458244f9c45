"""Acceptance traces: a file with a line for each cell of a run that drafts, from its recorded
steps, for the simulator of policies.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from bass.analysis.oracle import pooled_counts
from bass.analysis.repeats import Repeat, repeats_of
from bass.errors import OptionError, RunFolderError
from bass.files import write_atomically
from bass.policies.recorded_acceptance import RecordedAcceptance
from bass.policies.simulate import CostModel
from bass.runs.lines import jsonl, read_lines
from bass.runs.run_folder import RunFolder
from bass.runs.strict import Json

FORMAT = 1
FEWEST = 30  # drafts that reached a position, below which the common rate stands for its own


@final
@dataclass(frozen=True)
class CellTrace(Json):
    """The calls of a cell, request by request in the order of its generations.

    drafted, accepted, would: a list for each request, with an entry for each call. would: tokens
    that a longer draft would have had accepted: the accepted ones where a token was rejected, -1
    where that is not known, since none was or since the text ended in the draft. rates: acceptance
    by position; tail: the common rate, for later positions. step_k, step_ms: the longest draft and
    the time of each step.
    """

    cell: str
    settings: dict[str, Any]
    batch: int
    drafted: list[list[int]]
    accepted: list[list[int]]
    would: list[list[int]]
    rates: list[float]
    tail: float
    step_k: list[int]
    step_ms: list[float]
    bass: str
    device: str
    format: int = FORMAT

    REMEDY: ClassVar[str] = "export it again with `bass trace export`"

    def __post_init__(self) -> None:
        for one, other in ((self.drafted, self.accepted), (self.accepted, self.would)):
            if [len(calls) for calls in one] != [len(calls) for calls in other]:
                raise RunFolderError("every request needs the same calls in each list")
        for drafted, accepted, would in zip(*self._flat, strict=True):
            if not (0 <= accepted <= drafted and would in (-1, accepted)):
                raise RunFolderError(
                    f"a call has {accepted} of {drafted} tokens accepted, and {would} at most"
                )
        if self.batch < 1 or not len(self._flat[0]):
            raise RunFolderError("a cell needs a batch and calls")
        if not all(0 <= rate <= 1 for rate in (*self.rates, self.tail)):
            raise RunFolderError("rates must be from 0 to 1")
        if len(self.step_k) != len(self.step_ms):
            raise RunFolderError("every step needs a length and a time")

    @classmethod
    def check_version(cls, data: dict[str, Any], where: str) -> None:
        if data.get("format") != FORMAT:
            raise RunFolderError(
                f"{where} has the format version {data.get('format')!r}, and this `bass` reads "
                f"version {FORMAT}: {cls.REMEDY}."
            )

    @functools.cached_property
    def _flat(self) -> list[np.ndarray]:
        return [
            np.array([call for calls in lists for call in calls], dtype=np.int64)
            for lists in (self.drafted, self.accepted, self.would)
        ]

    @property
    def acceptance(self) -> RecordedAcceptance:
        """The calls for `bass.policies.simulate`."""
        _, accepted, would = self._flat
        return RecordedAcceptance(accepted, would < 0, np.array(self.rates), self.tail)

    @property
    def censored(self) -> float:
        """The share of calls of which it is not known how much more would have been accepted."""
        return float((self._flat[2] < 0).mean())


def measured_cost(found: Sequence[CellTrace]) -> CostModel:
    """Milliseconds of a step by its longest draft, a straight line through the recorded steps of
    these cells; for their batch alone.

    Raises `OptionError` if all steps have the same length, or longer ones take no longer.
    """
    k = np.array([length for one in found for length in one.step_k])
    ms = np.array([time for one in found for time in one.step_ms])
    named = f"`{found[0].cell}`" if len(found) == 1 else f"the {len(found)} cells of that batch"
    lengths = np.unique(k)
    if len(lengths) < 2:
        raise OptionError(
            f"All steps of {named} draft {lengths[0]} tokens, which does not show what a drafted "
            "token costs: give another `--cost`, or a trace with a cell whose lengths vary."
        )
    # the medians of each length, since single steps may be disturbed
    medians = np.array([np.median(ms[k == length]) for length in lengths])
    weights = np.sqrt([(k == length).sum() for length in lengths])
    slope, start = np.polyfit(lengths, medians, 1, w=weights)
    if start <= 0 or slope < 0:
        raise OptionError(
            f"The times of the steps of {named} do not grow with their lengths as a line does "
            f"({start:.3g} ms and {slope:.3g} ms for each drafted token): the machine was busy, so "
            "run it again, or give another `--cost`."
        )
    return CostModel(float(start), 0.0, 0.0, 0.0, float(slope), 0.0)


def export(run: RunFolder, output: Path) -> list[CellTrace]:
    """Write the traces of the finished cells that draft. Raises `RunFolderError` if there are
    none.
    """
    found = []
    for entry in run.cells:
        summary, lines = run.read(entry)
        if summary is None or summary.state != "done":
            continue
        generations = repeats_of(lines)
        if any(one.counts.drafted for one in generations):
            found.append(_trace(entry.id, entry.settings, generations, run))
    if not found:
        raise RunFolderError(
            f"{run.path} has no finished cell that drafts: a trace needs one, so run it again."
        )
    write_atomically(output, jsonl(found))
    return found


def read(path: Path) -> list[CellTrace]:
    """The traces of a file. Raises `OptionError` without one, `RunFolderError` for damage."""
    if not path.is_file():
        raise OptionError(f"`{path}` is no file: give one that `bass trace export` wrote.")
    found = read_lines(path, CellTrace.from_json)
    if found.dropped or not found.values:
        raise RunFolderError(
            f"{found.dropped or f'{path} holds no trace.'} Export it again with `bass trace "
            "export`."
        )
    return found.values


def _trace(
    cell: str, settings: dict[str, Any], generations: Sequence[Repeat], run: RunFolder
) -> CellTrace:
    requests: list[tuple[list[int], list[int], list[int]]] = []
    for one in generations:
        rows = one.rows
        known = rows.accepted < rows.judged
        would = np.where(known, rows.accepted, -1)
        for request in dict.fromkeys(rows.requests.tolist()):
            own = rows.requests == request
            requests.append(
                (rows.drafted[own].tolist(), rows.accepted[own].tolist(), would[own].tolist())
            )
    drafted, accepted, would_ = map(list, zip(*requests, strict=True))
    passed, reached = pooled_counts(generations)
    tail = float(passed.sum() / reached.sum()) if reached.sum() else 0.0
    enough = reached >= FEWEST
    rates = np.where(enough, passed / np.maximum(reached, 1), tail)
    steps = [step for one in generations for step in one.steps]
    return CellTrace(
        cell,
        settings,
        generations[0].batch,
        drafted,
        accepted,
        would_,
        rates.tolist(),
        tail,
        [step.k for step in steps],
        [1e3 * (step.seconds + step.host_seconds) for step in steps],
        run.manifest.bass,
        run.manifest.device,
    )
