"""Judges generated programs, confined in their own processes, by tests that they cannot read."""

import contextlib
import functools
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, final

from bass.errors import BassError, OptionError, check_integer, is_finite
from bass.evaluation.sandbox.confine import Limits

MOST_SECONDS = 1_000_000  # for one program, within the range of `poll` in milliseconds
MOST_MEMORY = 2**30  # MiB
CHECKER = Path(__file__).with_name("checker.py")
LONGEST_VERDICT = 2**16  # bytes
REASONS = ("passed", "failed", "raised", "ended", "time")
# in addition to the program's own time: for processes to start on a busy machine
STARTING_SECONDS = 20.0
# The environment of both processes: libraries start no threads, and sets have a fixed order.
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


class SandboxError(BassError):
    """The system cannot confine programs."""


@dataclass(frozen=True)
class Program:
    """Generated code and its tests.

    code: untrusted code. names: the names in it that the tests use. before: code of the problem
    that the tests need, such as imports and helper functions; it replaces the program's objects of
    the same names unless they are in `names`.
    """

    code: str
    tests: str
    names: tuple[str, ...]
    before: str = ""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a program: `passed`, `failed` (a test), `raised`, `ended` (before the tests
    did), or `time`.
    """

    reason: str
    detail: str = ""
    layers: tuple[str, ...] = field(default=(), compare=False)

    @property
    def passed(self) -> bool:
        """Whether every test ran and passed."""
        return self.reason == "passed"


@final
@dataclass(frozen=True)
class Sandbox:
    """Runs programs in their own processes, `workers` at a time."""

    limits: Limits = field(default_factory=Limits)
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)

    def __post_init__(self) -> None:
        check_integer("workers", self.workers, 1)
        check_integer("memory", self.limits.memory, 64)
        check_integer("scratch", self.limits.scratch, 0)
        for name, most in (("memory", MOST_MEMORY), ("scratch", MOST_MEMORY)):
            if (value := getattr(self.limits, name)) > most:
                raise OptionError(
                    f"`{name}={value!r}` is too large: give at most {most:,} MiB for a program."
                )
        if not is_finite(self.limits.seconds) or not 0 < self.limits.seconds <= MOST_SECONDS:
            raise OptionError(
                f"`seconds={self.limits.seconds!r}` must be more than 0, and at most "
                f"{MOST_SECONDS:,}: give the seconds that a program may take."
            )

    def check(self, program: Program, unwanted: int | None = None) -> Outcome:
        """Judge one program. It is killed when the other end of the pipe `unwanted` is closed.

        Raises `SandboxError` if it cannot be confined; then it does not run.
        """
        nonce = secrets.token_hex(16)
        task = {
            "nonce": nonce,
            "program": program.code,
            "before": program.before,
            "names": program.names,
            "tests": program.tests,
        }
        limit, began = self.limits.seconds + STARTING_SECONDS, time.monotonic()
        try:
            with (
                tempfile.TemporaryDirectory(prefix="bass-") as folder,
                tempfile.TemporaryFile() as given,
                tempfile.TemporaryFile() as errors,
            ):
                given.write(json.dumps(task).encode())
                given.seek(0)
                process = subprocess.Popen(
                    [sys.executable, "-s", "-B", "-X", "utf8", str(CHECKER),
                        json.dumps(asdict(self.limits))],
                    stdin=given, stdout=subprocess.PIPE, stderr=errors, cwd=folder, env=ENVIRONMENT,
                    start_new_session=True,
                )  # fmt: skip
                try:
                    given.close()  # it holds the tests; the checker closes it too
                    written = _read(process, limit, unwanted)
                finally:
                    _end(process)
                started, _, verdict = written.partition(b"\n")
                layers = _layers(started, errors)
        except OSError as error:
            raise _cannot_start(error.strerror or str(error)) from error
        # killed at its time limit or at that of this process
        if not verdict and time.monotonic() - began >= self.limits.seconds:
            return Outcome("time", f"more than {self.limits.seconds:g} seconds", layers)
        return _outcome(verdict, layers, nonce)

    def check_all(self, programs: Iterable[Program]) -> Generator[Outcome, None, None]:
        """The outcomes, in the order of the programs.

        Programs that still run when the iterator is closed or interrupted are killed.
        """
        unwanted, wanted = os.pipe()
        pool = ThreadPoolExecutor(self.workers)
        try:
            yield from pool.map(functools.partial(self.check, unwanted=unwanted), programs)
        finally:
            os.close(wanted)
            pool.shutdown(cancel_futures=True)
            os.close(unwanted)

    @functools.cached_property
    def layers(self) -> tuple[str, ...]:
        """The layers that confine a program on this system.

        Raises `SandboxError` if programs cannot be judged, or a correct one does not pass.
        """
        outcome = self.check(Program("def f(x):\n    return x + 1\n", "assert f(1) == 2", ("f",)))
        if not outcome.passed:
            raise SandboxError(
                f"A correct program does not pass here ({outcome.reason}: {outcome.detail}): "
                "raise `program_seconds` or "
                "`program_memory`."
            )
        return outcome.layers


def _read(process: subprocess.Popen[bytes], seconds: float, unwanted: int | None) -> bytes:
    """The output of the checker until it ends, the time is over, or the other end of `unwanted` is
    closed; at most slightly more than `LONGEST_VERDICT`.
    """
    assert process.stdout is not None
    pipe, deadline, written = process.stdout.fileno(), time.monotonic() + seconds, b""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    if unwanted is not None:
        poll.register(unwanted, 0)  # an event mask of 0 still reports that it is closed
    while len(written) <= LONGEST_VERDICT:
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready or any(handle == unwanted for handle, _ in ready):
            break
        piece = os.read(pipe, 2**16)
        if not piece:
            break
        written += piece
    return written


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill both processes, neither of which can leave the group, and leave no zombie.

    The process with the program is a grandchild. It becomes a child if this process adopts orphans,
    for example as process 1 of a container.
    """
    os.killpg(process.pid, signal.SIGKILL)  # the group exists until the checker has been waited for
    if process.stdout is not None:
        process.stdout.close()
    process.wait()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-process.pid, 0)


def _layers(started: bytes, errors: IO[bytes]) -> tuple[str, ...]:
    """The layers, as the checker reports them before it runs a program. Raises `SandboxError`.

    errors: its standard error, which has the reason if it reports nothing.
    """
    reply = _object(started)
    if "refused" in reply:
        raise SandboxError(
            f"Generated programs cannot be confined on this system ({reply['refused']}): use "
            "Linux on x86_64 or aarch64 with seccomp, or score the samples elsewhere."
        )
    if "layers" not in reply:
        errors.seek(0)
        lines = errors.read(2**16).decode(errors="replace").strip().split("\n")
        raise _cannot_start(lines[-1].strip()[:200] or "it ends or hangs without a message")
    return tuple(reply["layers"])


def _cannot_start(reason: str) -> SandboxError:
    return SandboxError(
        f"The process that checks generated programs does not start ({reason}): check that "
        f"`{sys.executable}` runs and that there is "
        "space for processes and temporary files, then run the same command again."
    )


def _outcome(verdict: bytes, layers: tuple[str, ...], nonce: str) -> Outcome:
    """The verdict, if the checker wrote it: tests of a hostile data set can write there too."""
    reply = _object(verdict)
    reason, detail = reply.get("reason"), reply.get("detail")
    if reply.get("nonce") != nonce or reason not in REASONS or not isinstance(detail, str):
        return Outcome("ended", "the checker came to no verdict", layers)
    return Outcome(reason, detail, layers)


def _object(text: bytes) -> dict[str, Any]:
    """A JSON object; an empty one for anything else."""
    try:
        reply = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return reply if isinstance(reply, dict) else {}
