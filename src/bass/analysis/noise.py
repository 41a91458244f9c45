"""Noise of the machine during a run, to separate it from real effects."""

import os
from collections.abc import Iterable

import numpy as np

from bass.runs.conditions import ConditionLine, read_conditions
from bass.runs.run_folder import RunFolder

MOST_SPREAD = 0.1  # of calibrations, see `spread`; beyond it the machine counts as noisy
WORK = {  # calibrations, as named in a report
    "product": "matrix product",
    "read": "read of memory",
    "device_product": "matrix product on the GPU",
    "device_read": "read of memory on the GPU",
}


def spread(values: Iterable[float]) -> float:
    """The distance from the 10th to the 90th percentile, relative to the median."""
    low, middle, high = np.percentile(list(values), [10, 50, 90])
    return float((high - low) / middle)


def remarks(run: RunFolder) -> list[str]:
    """Remarks on the figures of a run: noise of the machine, and changes between its sessions."""
    lines = [line for cell in run.cells for line in read_conditions(run.cell_folder(cell.id))]
    return [*noise(lines), *(run.manifest.notes or [])]


def noise(lines: Iterable[ConditionLine], what: str = "generation") -> list[str]:
    """A sentence if the calibrations differ by more than `MOST_SPREAD`.

    `what`: that each line is of.
    """
    lines = list(lines)
    times = {
        name: [value for line in lines if (value := getattr(line, name)) is not None]
        for name in WORK
    }
    spreads = {name: spread(values) for name, values in times.items() if len(values) > 1}
    worst = max(spreads, key=lambda name: spreads[name], default="")
    if not worst or spreads[worst] <= MOST_SPREAD:
        return []
    low, high = (1e3 * value for value in np.percentile(times[worst], [10, 90]))
    busy = [line.others for line in lines if line.others is not None]
    others = (
        f" Other processes kept {np.mean(busy):.1f} of {os.cpu_count()} processors busy."
        if busy
        else ""
    )
    return [
        f"The machine was noisy: a fixed {WORK[worst]}, timed before each of {len(times[worst])} "
        f"{what}s, "
        f"took {low:.3g} to {high:.3g} ms (10th to 90th percentile), which is {spreads[worst]:.0%} "
        "of its median; "
        f"up to {MOST_SPREAD:.0%} counts as quiet.{others} Differences smaller than that may be "
        "the machine's: "
        "measure again when it is quiet."
    ]
