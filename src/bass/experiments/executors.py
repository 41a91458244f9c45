"""Runs the turns of cells: in this process, or on a Ray cluster.

Each turn is `Worker.turn`, in any process. A round of repeats ends before the next begins, and the
turns of a cell end when it has failed.
"""

import importlib
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, final

from bass.errors import OptionError, install
from bass.experiments.cell import Cell, Watch, Worker, end

RETRIES = 3  # of a turn whose process was ended
POLL_SECONDS = 1.0
Turn = tuple[Cell, int]  # and the repeat
Executor = Callable[[Sequence[Turn], Path, Watch], None]


def local(turns: Sequence[Turn], folder: Path, watch: Watch) -> None:
    """One turn at a time, in this process."""
    worker, ended = Worker(folder), set[str]()
    for cell, repeat in turns:
        if cell.id not in ended and (summary := worker.turn(cell, repeat, watch)) is not None:
            ended.add(cell.id)
            watch(cell, cell.settings.repeats, summary)


@final
@dataclass(frozen=True)
class Ray:
    """As many cells at a time as a Ray cluster has resources for.

    All its machines share the file system of the run folder. address: of the cluster, as `ray
    start` prints it; None: a local one for the duration of the run. cpus, gpus: of a cell.
    """

    address: str | None = None
    cpus: float = 1
    gpus: float = 0

    def __call__(self, turns: Sequence[Turn], folder: Path, watch: Watch) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray: Any = importlib.import_module("ray")
            ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
        except ImportError as error:
            raise OptionError(
                f"`--executor ray` needs Ray, which is not installed: {install('ray')}."
            ) from error
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise OptionError(
                f"`--address {self.address}` has no Ray cluster ({error}): start one with `ray "
                "start --head`."
            ) from error
        try:
            has = ray.cluster_resources()  # a request beyond them would wait forever
            for name, wanted in (("CPU", self.cpus), ("GPU", self.gpus)):
                if wanted > has.get(name, 0):
                    raise OptionError(
                        f"A cell needs {wanted:g} {name}, and the cluster has "
                        f"{has.get(name, 0):g}: request less, or add machines."
                    )
            self._run(ray, turns, folder.resolve(), watch)
        finally:
            ray.shutdown()

    def _run(self, ray: Any, turns: Sequence[Turn], folder: Path, watch: Watch) -> None:
        remote = ray.remote(_remote_turn).options(
            num_cpus=self.cpus, num_gpus=self.gpus, max_retries=RETRIES
        )
        ended, by_repeat = set[str](), itemgetter(1)
        for repeat, some in itertools.groupby(sorted(turns, key=by_repeat), key=by_repeat):
            waiting = {
                # `replace` leaves out the values that the cell has cached
                remote.remote(replace(cell), repeat, folder, os.getcwd(), sys.path): cell
                for cell, _ in some
                if cell.id not in ended
            }
            while waiting:
                for reference in ray.wait([*waiting], timeout=POLL_SECONDS)[0]:
                    cell = waiting.pop(reference)
                    try:
                        summary = ray.get(reference)
                    except ray.exceptions.RayTaskError:
                        raise
                    except ray.exceptions.RayError as error:
                        reason = f"({str(error).splitlines()[0]})"
                        reason = f"Its process was ended {RETRIES + 1} times {reason}."
                        summary = end(cell, folder / "cells" / cell.id, reason)
                    if summary is not None:
                        ended.add(cell.id)
                    watch(cell, repeat + 1 if summary is None else cell.settings.repeats, summary)


_WORKERS: dict[Path, Worker] = {}  # of a process of the cluster


def _remote_turn(cell: Cell, repeat: int, folder: Path, here: str, path: Sequence[str]) -> Any:
    """`Worker.turn` in another process, with the folder and the import path of this one."""
    os.chdir(here)
    sys.path += [one for one in path if one not in sys.path]
    worker = _WORKERS.setdefault(folder, Worker(folder))
    return worker.turn(cell, repeat, lambda *progress: None)
