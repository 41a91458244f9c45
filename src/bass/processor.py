"""The name of this machine's processor."""

import functools
import platform
from pathlib import Path


@functools.cache
def cpu_name() -> str:
    """The product name of the processor if the system reports it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
