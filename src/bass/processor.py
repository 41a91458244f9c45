"""The name of this machine's processor."""

import functools
import platform
from pathlib import Path

from bass.files import read_text

MOST_BYTES = 1 << 20  # of /proc/cpuinfo


@functools.cache
def cpu_name() -> str:
    """The product name of the processor if the system reports it, else its architecture."""
    try:
        lines = read_text(Path("/proc/cpuinfo"), MOST_BYTES).splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
