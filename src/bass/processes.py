"""Starts the processes that handle what files of others hold, such as templates and patterns.

Each is a file that imports nothing of bass and sets its own limits. It starts without the packages
of the user and of the site, and without the environment.
"""

import os
import subprocess
import sys

# wall time for a process that gets no processor time; processor time has its own limit
WAITING_SECONDS = 60


def command(file: str) -> list[str]:
    """What starts the file."""
    return [sys.executable, "-I", "-S", "-X", "utf8", file]


def environment(*names: str) -> dict[str, str]:
    """The variables of these names that are set, and where Python's own libraries are."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH", *names) if name in os.environ}


def answered(file: str, request: str, *names: str) -> subprocess.CompletedProcess[str] | None:
    """The ended process of a file that answers one request, with the variables of these names; None
    if it takes more than `WAITING_SECONDS`.
    """
    try:
        return subprocess.run(
            command(file), input=request, capture_output=True, encoding="utf-8",
            env=environment(*names), timeout=WAITING_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
