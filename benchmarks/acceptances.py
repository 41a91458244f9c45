"""Acceptance that varies with position, row or time, for simulated policies."""

from dataclasses import dataclass
from typing import final

import numpy as np

from bass.option import within
from bass.policies.simulate import LONGEST, Acceptance, geometric


@final
@dataclass(frozen=True)
class PerPosition(Acceptance):
    """The i-th token of a draft is accepted with probability rates[i], given all before it; the
    last rate applies to later tokens.
    """

    rates: tuple[float, ...] = within("[0, 1]", (0.9, 0.8, 0.7, 0.6))

    def draw(self, random: np.random.Generator, steps: int, rows: int) -> np.ndarray:
        rates = np.array([self.rates[min(i, len(self.rates) - 1)] for i in range(LONGEST)])
        return (random.random((steps, rows, LONGEST)) < rates).cumprod(axis=2).sum(axis=2)


@final
@dataclass(frozen=True)
class RowRates(Acceptance):
    """Row b accepts with probability rates[b modulo their number]."""

    rates: tuple[float, ...] = within("[0, 1]", (0.5, 0.7, 0.9))

    def draw(self, random: np.random.Generator, steps: int, rows: int) -> np.ndarray:
        return geometric(random, np.resize(self.rates, rows) * np.ones((steps, 1)))


@final
@dataclass(frozen=True)
class Drifting(Acceptance):
    """One probability for all rows, a sine of the step between low and high."""

    low: float = within("[0, 1]", 0.4)
    high: float = within("[0, 1]", 0.9)
    period: int = within("[1, inf)", 800)

    def draw(self, random: np.random.Generator, steps: int, rows: int) -> np.ndarray:
        wave = (1 + np.sin(2 * np.pi * np.arange(steps) / self.period)) / 2
        return geometric(
            random, (self.low + (self.high - self.low) * wave)[:, None] * np.ones(rows)
        )


@final
@dataclass(frozen=True)
class Bursty(Acceptance):
    """Each row has high or low acceptance, and keeps it with probability `stay` at each step."""

    low: float = within("[0, 1]", 0.3)
    high: float = within("[0, 1]", 0.9)
    stay: float = within("[0, 1]", 0.95)

    def draw(self, random: np.random.Generator, steps: int, rows: int) -> np.ndarray:
        switches = random.random((steps, rows)) >= self.stay
        easy = (np.cumsum(switches, axis=0) + random.integers(0, 2, rows)) % 2
        return geometric(random, np.where(easy, self.high, self.low))
