"""Noise of the machine during a run, to separate it from real effects."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

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


@final
@dataclass(frozen=True)
class Speeds:
    """The speeds of the machine during two runs, by their calibrations.

    seconds: of each calibration, the medians in A and B. differ: the one by which the machine's
    speed differs by more than noise, which is the larger spread of the two, and at least
    `MOST_SPREAD`; empty if none does.
    """

    seconds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    differ: str = ""

    @classmethod
    def of(cls, a: Sequence[ConditionLine], b: Sequence[ConditionLine]) -> "Speeds":
        """Those of the runs with these lines; calibrations that one lacks are left out."""
        both = [_calibrations(a), _calibrations(b)]
        names = both[0].keys() & both[1].keys()
        times = {name: (both[0][name], both[1][name]) for name in WORK if name in names}
        seconds = {
            name: (float(np.median(x)), float(np.median(y))) for name, (x, y) in times.items()
        }
        excess = {
            name: abs(np.log(y / x))
            for name, (x, y) in seconds.items()
            if max(x, y) / min(x, y) - 1 > max(MOST_SPREAD, *map(spread, times[name]))
        }
        return cls(seconds, max(excess, key=lambda name: excess[name], default=""))

    @property
    def ratios(self) -> tuple[float, float]:
        """The range of times in B over those in A that the machine alone may cause; 1 is in it."""
        found = [b / a for a, b in self.seconds.values()]
        return min([1.0, *found]), max([1.0, *found])

    def warning(self, whose: str = "") -> str:
        """A sentence on why times have no verdict, with the calibration that differs most. `whose`
        times, if not all are meant.
        """
        name = self.differ or max(
            self.seconds, key=lambda one: abs(np.log(np.divide(*self.seconds[one])))
        )
        a, b = (1e3 * value for value in self.seconds[name])
        return (
            f"The machine {'had' if self.differ else 'may have had'} another speed in B than in A: "
            f"a fixed {WORK[name]} took {a:.3g} ms in A and {b:.3g} ms in B (medians). Differences "
            f"in times{whose and f' of {whose}'} may be the machine's, and have no verdict: make "
            "both runs again when it is quiet, or compare in one run, where methods take turns."
        )


def _times(lines: Iterable[ConditionLine], name: str) -> list[float]:
    """The positive times of a calibration."""
    return [value for line in lines if (value := getattr(line, name)) is not None and value > 0]


def _calibrations(lines: Sequence[ConditionLine]) -> dict[str, list[float]]:
    """The times of the calibrations that count: where a GPU decodes, its own, since the processors
    wait for it; else those of the processors.
    """
    known = {name: times for name in WORK if (times := _times(lines, name))}
    of_gpu = {name: times for name, times in known.items() if name.startswith("device_")}
    return of_gpu or known


def remarks(run: RunFolder) -> list[str]:
    """Remarks on the figures of a run: noise of the machine, and changes between its sessions."""
    lines = [line for cell in run.cells for line in read_conditions(run.cell_folder(cell.id))]
    return [*noise(lines), *(run.manifest.notes or [])]


def noise(lines: Iterable[ConditionLine], what: str = "generation") -> list[str]:
    """A sentence if the calibrations differ by more than `MOST_SPREAD`.

    `what`: that each line is of.
    """
    lines = list(lines)
    times = _calibrations(lines)
    spreads = {name: spread(values) for name, values in times.items() if len(values) > 1}
    worst = max(spreads, key=lambda name: spreads[name], default="")
    if not worst or spreads[worst] <= MOST_SPREAD:
        return []
    low, high = (1e3 * value for value in np.percentile(times[worst], [10, 90]))
    busy = [line.others for line in lines if line.others is not None]
    others = f" Other processes kept {np.mean(busy):.1f} processors busy." if busy else ""
    return [
        f"The machine was noisy: a fixed {WORK[worst]}, timed before each of {len(times[worst])} "
        f"{what}s, "
        f"took {low:.3g} to {high:.3g} ms (10th to 90th percentile), which is {spreads[worst]:.0%} "
        "of its median; "
        f"up to {MOST_SPREAD:.0%} counts as quiet.{others} Single times vary by as much; the "
        "intervals over repeats include it: measure again when it is quiet to narrow them."
    ]
