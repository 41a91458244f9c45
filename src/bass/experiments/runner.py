"""Runs a plan into a run folder, new or continued."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from bass.api.plan import find_device
from bass.errors import RunFolderError
from bass.experiments.cells import Task, discard, has_results
from bass.experiments.config import Plan
from bass.experiments.executors import Executor, Watch
from bass.experiments.inputs import Inputs
from bass.experiments.plain import compare_with_plain
from bass.experiments.writing import writing
from bass.files import write_atomically
from bass.provenance.environment import commit, device_name, here
from bass.runs.changes import changes, notes
from bass.runs.drafts import TEXTS, common_tokenizer, write_texts
from bass.runs.own_files import check_lock, holder, holds_other_files, inside, take_lock
from bass.runs.peaks import PEAKS
from bass.runs.records import CellEntry, Manifest, Summary
from bass.runs.run_folder import RunFolder
from bass.runs.words import called
from bass.runs.work import own_settings

_MOST_REPORTED = 4  # changes, of perhaps hundreds


@final
@dataclass(frozen=True)
class Ablation:
    """A plan and the folder of its run.

    retry_failed: run failed cells again. redo_changed: discard results that were made with other
    versions of a class, a checkpoint or torch, and run their cells again; otherwise they are an
    error.
    """

    plan: Plan
    folder: Path
    retry_failed: bool = False
    redo_changed: bool = False

    def run(self, executor: Executor, watch: Watch) -> dict[str, Summary]:
        """Run the cells without a summary in the folder. Returns all summaries, in the order of the
        plan.

        Raises `RunFolderError` if the folder cannot be written, is locked by another process, or
        holds another run.
        """
        with writing(self.folder):
            self._check_new()
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = take_lock(self.folder)
        with lock:
            self._enter()
            run = RunFolder(self.folder)
            for task in self.tasks:
                summary = run.summary(task.id)
                if summary is None:
                    continue
                if summary.state == "failed" and self.retry_failed:
                    with writing(task.folder):
                        (task.folder / RunFolder.SUMMARY).unlink()
                else:
                    watch.ended(task, summary)
            self._write_texts()
            ours = holder(lock)
            if pending := self.pending:
                cells = {cell.id: cell for cell in run.cells}
                try:
                    executor.run(
                        [_recorded(task, run, cells[task.id], ours) for task in pending], watch
                    )
                except KeyboardInterrupt:
                    self._compare(run, ours)
                    raise
            self._compare(run, ours)
            return run.summaries()

    def _compare(self, run: RunFolder, ours: str) -> None:
        """Compare the cells that have ended with those of autoregressive decoding."""
        check_lock(self.folder, ours)
        compare_with_plain(run, self.tasks)

    @functools.cached_property
    def tasks(self) -> list[Task]:
        """All cells."""
        folder = str(self.folder.resolve())
        return [Task(cell.id, cell.labels, cell.settings, folder) for cell in self.plan.cells]

    @property
    def pending(self) -> list[Task]:
        """The cells without a summary."""
        return [task for task in self.tasks if not (task.folder / RunFolder.SUMMARY).exists()]

    def _write_texts(self) -> None:
        """Write the texts of tokens if all targets have the same tokenizer."""
        if not (self.folder / TEXTS).exists():
            tokenizer = common_tokenizer([task.load_plan.target.checkpoint for task in self.tasks])
            if tokenizer is not None:
                with writing(self.folder):
                    write_texts(self.folder, tokenizer)

    def _check_new(self) -> None:
        """Raise `RunFolderError` for a folder without a manifest that holds files."""
        manifest = RunFolder.MANIFEST
        if not (self.folder / manifest).exists() and any((self.folder / "cells").glob("*/*")):
            raise RunFolderError(
                f"`{self.folder}` holds cells of a run without its {manifest}: restore it, or "
                "name another folder."
            )
        if holds_other_files(self.folder, manifest, "cells"):
            raise RunFolderError(
                f"`{self.folder}` holds files that are not of a run: name a new folder with "
                "`--output`."
            )

    def _enter(self) -> None:
        """Write the manifest, or check that the folder's is of the same run, and update it."""
        path = inside(self.folder, RunFolder.MANIFEST)
        inputs = Inputs.of(self.tasks, self.plan.config)
        ours = manifest(self.plan, self.tasks, inputs)
        if path.exists():
            ours = self._gone_on_with(RunFolder(self.folder).manifest, ours)
        with writing(self.folder):
            write_atomically(path, ours.to_json(indent=1) + "\n")

    def _gone_on_with(self, theirs: Manifest, ours: Manifest) -> Manifest:
        """The updated manifest, which describes every result that is kept."""
        another = "name another folder with `--output`"
        if theirs.config != ours.config:
            raise RunFolderError(
                f"`{self.folder}` holds another run ({_difference(theirs.config, ours.config)}): "
                f"{another}."
            )
        if _requested(theirs) != _requested(ours):
            raise RunFolderError(f"`{self.folder}` has other cells than this config: {another}.")
        found = {task.id: changes(theirs, ours, task.id) for task in self.tasks}
        with_results = [task for task in self.tasks if has_results(task)]
        stale = [task for task in with_results if found[task.id]]
        if stale and not self.redo_changed:
            reported = list(
                dict.fromkeys(sentence for task in stale for sentence in found[task.id])
            )
            more = (
                f"; and {len(reported) - _MOST_REPORTED} more"
                if len(reported) > _MOST_REPORTED
                else ""
            )
            cells = "1 cell that was" if len(stale) == 1 else f"{len(stale)} cells that were"
            raise RunFolderError(
                f"`{self.folder}` holds results of {cells} made with other inputs "
                f"({'; '.join(reported[:_MOST_REPORTED])}{more}): {another}, "
                "or give `--redo-changed`, which discards these results and runs the cells again."
            )
        held, entries = RunFolder(self.folder), {cell.id: cell for cell in theirs.cells}
        for task in with_results:
            if not found[task.id]:
                held.check_own(entries[task.id])
                held.check_whole(task.id, held.summary(task.id))
        if self.redo_changed:  # cells that failed with the earlier inputs too
            for task in self.tasks:
                if found[task.id] and task.folder.exists():
                    discard(task)
        if stale:  # the tokenizer may have changed
            with writing(self.folder):
                (self.folder / TEXTS).unlink(missing_ok=True)
        kept = len(with_results) > len(stale)
        if not kept:
            with writing(self.folder):
                (self.folder / PEAKS).unlink(missing_ok=True)
            return ours
        reported = notes(vars(theirs), vars(ours)) or None
        same = {"cells": ours.cells, "inputs": ours.inputs, "remarks": ours.remarks}
        return replace(theirs, **same, notes=reported)


def _recorded(task: Task, run: RunFolder, cell: CellEntry, lock: str) -> Task:
    """A cell to run, with what the manifest records of it."""
    inputs = run.manifest.inputs_of(cell.id)
    return replace(task, made_with=run.made_with(cell), inputs=inputs, lock=lock)


def _requested(manifest: Manifest) -> list[tuple[str, dict[str, Any]]]:
    """The cells as requested, without derived properties."""
    return [(cell.id, cell.settings) for cell in manifest.cells]


def manifest(plan: Plan, tasks: Sequence[Task], inputs: Inputs) -> Manifest:
    """The manifest of the plan on this machine."""
    return Manifest(
        **here(),
        commit=commit(),
        device=", ".join(
            dict.fromkeys(device_name(find_device(cell.settings.device)) for cell in plan.cells)
        ),
        config=json.loads(json.dumps(plan.config, default=str)),
        axes=plan.axes,
        cells=[_entry(task, plan.config["base"], [*inputs.cells[task.id]]) for task in tasks],
        inputs=inputs.all,
        remarks=plan.remarks or None,
    )


def _entry(task: Task, base: Mapping[str, Any], inputs: list[str]) -> CellEntry:
    load_plan = task.load_plan
    verifier, drafter = load_plan.parts.verifier, load_plan.parts.drafter
    return CellEntry(
        task.id,
        task.labels,
        own_settings(task.settings, base),
        {
            "target": load_plan.target.checkpoint,
            "device": str(load_plan.target.device),
            "dtype": load_plan.target.dtype,
            "quantization": str(called(task.settings.quantization)),
        },
        bool(verifier.lossless),
        " ".join(str(verifier.caveat).split()),
        bool(drafter.batch_invariant),
        inputs,
    )


def _difference(theirs: dict[str, Any], ours: dict[str, Any], path: str = "") -> str:
    """The first difference of two configs."""
    for key in dict.fromkeys((*theirs, *ours)):
        a, b = theirs.get(key), ours.get(key)
        if a != b:
            where = f"{path}{key}"
            if isinstance(a, dict) and isinstance(b, dict):
                return _difference(a, b, f"{where}.")
            return f"`{where}` is {a!r:.60} in the folder and {b!r:.60} in the config"
    return "their order differs"
