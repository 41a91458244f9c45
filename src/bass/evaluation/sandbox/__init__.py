"""Runs generated programs, which nobody has read, and judges them by tests that they cannot see.

A program is taken to be hostile. It runs in a process of its own that has limits of time, memory
and writing, and in which the kernel refuses sockets, signals and new processes (seccomp) and, where
it has Landlock, files that Python does not need. What it protects: files and processes of the user,
the tests, and the verdict, which another process gives. What it does not protect against: defects
of the kernel, and measuring what else the machine does.

    judge        `Sandbox`: starts a checker for each program and reads its verdict
    checker      the process that decides: it knows the tests, and asks the candidate
    candidate    the process that runs the program and answers
    confine      what a process does to itself before that: `Limits`, seccomp, Landlock
    syscalls     the calls to the kernel that are left
    values       plain values as JSON between the two

The last five import the standard library alone: the processes start once for each program, with as
little in their memory as can be.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bass.evaluation.sandbox.confine import Limits
    from bass.evaluation.sandbox.judge import Outcome, Program, Sandbox, SandboxError

__all__ = ["Limits", "Outcome", "Program", "Sandbox", "SandboxError"]


def __getattr__(name: str) -> Any:
    """The public names, imported when first used: the checker does without the harness."""
    if name not in __all__:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    home = "confine" if name == "Limits" else "judge"
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
