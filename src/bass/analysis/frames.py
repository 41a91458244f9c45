"""Recorded steps and requests as pandas frames, and `Run`, the only reader of a run folder.

    steps.jsonl     one line per step:    repeat, call, step, then the fields of a `StepRecord`
    requests.jsonl  one line per request: repeat, call, request, prompt, turn, category, then the
                    fields of a `Completion`

A repeat is all calls of a cell with one seed, a call is one generation, and `prompt` numbers the
different prompts of a cell. A `Result` in memory makes the same frames of the same lines.
"""

import functools
import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import pandas as pd

from bass.analysis.metrics import (
    CALL,
    METRICS,
    PER_ROW,
    SPEEDUPS,
    Measurement,
    independent,
    paired,
    speedup,
)
from bass.analysis.statistics import Comparison
from bass.errors import RunFolderError, unknown_name
from bass.host_records import OWN_ENDS
from bass.process import without_garbage_collection

if TYPE_CHECKING:
    from bass.api.results import Completion
    from bass.engine.requests import StepRecord

MANIFEST, SUMMARY = "manifest.json", "summary.json"
ENDED = ("done", "failed")  # states of a cell
STEPS, REQUESTS = "steps.jsonl", "requests.jsonl"
TEXTS = "texts.json"  # the text of each token id, for the picture of a report
_STEP = (
    "k", *PER_ROW, "seconds", "host_seconds", "at", "draft_tokens",
    "draft_probs", "bytes", "flops",
)  # fmt: skip
_REQUEST = (
    "prompt_index", "sample_index", "text", "token_ids", "logprobs", "finish_reason", "seconds",
    "prompt_tokens", "prefill_seconds", "arrival_seconds", "first_token_seconds",
)  # fmt: skip
_OF_CELL = ("lossless", "batch_invariant", "autoregressive", "work")
_DIGITS = 4  # of the probability of a drafted token


def step_lines(
    steps: Iterable["StepRecord"], drafts: bool = True, **coordinates: Any
) -> list[dict[str, Any]]:
    """One mapping per step, ready for JSON: `coordinates`, `step`, and the record's fields.

    `work` is in two fields, `bytes` and `flops`. drafts: whether the drafted tokens
    and their probabilities are in it, else None.
    """
    lines = []
    for number, record in enumerate(steps):
        line = {
            name: value.tolist() if isinstance(value, np.ndarray | np.generic) else value
            for name, value in vars(record).items()
            if name != "work"
        }
        if not drafts:
            line |= {"draft_tokens": None, "draft_probs": None}
        elif record.draft_probs is not None:
            line["draft_probs"] = [
                [float(f"{p:.{_DIGITS}g}") if np.isfinite(p) else None for p in row]
                for row in record.draft_probs
            ]
        lines.append(coordinates | {"step": number} | line | vars(record.work))
    return lines


def request_lines(
    completions: Iterable["Completion"],
    each: Iterable[Mapping[str, Any]] = itertools.repeat({}),
    **coordinates: Any,
) -> list[dict[str, Any]]:
    """One mapping per completion of a call, ready for JSON.

    each: further fields of each completion, such as its `prompt`, by default its `prompt_index`.
    """
    shared = {"turn": 0, "category": ""} | coordinates
    return [
        shared | {"request": index, "prompt": one.prompt_index, **own} | vars(one)
        for index, (one, own) in enumerate(zip(completions, each, strict=False))
    ]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file; empty without one. An incomplete last line is left out."""
    if not path.exists():
        return []
    *lines, _ = path.read_text(encoding="utf-8").split("\n")
    with without_garbage_collection():  # which takes half of the time for millions of numbers
        return json.loads(f"[{','.join(lines)}]")


def steps_frame(lines: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per step; `requests`, `drafted`, `accepted` and `emitted` are lists of its rows."""
    return _frame([*CALL, "step", *_STEP], lines)


def requests_frame(lines: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per request; `token_ids` and `logprobs` are lists. `ended`: seconds since the start
    of its call. `finished`: whether it came to its own end, see `Completion.finished`.
    """
    first = [*CALL, "request", "prompt", "turn", "category", "seed"]
    frame = _frame([*first, *_REQUEST], lines).astype({"prefill_seconds": float, "seconds": float})
    frame["arrival_seconds"] = frame["arrival_seconds"].astype(float).fillna(0.0)
    ended = frame["prefill_seconds"].fillna(0.0) + frame["seconds"]
    return frame.assign(ended=ended, finished=frame["finish_reason"].isin(OWN_ENDS))


def _frame(known: Sequence[str], lines: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(lines, columns=[*dict.fromkeys([*known, *(lines[0] if lines else ())])])


def measured(
    steps: Iterable["StepRecord"],
    completions: Iterable["Completion"],
    facts: Mapping[str, Any] | None = None,
) -> Measurement:
    """One call in memory, such as `result.trace` and `result.completions`."""
    return Measurement(
        steps_frame(step_lines(steps, drafts=False, repeat=0, call=0)),
        requests_frame(request_lines(completions, repeat=0, call=0)),
        facts or {},
    )


@final
class Run:
    """The folder of an ablation, finished or not. manifest: what was requested, on what machine."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        path = self.folder / MANIFEST
        self.manifest: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        if "axes" not in self.manifest:
            own = Path("runs", folder)
            found = f" Did you mean `{own}`?" if (own / MANIFEST).exists() else ""
            raise RunFolderError(
                f"`{self.folder}` has no `{MANIFEST}` of an ablation: give a folder that `bass "
                f"ablate` wrote; `bass report` shows an evaluation too.{found}"
            )
        self.entries: dict[str, Any] = {cell["id"]: cell for cell in self.manifest["cells"]}
        self._measurements: dict[str, Measurement] = {}  # of each cell that was read

    @functools.cached_property
    def summaries(self) -> dict[str, dict[str, Any]]:
        """The `summary.json` of each cell that has ended, in the order of the plan."""
        paths = {cell: self.folder / "cells" / cell / SUMMARY for cell in self.entries}
        found = {cell: json.loads(p.read_text()) for cell, p in paths.items() if p.exists()}
        return {cell: one for cell, one in found.items() if one["state"] in ENDED}

    @functools.cached_property
    def finished(self) -> list[str]:
        """The ids of the cells that have ended without an error, in the order of the plan."""
        return [cell for cell, one in self.summaries.items() if one["state"] == "done"]

    @functools.cached_property
    def works(self) -> dict[str, list[str]]:
        """The finished cells of each work, which are compared with each other."""
        found: dict[str, list[str]] = {}
        for cell in self.finished:
            found.setdefault(self.entries[cell]["work"], []).append(cell)
        return found

    @functools.cached_property
    def plains(self) -> dict[str, str]:
        """The cell of autoregressive decoding that each finished cell is compared with.

        It does the same work, and is the one with the lowest mean latency (metric `all`).
        """
        found: dict[str, str] = {}
        for cells in self.works.values():
            plains = [cell for cell in cells if self.entries[cell]["autoregressive"]]
            if plains:
                fastest = min(
                    plains, key=lambda cell: independent(self.measurement(cell), "all").mean()
                )
                found |= dict.fromkeys(cells, fastest)
        return found

    def measurement(self, cell: str) -> Measurement:
        """The steps and requests of a cell."""
        if cell not in self.entries:
            raise unknown_name("cell", cell, self.entries)
        if cell not in self._measurements:
            facts = self.summaries.get(cell, {}).get("facts") or {}
            paths = (self.folder / "cells" / cell / name for name in (STEPS, REQUESTS))
            steps, requests = map(read_lines, paths)
            own = steps_frame(steps), requests_frame(requests)
            self._measurements[cell] = Measurement(*own, facts)
        return self._measurements[cell]

    def plain(self, cell: str) -> Measurement | None:
        """The measurement of its cell in `plains`, if that is another one."""
        other = self.plains.get(cell, cell)
        return None if other == cell else self.measurement(other)

    def values(self, cell: str, metric: str) -> pd.Series:
        """The independent values of a metric: see `bass.analysis.metrics.independent`."""
        return independent(self.measurement(cell), metric, self.plain(cell))

    def compare(self, cell: str, other: str, metric: str) -> Comparison:
        """The ratio of two cells' means of a metric, over the values that both have."""
        return paired(self.values(cell, metric), self.values(other, metric))

    def speedup(self, cell: str, metric: str = "tokens_per_second") -> Comparison | None:
        """How many times as good as its plain cell a cell is, by a rate or by a latency (`all`).

        None where there is no cell of autoregressive decoding to compare with.
        """
        return speedup(self.measurement(cell), self.plain(cell), metric)

    @functools.cached_property
    def cells(self) -> pd.DataFrame:
        """One row per cell: its value on each axis, its state, then its metrics.

        Index: the id. `plain`: the cell that it is compared with. `speedup`, `speedup_all`: the
        ratios of means to it, of tokens/s and of the mean latency, 1 in that cell itself. A metric
        is NaN where it does not apply, and in cells that have not finished.
        """
        found = []
        for cell, entry in self.entries.items():
            summary = self.summaries.get(cell, {"state": "not finished", "error": None})
            row = {"id": cell} | entry["labels"]
            row |= {name: summary[name] for name in ("state", "error")}
            row |= {name: entry[name] for name in _OF_CELL} | {"plain": self.plains.get(cell)}
            if cell in self.finished:
                for name, metric in SPEEDUPS.items():
                    ratio = self.speedup(cell, metric)
                    own = 1.0 if self.plains.get(cell) == cell else None
                    row[name] = own if ratio is None else ratio.ratio
                row |= {name: self.values(cell, name).mean() for name in METRICS}
            found.append(row)
        return pd.DataFrame(found).set_index("id")

    @functools.cached_property
    def steps(self) -> pd.DataFrame:
        """The steps of all cells, with a column `cell`."""
        return self._of_all(lambda cell: self.measurement(cell).steps)

    @functools.cached_property
    def requests(self) -> pd.DataFrame:
        """The requests of all cells, with a column `cell`."""
        return self._of_all(lambda cell: self.measurement(cell).requests)

    def _of_all(self, frame: Any) -> pd.DataFrame:
        frames = {cell: frame(cell) for cell in self.entries}
        return pd.concat(frames, names=["cell"]).reset_index("cell").reset_index(drop=True)

    def to_pandas(self) -> pd.DataFrame:
        """The table of the run: see `bass.analysis.tables.table`."""
        from bass.analysis.tables import table

        return table(self)

    def __repr__(self) -> str:
        done = f"{len(self.finished)} of {len(self.entries)} cells finished"
        return f"<Run {str(self.folder)!r}: {self.manifest['name']}, {done}>"

    def _repr_html_(self) -> str:
        return self.to_pandas().to_html()


def open_run(folder: str | os.PathLike[str]) -> Run:
    """Open the folder of a run. Raises `RunFolderError` if it is none."""
    return Run(folder)
