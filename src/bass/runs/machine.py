"""The state of the machine directly before and during a repeat."""

import functools
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import final

import numpy as np
import torch

from bass.errors import is_out_of_memory
from bass.runs.conditions import ConditionLine

PIECES = 5  # of a calibration, without a pause between them
# side of the matrices, bytes to read: about 20 ms on two cores, 3 ms on a GPU
SIZES = {"cpu": (512, 2**26), "cuda": (4096, 2**28)}


@final
class Conditions:
    """Made directly before a repeat; `line` is called after it.

    others: bytes of the device's memory that are not the cell's.
    """

    def __init__(self, device: torch.device, others: int = 0) -> None:
        self._others = others
        self._cuda = device if device.type == "cuda" else None
        self._began, self._load, self._clock = datetime.now(UTC), os.getloadavg()[0], cpu_clock()
        self._times = calibrated(torch.device("cpu"))
        self._device_times = (None, None) if self._cuda is None else calibrated(self._cuda)
        self._device_clock = None if self._cuda is None else gpu_clock(self._cuda)
        if self._cuda is not None:
            torch.cuda.reset_peak_memory_stats(self._cuda)
        self._since = time.perf_counter(), time.process_time(), busy_seconds()

    def line(self, repeat: int) -> ConditionLine:
        """The state from the construction until now."""
        wall, own, busy = self._since
        now = busy_seconds()
        others = None
        if busy is not None and now is not None:
            others = max(now - busy - (time.process_time() - own), 0.0) / max(
                time.perf_counter() - wall, 1e-9
            )
        return ConditionLine(
            repeat,
            self._began.isoformat(timespec="milliseconds"),
            self._load,
            others,
            self._clock,
            *self._times,
            self._device_clock,
            *self._device_times,
            None
            if self._cuda is None
            else torch.cuda.max_memory_allocated(self._cuda) - self._others,
        )


def calibrated(device: torch.device) -> tuple[float | None, float | None]:
    """Seconds of a fixed matrix product and of a fixed read of memory, in float32.

    None without enough memory for them.
    """
    try:
        # frees the operands on a GPU
        square, data = _operands(device) if device.type == "cpu" else _operands.__wrapped__(device)
        return _seconds(lambda: square @ square, device), _seconds(lambda: data.sum(), device)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return None, None


@functools.cache
def _operands(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    side, size = SIZES[device.type]
    return torch.ones(side, side, device=device), torch.ones(size // 4, device=device)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    def timed(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    timed(1)  # warm-up: raises a lowered clock and fills the caches
    return timed(PIECES)


def busy_seconds() -> float | None:
    """Processor time of all processes since boot, and the time that a hypervisor took.

    None if the system does not report it.
    """
    try:
        ticks = [
            int(word)
            for word in Path("/proc/stat")
            .read_text(encoding="ascii")
            .split("\n", 1)[0]
            .split()[1:9]
        ]
        user, nice, system, _idle, _waiting, *interrupts_and_stolen = ticks
        return (user + nice + system + sum(interrupts_and_stolen)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None


def cpu_clock() -> float | None:
    """Mean clock of the processors in MHz, if the system reports it."""
    found = [
        float(text) / 1000
        for path in Path("/sys/devices/system/cpu").glob("cpu*/cpufreq/scaling_cur_freq")
        if (text := _text(path))
    ]
    if not found:
        lines = (_text(Path("/proc/cpuinfo")) or "").splitlines()
        found = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return float(np.mean(found)) if found else None


def gpu_clock(device: torch.device) -> float | None:
    """The GPU's clock in MHz; None if torch cannot query the driver (package nvidia-ml-py)."""
    try:
        return float(torch.cuda.clock_rate(device))
    except (ImportError, RuntimeError, AttributeError):
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
