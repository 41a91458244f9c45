"""Acceptance of a recorded run for the simulator, with censored calls completed."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from bass.errors import OptionError
from bass.policies.simulate import LONGEST, Acceptance


@final
@dataclass(frozen=True)
class RecordedAcceptance(Acceptance):
    """The calls of a run in order, as `would` of `bass.policies.simulate`.

    accepted [calls]: accepted tokens of a call. censored [calls]: whether more might have been
    accepted, since nothing was rejected. Such a call is completed by chance: after its `accepted`
    tokens, token i is accepted with probability rates[i], or `tail` beyond them, until one is
    rejected, at most `LONGEST`. To take `accepted` itself would make all drafts look useless beyond
    the recorded lengths; to leave the calls out would keep only those that went badly.

    The calls are dealt to the rows one after the other, each row a contiguous part of the run, so
    that easy and hard texts stay together. A call of the simulation is a call of the recorded run,
    whatever the policy drafted before: the place in the text is that of the recorded run.
    """

    accepted: np.ndarray
    censored: np.ndarray
    rates: np.ndarray
    tail: float

    COMPLETED: ClassVar[str] = "calls whose draft was accepted as a whole"

    def __post_init__(self) -> None:
        if self.accepted.ndim != 1 or self.accepted.shape != self.censored.shape:
            raise OptionError(
                f"`RecordedAcceptance` has accepted {list(self.accepted.shape)} and censored "
                f"{list(self.censored.shape)}: give both for each call, [calls]."
            )

    def steps(self, rows: int) -> int:
        """The number of steps of a batch in which every call occurs once, at least 1."""
        return max(1, len(self.accepted) // rows)

    def draw(self, random: np.random.Generator, steps: int, rows: int) -> np.ndarray:
        return np.resize(self.completed(random), (rows, steps)).T

    def completed(self, random: np.random.Generator) -> np.ndarray:
        """Tokens that each call would accept, int [calls]: recorded, or completed by chance."""
        rates = np.full(LONGEST, self.tail)
        rates[: len(self.rates)] = self.rates[:LONGEST]
        passed = random.random((len(self.accepted), LONGEST)) < rates
        known = np.arange(LONGEST) < self.accepted[:, None]
        drawn = (known | passed).cumprod(axis=1).sum(axis=1)
        return np.where(self.censored, drawn, np.minimum(self.accepted, LONGEST)).astype(np.int64)
