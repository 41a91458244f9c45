"""The sandbox with fewer layers than this system has: as an older kernel, or one without
namespaces, would run it.
"""

import ctypes
import platform
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import bass
from bass.evaluation.sandbox import Sandbox, syscalls

_CHECKER = """
import sys
sys.path[0] = {source!r}
from bass.evaluation.sandbox import checker, confine
confine.landlock_version = lambda libc, column: {landlock}
if not {scratch}:
    checker.mount_scratch = lambda folder, megabytes: False
readable = [*confine.readable(), {readable!r}]
confine.readable = lambda: readable
if not {seccomp}:
    confine._filter = lambda *arguments: None
checker.main()
"""


@dataclass(frozen=True)
class Strength:
    """`landlock`: version of Landlock, 0 for none.

    `seccomp`: False for tests of the other layers alone.
    """

    landlock: int
    scratch: bool
    seccomp: bool = True

    def __str__(self) -> str:
        return (
            "Landlock "
            f"{self.landlock}{', scratch' * self.scratch}{', no seccomp' * (not self.seccomp)}"
        )

    @property
    def layers(self) -> tuple[str, ...]:
        """What such a system says that it confines programs by."""
        walled = ("Landlock",) if self.landlock else ()
        writes = "scratch folder in memory" if self.landlock and self.scratch else "no writing"
        return ("resource limits", *walled, writes, "seccomp")

    def checker(self, folder: Path, readable: Path) -> Path:
        """A script, written to `folder`, to run instead of the checker.

        `readable`: a folder that programs may read too.
        """
        script = folder / f"{self}.py"
        source = str(Path(bass.__file__).parents[1])
        script.write_text(_CHECKER.format(source=source, readable=str(readable), **vars(self)))
        return script


def landlock_here() -> int:
    """The version of this kernel's Landlock; 0: none."""
    number = syscalls.OWN["landlock_create"][syscalls.COLUMNS[platform.machine()]]
    return max(0, ctypes.CDLL(None).syscall(number, None, 0, 1))


def strengths(versions: Collection[int] = range(1000)) -> list[Strength]:
    """All that this system can have, with one of the versions of Landlock; the strongest first."""
    scratch = [True, False] if "scratch folder in memory" in Sandbox().layers else [False]
    return [
        Strength(version, s)
        for version in range(landlock_here(), -1, -1)
        if version in versions
        for s in scratch
    ]
