"""Where cells run: one after the other in this process, or on a Ray cluster."""

import contextlib
import importlib
import math
import os
import sys
import tempfile
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final, runtime_checkable

from bass.errors import BassError, OptionError
from bass.experiments.cells import Pairs, Task, failed, finish, run_cell, share_done
from bass.experiments.records import Summary

RETRIES = 3  # of a cell whose process was killed: it goes on from its first unfinished repeat
POLL_SECONDS = 1.0


@runtime_checkable
class Watch(Protocol):
    """Who is told how far the cells are."""

    @abstractmethod
    def at(self, task: Task, share: float) -> None:
        """So much of the cell is done."""

    @abstractmethod
    def ended(self, task: Task, summary: Summary) -> None:
        """The cell has its summary."""


@runtime_checkable
class Executor(Protocol):
    """Runs cells, each by `run_cell`, in any order and in any process."""

    @abstractmethod
    def run(self, tasks: Sequence[Task], watch: Watch) -> None:
        """Run them all; a cell that fails does not keep the others from running."""


@final
@dataclass(frozen=True)
class Local(Executor):
    """One cell at a time, in this process."""

    def run(self, tasks: Sequence[Task], watch: Watch) -> None:
        pairs = Pairs()
        for task in by_models(tasks):

            def say(share: float, task: Task = task) -> None:
                watch.at(task, share)

            watch.ended(task, run_cell(task, pairs, say))


@final
@dataclass(frozen=True)
class Ray(Executor):
    """As many cells at a time as a Ray cluster has room for. The run folder must be on a file system that all its machines share.

    address: of the cluster, as `ray start` prints it; None: one of this machine's processors, for as long as the run takes.
    cpus, gpus: what a cell takes of the cluster.
    """

    address: str | None = None
    cpus: float = 1
    gpus: float = 0

    def __post_init__(self) -> None:
        for name, asked in (("cpus", self.cpus), ("gpus", self.gpus)):
            if not 0 <= asked < math.inf or (asked > 1 and asked != int(asked)):
                raise OptionError(f"`--{name}_per_cell {asked:g}` must be a part of one, or a whole number, and no less than 0.")

    def run(self, tasks: Sequence[Task], watch: Watch) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise OptionError("`--executor ray` needs Ray, which is not installed: `pip install 'bass[ray]'`, or leave it out.") from error
        try:
            # Ray puts the folder it is initialised in first on its workers' paths, where its files would shadow installed modules.
            with tempfile.TemporaryDirectory(prefix="bass-") as empty, contextlib.chdir(empty):
                ray.init(
                    address=self.address,
                    log_to_driver=False,
                    logging_level="ERROR",
                    **({} if self.address else {"include_dashboard": False}),
                )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise OptionError(f"`--address {self.address}` has no Ray cluster ({error}): start one with `ray start --head`.") from error
        try:
            self._run(ray, tasks, watch)
        finally:
            ray.shutdown()

    def _run(self, ray: Any, tasks: Sequence[Task], watch: Watch) -> None:
        remote = ray.remote(remote_cell).options(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=RETRIES)
        has = ray.cluster_resources()
        for name, wanted in (("CPU", self.cpus), ("GPU", self.gpus)):
            if wanted > has.get(name, 0):
                raise OptionError(
                    f"A cell asks for {wanted:g} {name}, and the cluster has {has.get(name, 0):g}: ask for less, or add machines."
                )
        waiting = {remote.remote(task, tuple(sys.path)): task for task in by_models(tasks)}
        while waiting:
            ended, _ = ray.wait(list(waiting), timeout=POLL_SECONDS)
            for reference in ended:
                task = waiting.pop(reference)
                watch.ended(task, self._result(ray, reference, task))
            for task in waiting.values():
                watch.at(task, share_done(task))

    def _result(self, ray: Any, reference: Any, task: Task) -> Summary:
        try:
            return Summary.from_json(ray.get(reference))
        except ray.exceptions.RayTaskError as error:  # raised by the cell itself: nothing can be written, or what is there is damaged
            if isinstance(error.cause, BassError):  # in its own words, without the worker's traceback
                raise error.cause from error
            raise
        except ray.exceptions.RayError as error:
            summary = failed(task, f"Its process was ended {RETRIES + 1} times ({str(error).splitlines()[0]}).", 0.0)
            finish(task, summary)
            return summary


_PAIRS = Pairs()  # of a worker's process


def remote_cell(task: Task, path: Sequence[str]) -> str:
    """`run_cell` in a worker, which finds the user's own modules as the process that sent it does."""
    sys.path += [folder for folder in path if folder not in sys.path]
    return run_cell(task, _PAIRS).to_json()


def by_models(tasks: Sequence[Task]) -> list[Task]:
    """The cells in an order in which no models are loaded twice: those that name the same stand together, the one with a draft first."""
    orders = [task.settings.order() for task in tasks]
    targets = [(str(o.target), str(o.device), o.dtype, repr(o.quantizations[0])) for o in orders]
    drafts = [
        (target, None if o.draft is None else (str(o.draft), repr(o.quantizations[1]))) for o, target in zip(orders, targets, strict=True)
    ]
    places = [(targets.index(t), d[1] is None, drafts.index(d), i) for i, (t, d) in enumerate(zip(targets, drafts, strict=True))]
    return [tasks[i] for *_, i in sorted(places)]
