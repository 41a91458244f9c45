"""Runs programs that a model wrote, each in a process of its own with limits.

The process runs in bubblewrap (`bwrap`) where that is installed and works: without a network, with
a read-only system and an empty `/tmp`. Elsewhere it runs only if the user allows it, and then as
the user: its limits stop a program that is wrong, not one that is malicious.
"""

import contextlib
import functools
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bass.errors import OptionError

MEMORY = 2**30  # bytes of a program's address space
FILE = 2**24  # bytes of a file that it writes
ISOLATION = (
    "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev",
    "--tmpfs", "/run", "--tmpfs", "/tmp", "--chdir", "/tmp",
)  # fmt: skip
# Sets the limits, runs the program, and writes the token, which the program does not know: an exit
# in the middle of the program is not its end.
LAUNCHER = """
import os, resource, runpy, sys
path, token, *limits = sys.argv[1:]
for name, value in zip(("CPU", "AS", "FSIZE", "NOFILE", "CORE"), map(int, limits)):
    kind = getattr(resource, "RLIMIT_" + name)
    value = min(value, resource.getrlimit(kind)[1] % 2**63)  # -1 is no limit
    resource.setrlimit(kind, (value, value))
sys.argv, sys.stdout, sys.stderr = [path], *(open(os.devnull, "w") for _ in range(2))
runpy.run_path(path, run_name="program")
os.write(1, token.encode())
os._exit(0)
"""


@functools.cache
def bubblewrap() -> tuple[str, ...] | None:
    """The command line that runs a command in bubblewrap; None where that does not work."""
    found = shutil.which("bwrap")
    if found is None:
        return None
    command = (found, *ISOLATION)
    try:
        tried = [*command, sys.executable, "-I", "-c", ""]
        subprocess.run(tried, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return command


def isolation(allow_code_execution: bool = False) -> tuple[str, ...]:
    """Bubblewrap's command; empty where it does not work. Raises `OptionError` unless allowed."""
    command = bubblewrap()
    if command is None and not allow_code_execution:
        state = "does not work here" if shutil.which("bwrap") else "is not installed"
        raise OptionError(
            f"The score needs to run what the model writes, and bubblewrap, which isolates it, "
            f"{state}: install it (`apt-get install bubblewrap`; it needs user namespaces), or run "
            "the programs as yourself with `--allow-code-execution`, best in a container."
        )
    return command or ()


def check(program: str, seconds: float = 10.0, allow_code_execution: bool = False) -> bool:
    """Whether a Python program reaches its end without an error, within `seconds`.

    The program has no input and no environment. Raises `OptionError` as `isolation` does.
    """
    isolated, token = isolation(allow_code_execution), secrets.token_hex(16)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path, output = Path(folder, "program.py"), Path(folder, "output")
        path.write_text(program, encoding="utf-8", errors="replace")
        prefix = [*isolated, "--ro-bind", str(path), "/tmp/program.py"] if isolated else []
        name = "/tmp/program.py" if isolated else str(path)
        limits = map(str, (int(seconds) + 1, MEMORY, FILE, 64, 0))
        with output.open("wb") as file:
            process = subprocess.Popen(
                [*prefix, sys.executable, "-I", "-c", LAUNCHER, name, token, *limits],
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL, cwd=folder,
                env={}, start_new_session=True,
            )  # fmt: skip
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started
            process.wait()
        return token.encode() in output.read_bytes()


def check_all(
    programs: Sequence[str], seconds: float = 10.0, allow_code_execution: bool = False
) -> list[bool]:
    """`check` of each program, one at a time on each processor."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return [*pool.map(lambda one: check(one, seconds, allow_code_execution), programs)]
