"""Runs a plan into a folder, new or continued.

Compared cells take turns: the first repeat of each, then the second of each, so that changes of the
machine affect all of them. The folder can be interrupted, continued, extended and reduced: a cell
that has ended stays while its settings and the files that it depends on are the same.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from bass.analysis.frames import MANIFEST, REQUESTS, STEPS, SUMMARY, TEXTS, Run
from bass.api.loading import ModelSpec
from bass.checkpoints.hub import resolve
from bass.experiments.cell import ERROR, Cell, Watch, write_json
from bass.experiments.executors import Executor, local
from bass.experiments.grid import Plan, as_json, changed_settings, digest, identity
from bass.experiments.provenance import device_name, files_of, here
from bass.experiments.settings import SAMPLING
from bass.files import write_atomically
from bass.text import Tokenizer

_LONGEST = 200  # characters of a setting in a manifest
_SOFTWARE = ("bass", "commit", "torch", "device")
Pair = tuple[ModelSpec, ModelSpec | None]


def run(
    plan: Plan,
    folder: str | Path,
    executor: Executor = local,
    watch: Watch = lambda cell, repeats, summary: None,
    retry_failed: bool = False,
) -> Run:
    """Run the cells that the folder lacks, and return the run.

    executor: `local`, or a `Ray`. A failing cell does not stop the others; it runs again with
    `retry_failed`, or when a file that it depends on has changed.
    """
    folder, states = Path(folder), preview(plan, folder)
    works = {cell.id: work_of(cell) for cell in plan.cells}
    devices = dict.fromkeys(device_name(cell.load_plan.target.device) for cell in plan.cells)
    made = here() | {"device": ", ".join(devices)}
    folder.mkdir(parents=True, exist_ok=True)
    entries = [_entry(cell, works[cell.id]) for cell in plan.cells]
    manifest = vars(plan) | made | {"cells": entries}
    if (folder / MANIFEST).exists():
        manifest["created"] = json.loads((folder / MANIFEST).read_text())["created"]
    write_json(folder / MANIFEST, manifest)
    _write_texts(plan.cells, folder / TEXTS)
    ended = {"finished"} if retry_failed else {"finished", "failed"}
    left = {cell.id: _begin(cell, folder, made) for cell, state in states if state not in ended}
    pending = [cell for cell in plan.cells if cell.id in left]
    begun = {works[cell.id] for cell in plan.cells if left.get(cell.id, 1)}
    executor(turns(pending, left, works, begun), folder, watch)
    return Run(folder)


def preview(plan: Plan, folder: str | Path) -> list[tuple[Cell, str]]:
    """The cells with their states: `new`, `2 of 3 repeats done`, `finished`, `failed`, or
    `changed: ` and the files that have changed.
    """
    return [(cell, _state(cell, Path(folder))) for cell in plan.cells]


def work_of(cell: Cell) -> str:
    """Equal for cells that decode the same requests with the same target at the same batch."""
    options = [
        as_json(getattr(cell.settings, name))
        for name in (*SAMPLING, "batch", "samples", "queue", "rate", "lengths")
    ]
    prompts = repr([(entry.prompt, entry.messages) for entry in cell.settings.entries])
    return digest([repr(cell.load_plan.target), prompts, options])[:16]


def turns(
    cells: Sequence[Cell],
    first: Mapping[str, int],
    works: Mapping[str, str],
    begun: Collection[str] = (),
) -> list[tuple[Cell, int]]:
    """The turns of cells and repeats from the first that each lacks, in their order.

    Cells of one work take turns, and cells of one pair of models are adjacent in a round. Works
    that need the same several pairs take turns together, so that a round loads each pair once.
    begun: works of which an earlier run has measured a part, which come first.
    """
    pairs: dict[str, Pair] = {cell.id: cell.load_plan.models for cell in cells}
    order = [*pairs.values()]
    targets = [target for target, _ in order]
    needed: dict[str, set[Pair]] = {works[cell.id]: set() for cell in cells}  # those with a draft
    for cell in cells:
        if pairs[cell.id][1] is not None:
            needed[works[cell.id]].add(pairs[cell.id])

    def place(cell: Cell) -> tuple[int, bool, int]:
        target, draft = pair = pairs[cell.id]
        return targets.index(target), draft is None, order.index(pair)

    groups: dict[Any, list[Cell]] = {}
    for cell in sorted(cells, key=place):
        several = frozenset(needed[works[cell.id]])
        groups.setdefault(several if len(several) > 1 else works[cell.id], []).append(cell)

    unbegun = {work for work in works.values() if work not in begun}
    return [
        (cell, repeat)
        for group in sorted(groups.values(), key=lambda own: {works[c.id] for c in own} <= unbegun)
        for repeat in range(max(cell.settings.repeats for cell in group))
        for cell in group
        # a cell that lacks its summary alone has its last turn again
        if min(first[cell.id], cell.settings.repeats - 1) <= repeat < cell.settings.repeats
    ]


def _record(cell: Cell, run: Path) -> tuple[dict[str, Any] | None, str, dict[str, str]]:
    """The summary of a cell, if it has one; the key that its files of now give it; and those."""
    path, files = run / "cells" / cell.id / SUMMARY, files_of(cell.load_plan, cell.settings)
    record = json.loads(path.read_text()) if path.exists() else None
    return record, digest([identity(cell.settings), files]), files


def _state(cell: Cell, run: Path) -> str:
    record, key, files = _record(cell, run)
    if record is None:
        return "new"
    if record["key"] != key:
        before = record["made_with"]["files"]
        paths = [path for path in before | files if before.get(path) != files.get(path)]
        return f"changed: {', '.join(paths) or 'the prompts that are left out'}"
    if record["state"] == "failed":
        return "failed"
    ended, repeats = record["repeats"], cell.settings.repeats
    done = record["state"] == "done" and ended >= repeats
    return "finished" if done else f"{ended} of {repeats} repeats done"


def _begin(cell: Cell, run: Path, made: Mapping[str, str]) -> int:
    """Prepare a cell's folder for its next repeat, and return that.

    Results of other files are deleted; others are continued.
    """
    folder, (record, key, files) = run / "cells" / cell.id, _record(cell, run)
    folder.mkdir(parents=True, exist_ok=True)
    if record is None or record["key"] != key:
        for name in (STEPS, REQUESTS):
            (folder / name).unlink(missing_ok=True)
        made_with = {name: made[name] for name in _SOFTWARE} | {"files": files}
        record = {"key": key, "repeats": 0, "runs": [], "seconds": 0.0, "made_with": made_with}
    write_json(folder / SUMMARY, record | {"state": "not finished", "run": made["created"]})
    (folder / ERROR).unlink(missing_ok=True)
    return record["repeats"]


def _entry(cell: Cell, work: str) -> dict[str, Any]:
    """A cell in the manifest; long settings are cut."""
    parts, changed = cell.load_plan.parts, changed_settings(cell.settings)
    texts = {name: json.dumps(value) for name, value in changed.items()}
    long = {name: f"{t[:_LONGEST]}..." for name, t in texts.items() if len(t) > _LONGEST}
    return {
        "id": cell.id,
        "labels": dict(cell.labels),
        "settings": changed | long,
        "work": work,
        "autoregressive": parts.policy.max_length == 0,
        "lossless": bool(parts.lossless_at(cell.settings.temperature)),
        "caveat": " ".join(parts.caveat.split()),
        "batch_invariant": bool(parts.batch_invariant_at(cell.settings.temperature)),
    }


def _write_texts(cells: Sequence[Cell], path: Path) -> None:
    """Write the text of each token id, if all targets have the same tokenizer."""
    targets = dict.fromkeys(cell.load_plan.target.checkpoint for cell in cells)
    first, *others = [Tokenizer.read(resolve(target)) for target in targets]
    if first is None or any(o is None or o.vocabulary != first.vocabulary for o in others):
        path.unlink(missing_ok=True)
        return
    names = {index: name for name, index in first.vocabulary.items()}
    texts = []
    for i in range(max(names, default=-1) + 1):
        # after itself, since some tokenizers drop a leading space
        text = first.decode([i, i]).removeprefix(first.decode([i]))
        texts.append(names.get(i, "") if i in first.silent else text)
    write_atomically(path, json.dumps(texts))
