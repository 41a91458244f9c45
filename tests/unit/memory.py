"""How much memory a piece of work took at its peak."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident(name: str) -> int:
    """Bytes of a field of the process's status, such as VmRSS or VmHWM."""
    return int(re.search(rf"{name}:\s+(\d+) kB", STATUS.read_text())[1]) * 1024  # pyright: ignore[reportOptionalSubscript]


@contextmanager
def peak() -> Iterator[list[int]]:
    """Afterwards the list holds the bytes by which resident memory, mapped files included, rose
    above where it began.
    """
    found: list[int] = []
    try:
        CLEAR.write_text("5")  # the peak so far is forgotten
    except OSError:
        pytest.skip("the kernel does not let a process reset its peak of memory")
    before = resident("VmRSS")
    yield found
    found.append(resident("VmHWM") - before)
