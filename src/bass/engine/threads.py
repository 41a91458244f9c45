"""Whether other processes hold the cores that torch's threads need."""

import statistics
import time
import warnings

import torch
import torch.nn.functional as F

REPEATS = 5
SLOWER = 3.0  # times; on idle cores more threads take at most about as long


def warn_of_busy_cores() -> None:
    """Warn if an operation takes much longer in all of torch's threads than in one.

    Each operation ends when its last thread does. If other processes hold the cores, that one waits
    for milliseconds before it begins. The probe takes a millisecond on idle cores.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        return
    x, weight = torch.zeros(8, 512), torch.zeros(512, 512)

    def seconds(count: int) -> float:
        torch.set_num_threads(count)
        F.linear(x, weight)  # starts the threads
        taken = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            F.linear(x, weight)
            taken.append(time.perf_counter() - began)
        return statistics.median(taken)

    one, all_of_them = seconds(1), seconds(threads)
    if all_of_them > SLOWER * one:
        warnings.warn(
            f"Operations take {all_of_them / one:.0f} times as long in {threads} threads as in "
            "one, since other processes use the cores: set `OMP_NUM_THREADS` to the number of idle "
            "cores, or call `torch.set_num_threads`.",
            RuntimeWarning,
            stacklevel=3,
        )
