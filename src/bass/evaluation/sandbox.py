"""Generated programs, run apart and judged by tests that they cannot see."""

import functools
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import final

from bass.errors import BassError, OptionError, check_integer, is_finite
from bass.evaluation.confine import Limits

CHECKER = Path(__file__).with_name("checker.py")
STARTING_SECONDS = 20.0  # beyond the program's own, which the checker counts: for processes to start on a busy machine
# All that the two processes see. Libraries are not to start threads, of which there are none; sets have the same order every time.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class SandboxError(BassError):
    """The system cannot run programs apart."""


@dataclass(frozen=True)
class Program:
    """Generated code, and the tests that decide on it.

    code: what nobody has read. names: those of it that the tests use. before: code of the problem's own that the tests need,
    such as imports and helper functions, which takes the place of what the program has by the same name unless it is in `names`.
    """

    code: str
    tests: str
    names: tuple[str, ...]
    before: str = ""


@dataclass(frozen=True)
class Outcome:
    """What came of a program: `passed`, `failed` (a test), `raised`, `ended` (before the tests did), or `time`."""

    reason: str
    detail: str = ""
    layers: tuple[str, ...] = field(default=(), compare=False)

    @property
    def passed(self) -> bool:
        """Whether every test was run, and held."""
        return self.reason == "passed"


@final
@dataclass(frozen=True)
class Sandbox:
    """Runs programs in processes of their own, `workers` at a time."""

    limits: Limits = field(default_factory=Limits)
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)

    def __post_init__(self) -> None:
        check_integer("workers", self.workers, 1)
        check_integer("memory", self.limits.memory, 64)
        check_integer("scratch", self.limits.scratch, 0)
        if not is_finite(self.limits.seconds) or self.limits.seconds <= 0:
            raise OptionError(f"`seconds={self.limits.seconds!r}` must be more than 0: give the seconds that a program may take.")

    def check(self, program: Program) -> Outcome:
        """Judge one program. Raises `SandboxError` where it cannot be confined, in which case it was not run."""
        nonce = secrets.token_hex(16)
        task = json.dumps(
            {"nonce": nonce, "program": program.code, "before": program.before, "names": program.names, "tests": program.tests}
        )
        with tempfile.TemporaryDirectory(prefix="bass-") as folder:
            process = subprocess.Popen(
                [sys.executable, "-s", "-B", "-X", "utf8", str(CHECKER), json.dumps(asdict(self.limits))],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                cwd=folder, env=ENVIRONMENT, start_new_session=True,
            )  # fmt: skip
            try:
                written, _ = process.communicate(task.encode(), timeout=self.limits.seconds + STARTING_SECONDS)
            except subprocess.TimeoutExpired:
                return Outcome("time", f"more than {self.limits.seconds:g} seconds")
            finally:
                _end(process)
        return _outcome(written, nonce)

    def check_all(self, programs: Iterable[Program]) -> Iterator[Outcome]:
        """The outcomes, in the order of the programs."""
        with ThreadPoolExecutor(self.workers) as pool:
            yield from pool.map(self.check, programs)

    @functools.cached_property
    def layers(self) -> tuple[str, ...]:
        """What confines a program on this system. Raises `SandboxError` where it is too little to run one."""
        return self.check(Program("", "", ())).layers


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill both processes, of which neither can leave the group, and take their pipes away. The second dies with the first."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.wait()


def _outcome(written: bytes, nonce: str) -> Outcome:
    """What the checker wrote, if it is the checker's."""
    try:
        said = json.loads(written)
    except ValueError:
        return Outcome("time" if not written else "ended", "the checker came to no verdict")  # killed at a limit of its own
    if "refused" in said:
        raise SandboxError(
            f"Generated programs cannot be run apart on this system ({said['refused']}): use Linux on x86_64 or aarch64 with seccomp, "
            "or score the samples elsewhere."
        )
    if said.get("nonce") != nonce:
        return Outcome("ended", "the verdict is not the checker's")
    return Outcome(said["reason"], said["detail"], tuple(said["layers"]))
