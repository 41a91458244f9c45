"""Compares two runs, setting by setting: the difference of each metric, its interval, and whether
it is beyond the noise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

from bass.analysis.metrics import METRICS, Metric
from bass.analysis.noise import Speeds
from bass.analysis.statistics import Comparison
from bass.analysis.units import number, shown
from bass.errors import counted
from bass.report.contrast import difference
from bass.report.paired import Pair
from bass.report.summary import DECIDES

MOST_REPORTED = 20  # settings in sentences, those with differences first


@final
@dataclass(frozen=True)
class Line:
    """One metric of one setting in two runs.

    `found`: None with fewer than two independent values. `same_work`: whether both decode the same
    work; otherwise there is no verdict. `speeds`: of the machine; a time has no verdict where they
    differ, or may cause the difference.
    """

    metric: Metric
    a: float
    b: float
    found: Comparison | None
    same_work: bool
    speeds: Speeds = field(default_factory=Speeds)

    @property
    def beyond_noise(self) -> bool:
        """Whether the runs differ in it beyond the noise, with the same work, by more than the
        machine's speed may cause.
        """
        return self._differs and not self.of_machine

    @property
    def of_machine(self) -> bool:
        """Whether the runs differ in a time, and the machine's speed may cause the difference."""
        if not self._differs or self.found is None or self.metric.over != "repeats":
            return False
        by, (low, high) = self.found.difference, self.speeds.ratios
        if "per second" in self.metric.unit:
            low, high = 1 / high, 1 / low
        elif not self.metric.unit.startswith("seconds"):  # a share or ratio: either way
            low, high = min(low, 1 / high), max(high, 1 / low)
        overlap = by.low <= self.a * (high - 1) and self.a * (low - 1) <= by.high
        return bool(self.speeds.differ) or overlap

    @property
    def _differs(self) -> bool:
        return self.same_work and self.found is not None and self.found.beyond_noise

    @property
    def verdict(self) -> str:
        """The verdict in one or two words."""
        if not self.same_work:
            return "different work"
        if self.found is None:
            return "too few values"
        if not self.found.beyond_noise:
            return "too few values" if (self.found.chance or 1.0) < 1 else "within the noise"
        if self.of_machine:
            return "maybe the machine's"
        if self.metric.better == "neither":
            return "differs"
        return (
            "B is better"
            if (self.found.difference.estimate > 0) == (self.metric.better == "higher")
            else "B is worse"
        )

    @property
    def relative(self) -> str:
        """The relative difference of B to A."""
        return f"{100 * (self.b / self.a - 1):+.1f} %" if self.a > 0 else ""

    @property
    def within(self) -> str:
        """The interval of the difference, or why there is none."""
        if self.found is None:
            return ""
        if self.found.chance is not None:
            return f"{self.found.count} {self.metric.over}, no spread"
        unit, by = self.metric.unit, self.found.difference
        return f"{number(by.low, unit)} to {number(by.high, unit)}"

    @property
    def cells(self) -> list[str]:
        """The cells of a table row."""
        unit, by = self.metric.unit, self.found and self.found.difference
        difference = number(by.estimate if by else self.b - self.a, unit)
        return [
            f"{self.metric.name} ({shown(unit)})",
            number(self.a, unit),
            number(self.b, unit),
            difference,
            self.within,
            self.relative,
            self.verdict,
        ]


def compared(both: Sequence[Pair], names: Sequence[str]) -> Mapping[str, list[Line]]:
    """The lines of the metrics that both runs have, in order, by the title of each setting."""
    found: dict[str, list[Line]] = {}
    for pair in both:
        values = {name: (pair.a.value(name), pair.b.value(name)) for name in names}
        found[pair.title] = [
            _line(METRICS[name], pair, x, y)
            for name, (x, y) in values.items()
            if x is not None and y is not None
        ]
    return found


def _line(metric: Metric, pair: Pair, x: float, y: float, among: int = 1) -> Line:
    found = difference(pair.a, pair.b, metric, pair.same_work, among)
    return Line(metric, x, y, found, pair.same_work, pair.speeds)


def of_machine(both: Sequence[Pair]) -> list[str]:
    """A sentence if times of some pairs have no verdict because of the machine's speed."""
    lines = [
        (pair, _line(DECIDES, pair, x, y, len(both)))
        for pair in both
        if (x := pair.a.value(DECIDES.name)) is not None
        and (y := pair.b.value(DECIDES.name)) is not None
    ]
    found = [pair for pair, line in lines if pair.speeds.differ or line.of_machine]
    if not found:
        return []
    worst = max(found, key=lambda pair: (bool(pair.speeds.differ), np.ptp(pair.speeds.ratios)))
    whose = "" if len(found) == len(both) else counted(len(found), "setting")
    return [worst.speeds.warning(whose)]


def summed_up(both: Sequence[Pair]) -> list[str]:
    """The deciding metric of each setting, at one joint level; the totals first."""
    lines = []
    for pair in both:
        x, y = pair.a.value(DECIDES.name), pair.b.value(DECIDES.name)
        if x is not None and y is not None:
            lines.append((pair.title, _line(DECIDES, pair, x, y, len(both))))
    verdicts = [line.verdict for _, line in lines]
    counts = [f"{verdict} in {verdicts.count(verdict)}" for verdict in dict.fromkeys(verdicts)]
    head = (
        f"Time per token (`{DECIDES.name}`), {counted(len(lines), 'setting')}: {', '.join(counts)}."
    )
    changed = (
        sorted(lines, key=lambda one: not one[1].beyond_noise)[:MOST_REPORTED]
        if len(lines) > MOST_REPORTED
        else lines
    )
    left = (
        [f"The other {len(lines) - len(changed)} are in the tables."]
        if len(changed) < len(lines)
        else []
    )
    return [head, *(f"{title}: {_change(line)}, {line.verdict}." for title, line in changed), *left]


def _change(line: Line) -> str:
    unit, within = line.metric.unit, line.within and f" (difference {line.within})"
    return (
        f"{number(line.a, unit)} to {number(line.b, unit)} {shown(unit)}, {line.relative}{within}"
    )
