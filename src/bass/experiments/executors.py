"""Runs cells: in this process, turn by turn, or on a Ray cluster."""

import contextlib
import importlib
import itertools
import math
import os
import sys
import tempfile
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Protocol, final, runtime_checkable

from bass.errors import BassError, OptionError, flag, install
from bass.experiments.cells import Task, failed, finish, run_turn, share_done
from bass.experiments.served import ServedCells
from bass.experiments.turns import by_turns, with_models_kept
from bass.runs.records import Summary

RETRIES = 3  # of a cell whose process was killed: it continues at its first unfinished repeat
POLL_SECONDS = 1.0


@runtime_checkable
class Watch(Protocol):
    """Receives the progress of cells."""

    @abstractmethod
    def at(self, task: Task, share: float) -> None:
        """Called when `share` of the cell is done."""

    @abstractmethod
    def ended(self, task: Task, summary: Summary) -> None:
        """The cell has its summary."""


@runtime_checkable
class Executor(Protocol):
    """Runs cells, each turn of each by `run_turn`, in any process.

    Compared cells take turns: none gets its next turn before the others had theirs.
    """

    @abstractmethod
    def run(self, tasks: Sequence[Task], watch: Watch) -> None:
        """Run all cells; a failing cell does not stop the others."""


@final
@dataclass(frozen=True)
class Local(Executor):
    """One turn of one cell at a time, in this process."""

    def run(self, tasks: Sequence[Task], watch: Watch) -> None:
        served, ended, order = ServedCells(), set[str](), [*by_turns(tasks)]
        keeps = with_models_kept(order)
        for task, turn in order:
            if task.id in ended:  # has failed
                continue

            def say(share: float, task: Task = task) -> None:
                watch.at(task, share)

            if (summary := run_turn(task, turn, served, say, (task.id, turn) in keeps)) is not None:
                ended.add(task.id)
                watch.ended(task, summary)


@final
@dataclass(frozen=True)
class Ray(Executor):
    """Runs as many cells at a time as a Ray cluster has resources for. All its machines must share
    the file system of the run folder.

    address: of the cluster, as `ray start` prints it; None: a local cluster for the duration of the
    run. cpus, gpus: the resources of a cell.
    """

    address: str | None = None
    cpus: float = 1
    gpus: float = 0

    def __post_init__(self) -> None:
        for name, requested in (("cpus_per_cell", self.cpus), ("gpus_per_cell", self.gpus)):
            if not 0 <= requested < math.inf or (requested > 1 and requested != int(requested)):
                raise OptionError(
                    f"`{flag(name)} {requested:g}` must be a fraction below 1, or a whole number, "
                    "and at least 0."
                )

    def run(self, tasks: Sequence[Task], watch: Watch) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise OptionError(
                f"`--executor ray` needs Ray, which is not installed: {install('ray')}, or leave "
                "it out."
            ) from error
        try:
            # Ray puts the current folder first on the import path of its workers, where its files
            # would shadow installed modules.
            with tempfile.TemporaryDirectory(prefix="bass-") as empty, contextlib.chdir(empty):
                ray.init(
                    address=self.address,
                    log_to_driver=False,
                    logging_level="ERROR",
                    **({} if self.address else {"include_dashboard": False}),
                )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise OptionError(
                f"`--address {self.address}` has no Ray cluster ({error}): start one with `ray "
                "start --head`."
            ) from error
        try:
            self._run(ray, tasks, watch)
        finally:
            ray.shutdown()

    def _run(self, ray: Any, tasks: Sequence[Task], watch: Watch) -> None:
        remote = ray.remote(remote_turn).options(
            num_cpus=self.cpus, num_gpus=self.gpus, max_retries=RETRIES
        )
        has = ray.cluster_resources()
        for name, wanted in (("CPU", self.cpus), ("GPU", self.gpus)):
            if wanted > has.get(name, 0):
                raise OptionError(
                    f"A cell needs {wanted:g} {name}, and the cluster has {has.get(name, 0):g}: "
                    "request less, or add machines."
                )
        ended = set[str]()
        for turn, tasks_of_turn in itertools.groupby(
            sorted(by_turns(tasks), key=itemgetter(1)), key=itemgetter(1)
        ):
            left = [task for task, _ in tasks_of_turn if task.id not in ended]
            # without the values that this process has cached
            waiting = {remote.remote(replace(task), turn, tuple(sys.path)): task for task in left}
            while waiting:
                ready, _ = ray.wait(list(waiting), timeout=POLL_SECONDS)
                for reference in ready:
                    task = waiting.pop(reference)
                    if (summary := self._result(ray, reference, task)) is not None:
                        ended.add(task.id)
                        watch.ended(task, summary)
                for task in waiting.values():
                    watch.at(task, share_done(task))

    def _result(self, ray: Any, reference: Any, task: Task) -> Summary | None:
        try:
            text = ray.get(reference)
            return None if text is None else Summary.from_json(text)
        # raised by the cell itself: the folder cannot be written, or is damaged
        except ray.exceptions.RayTaskError as error:
            # the message of the cell, without the worker's traceback
            if isinstance(error.cause, BassError):
                raise error.cause from error
            raise
        except ray.exceptions.RayError as error:
            summary = failed(
                task,
                f"Its process was ended {RETRIES + 1} times ({str(error).splitlines()[0]}).",
                0.0,
            )
            finish(task, summary)
            return summary


_SERVED = ServedCells()  # of a worker's process; others may use its GPU, so it keeps models alone


def remote_turn(task: Task, turn: int, path: Sequence[str]) -> str | None:
    """`run_turn` in a worker, with the import path of the sending process."""
    sys.path += [folder for folder in path if folder not in sys.path]
    summary = run_turn(task, turn, _SERVED)
    return None if summary is None else summary.to_json()
