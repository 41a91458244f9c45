"""Compares speculative with autoregressive decoding of the same request: alternating repeats, and
doubts about their ratio.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from bass.api.results import Stats

REPEATS = 3  # of each side
Figure = Callable[[Stats], float | None]


def speed(stats: Stats) -> float:
    """Tokens per second; 0 if no time was spent."""
    return stats.tokens_per_second or 0.0


@final
@dataclass(frozen=True)
class Comparison:
    """Statistics of the repeats of both sides. The runs of entry i followed each other directly."""

    speculative: Sequence[Stats]
    plain: Sequence[Stats]

    def ratios(self, figure: Figure) -> list[float]:
        """Speculative over autoregressive, for each pair of repeats where both figures exist."""
        pairs = [
            (figure(own), figure(plain))
            for own, plain in zip(self.speculative, self.plain, strict=True)
        ]
        return [own / plain for own, plain in pairs if own and plain]

    @property
    def speedup(self) -> float | None:
        """The median ratio of tokens per second; None if a side has no tokens."""
        found = self.ratios(speed)
        return statistics.median(found) if found else None

    @property
    def limit(self) -> float:
        """The upper bound of the ratio: tokens per step relative to autoregressive decoding, since
        a step takes at least as long as an autoregressive one.

        With equally busy rows it is tau. Where repeats differ in it, it is relative to the
        `speedup` as the median pair's own ratio is to its own bound.
        """
        shares = [
            speed(own) / speed(plain) / bound
            for own, plain in zip(self.speculative, self.plain, strict=True)
            if speed(own) and speed(plain) and (bound := _per_step(own) / _per_step(plain))
        ]
        return (self.speedup or 0.0) / statistics.median(shares) if shares else 0.0

    @property
    def doubts(self) -> list[str]:
        """Reasons against the ratio, in sentences; empty if there are none."""
        found, speedup = self.ratios(speed), self.speedup
        if speedup is None:
            return []
        reported = []
        # compared as printed, so that rounding causes no doubt
        if round(speedup, 2) > round(self.limit, 2):
            reported.append(
                f"A speed-up of {speedup:.2f}x is impossible: a step emitted {self.limit:.2f} "
                "times as many tokens as a step of autoregressive decoding, and takes at least as "
                "long. The machine was busy with something else: compare again."
            )
        emitted = [_per_step(stats) for stats in self.speculative]
        if max(emitted) > 1.1 * min(emitted):
            reported.append(
                f"The repeats of speculative decoding emitted {min(emitted):.2f} to "
                f"{max(emitted):.2f} tokens a step: the policy goes by measured times, or keeps a "
                "state of its own. The table shows the repeat of median speed."
            )
        spreads = {"speculative": _spread(self.speculative), "autoregressive": _spread(self.plain)}
        widest, effect = max(spreads, key=lambda side: spreads[side]), abs(speedup - 1)
        if len(found) > 1 and spreads[widest] >= effect:
            reported.append(
                f"The {len(found)} repeats of {widest} decoding differ by {spreads[widest]:.0%} "
                f"among themselves, and the two sides differ by {effect:.0%}: this does not show "
                "which is faster. Compare again on an idle machine, or with more tokens."
            )
        return reported


def middle(repeats: Sequence[Stats]) -> int:
    """The index of the repeat with the median speed."""
    return sorted(range(len(repeats)), key=lambda i: speed(repeats[i]))[len(repeats) // 2]


def _per_step(stats: Stats) -> float:
    return stats.tokens / stats.steps if stats.steps else 0.0


def _spread(repeats: Sequence[Stats]) -> float:
    """The range of speeds, relative to the median."""
    speeds = [speed(stats) for stats in repeats]
    return (max(speeds) - min(speeds)) / statistics.median(speeds)
