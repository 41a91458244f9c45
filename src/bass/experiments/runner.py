"""A plan into a run folder: begun, or gone on with."""

import fcntl
import functools
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from bass.errors import RunFolderError
from bass.experiments.cells import Task, writing
from bass.experiments.config import Plan
from bass.experiments.drafts import TEXTS, common_tokenizer, write_texts
from bass.experiments.executors import Executor, Watch
from bass.experiments.plain import hold_against_plain
from bass.experiments.provenance import here
from bass.experiments.records import CellEntry, Manifest, RunFolder, Summary
from bass.files import write_atomically
from bass.loading import find_device

LOCK = "lock"


@final
@dataclass(frozen=True)
class Ablation:
    """A plan and the folder of its run. `retry_failed`: whether cells that failed before are run again."""

    plan: Plan
    folder: Path
    retry_failed: bool = False

    def run(self, executor: Executor, watch: Watch) -> dict[str, Summary]:
        """Run the cells that the folder has no summary of. Returns the summaries of all, in the order of the plan.

        Raises `RunFolderError` where the folder cannot be written, is another process's, or holds another run.
        """
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with held(self.folder):
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
            if pending := self.pending:
                executor.run(pending, watch)
            hold_against_plain(run, self.tasks)
            return run.summaries()

    @functools.cached_property
    def tasks(self) -> list[Task]:
        """All cells."""
        folder = str(self.folder.resolve())
        return [Task(cell.id, cell.labels, cell.settings, folder) for cell in self.plan.cells]

    @property
    def pending(self) -> list[Task]:
        """Those without a summary."""
        return [task for task in self.tasks if not (task.folder / RunFolder.SUMMARY).exists()]

    def _write_texts(self) -> None:
        """The texts of tokens, which are those of all cells where their targets have one tokenizer."""
        if not (self.folder / TEXTS).exists():
            tokenizer = common_tokenizer([str(cell.settings.order().target) for cell in self.plan.cells])
            if tokenizer is not None:
                with writing(self.folder):
                    write_texts(self.folder, tokenizer)

    def _enter(self) -> None:
        """Write the manifest, or find that the one in the folder is of the same run."""
        path, ours = self.folder / RunFolder.MANIFEST, manifest(self.plan)
        if not path.exists():
            if any((self.folder / "cells").glob("*/*")):
                raise RunFolderError(f"`{self.folder}` holds cells of a run whose {path.name} is gone: restore it, or name another folder.")
            with writing(self.folder):
                write_atomically(path, ours.to_json(indent=1) + "\n")
            return
        theirs = RunFolder(self.folder).manifest
        another = "name another folder with `--output`"
        if theirs.bass != ours.bass:
            raise RunFolderError(
                f"`{self.folder}` was begun by bass {theirs.bass}, and this is {ours.bass}: go on with that one, or {another}."
            )
        if theirs.config != ours.config:
            raise RunFolderError(f"`{self.folder}` holds another run ({_difference(theirs.config, ours.config)}): {another}.")
        if theirs.cells != ours.cells:
            raise RunFolderError(f"`{self.folder}` has other cells than this config: {another}.")
        if theirs.device != ours.device:
            raise RunFolderError(f"`{self.folder}` was measured on {theirs.device}, and this is {ours.device}: {another}.")


def manifest(plan: Plan) -> Manifest:
    """What the plan is run with, on this machine."""
    return Manifest(
        **here(),
        commit=commit(),
        device=", ".join(dict.fromkeys(device_name(cell.settings.device) for cell in plan.cells)),
        config=json.loads(json.dumps(plan.config, default=str)),
        axes=plan.axes,
        cells=[CellEntry(cell.id, cell.labels) for cell in plan.cells],
    )


def device_name(asked: str) -> str:
    """What a device is called by its maker."""
    device = find_device(asked)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({platform.machine()}, {torch.get_num_threads()} threads)"


def commit() -> str:
    """That of the source tree that bass is imported from, with `-dirty` where files differ; `unknown` where it is none."""
    here = Path(__file__)
    try:
        for command in (
            ["ls-files", "--error-unmatch", here.parents[1].joinpath("__init__.py").name],
            ["describe", "--always", "--dirty", "--abbrev=40"],
        ):
            done = subprocess.run(["git", *command], cwd=here.parents[1], capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder for this process alone; it is free again when the process ends, however it does."""
    with writing(folder):
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            who = os.pread(handle, 100, 0).decode(errors="replace") or "another process"
            raise RunFolderError(
                f"`{folder}` is being written by {who}: wait until it has ended, or name another folder with `--output`."
            ) from error
        with writing(folder):
            os.truncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {platform.node()}".encode(), 0)
        yield
    finally:
        os.close(handle)


def _difference(theirs: dict[str, Any], ours: dict[str, Any], path: str = "") -> str:
    """The first thing in which two configs differ."""
    for key in dict.fromkeys((*theirs, *ours)):
        a, b = theirs.get(key), ours.get(key)
        if a != b:
            where = f"{path}{key}"
            if isinstance(a, dict) and isinstance(b, dict):
                return _difference(a, b, f"{where}.")
            return f"`{where}` is {a!r:.60} there, and {b!r:.60} here"
    return "their order differs"
