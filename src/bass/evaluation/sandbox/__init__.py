"""Runs untrusted generated programs, and tests them with tests that they cannot read.

A program is assumed to be hostile. It runs in a separate process with limits on time, memory and
writes. The kernel denies it sockets, signals and new processes (seccomp) and, with Landlock, files
that Python does not need. The sandbox protects files and processes of the user, the tests, and the
verdict, which comes from another process. It does not protect against defects of the kernel, or
against measuring other load on the machine.

    judge        `Sandbox`: starts a checker for each program and reads its verdict
    checker      the process that holds the tests, and calls the candidate
    candidate    the process that runs the program and returns values
    confine      how a process confines itself before that: `Limits`, seccomp, Landlock
    syscalls     the allowed calls to the kernel
    values       plain values as JSON between the two

The last five import only the standard library: the processes start for each program, and hold as
little in memory as possible.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bass.evaluation.sandbox.confine import Limits
    from bass.evaluation.sandbox.judge import Outcome, Program, Sandbox, SandboxError

__all__ = ["Limits", "Outcome", "Program", "Sandbox", "SandboxError"]


def __getattr__(name: str) -> Any:
    """The public names, imported when first used, since the checker does not need them."""
    if name not in __all__:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    home = "confine" if name == "Limits" else "judge"
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
