"""EXP3 over a few draft lengths: a bandit that assumes nothing of how rewards change."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, final

import numpy as np

from bass.errors import OptionError
from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy
from bass.option import within


class Exp3State(NamedTuple):
    """log_weights: float [arms], the largest is 0. steps: those with an active row. highest: tokens
    a second of the best step so far.
    """

    batch: int
    log_weights: np.ndarray
    steps: int = 0
    highest: float = 0.0


@final
@dataclass(frozen=True)
class Exp3(DraftLengthPolicy[Exp3State]):
    """EXP3 (Auer et al., 2002) over the lengths `arms`, as in BanditSpec (Hou et al., 2025, arXiv
    2505.15141). With weights w_i, at first 1, of K arms:

        p_i = (1 - rate) w_i / (w_1 + ... + w_K) + rate / K
        w_i = w_i exp(rate r / (p_i K))      for the drawn arm i alone

    An arm is a length k, or `(drafter, k)`, the index of one of the `methods` of `drafter=choice`
    and its length; k alone is of the first drafter.

    The reward r in [0, 1] is the tokens a second of an active row in the step, over the highest of
    any step so far. A step without a time counts as one second. The draw of step t is the t-th of a
    counter-based generator with the key `seed`. Cost: a generator is made in each call, 10 us.
    """

    paper: ClassVar[str] = "Auer et al., 2002; Hou et al., 2025 (BanditSpec)"

    arms: tuple[int | tuple[int, int], ...] | list[int | tuple[int, int]] = (0, 1, 2, 4, 8)
    rate: float = within("(0, 1]", 0.1)
    seed: int = within("[0, inf)", 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        # tuples, so that the policy is hashable
        arms = tuple(tuple(one) if isinstance(one, list) else one for one in self.arms)
        object.__setattr__(self, "arms", arms)
        if not arms or min(map(min, self._pairs)) < 0 or len({*self._pairs}) < len(arms):
            raise OptionError(
                f"`Exp3(arms={arms!r})` must be different lengths, or pairs `[drafter, k]`, of "
                "integers of 0 or more."
            )

    @cached_property
    def _pairs(self) -> tuple[tuple[int, int], ...]:
        """Drafter and length of each arm."""
        pairs = (one if isinstance(one, tuple) else (0, one) for one in self.arms)
        return tuple((part if k else 0, k) for part, k in pairs)

    @property
    def max_length(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return max(k for _, k in self._pairs)

    @property
    def drafters(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return 1 + max(part for part, _ in self._pairs)

    @property
    def draft_lengths(self) -> Collection[int]:
        return {k for _, k in self._pairs}

    def init(self, batch_size: int) -> Exp3State:
        return Exp3State(batch_size, np.zeros(len(self.arms)))

    def lengths(self, state: Exp3State) -> np.ndarray:
        arm, _ = self._drawn(state)
        return np.full(state.batch, self._pairs[arm][1], dtype=np.int32)

    def drafter(self, state: Exp3State) -> int:
        arm, _ = self._drawn(state)
        return self._pairs[arm][0]

    def update(self, state: Exp3State, feedback: Feedback) -> Exp3State:
        if not feedback.active_rows:
            return state
        arm, probability = self._drawn(state)
        seconds = feedback.seconds if feedback.seconds > 0 else 1.0
        speed = (1 + feedback.accepted[feedback.active].mean()) / seconds
        highest = max(state.highest, speed)
        weights = state.log_weights.copy()
        weights[arm] += self.rate * speed / highest / (probability * len(weights))
        return Exp3State(state.batch, weights - weights.max(), state.steps + 1, highest)

    def _drawn(self, state: Exp3State) -> tuple[int, float]:
        """The arm of the coming step, and its probability."""
        weights = np.exp(state.log_weights)
        p = (1 - self.rate) * weights / weights.sum() + self.rate / len(weights)
        uniform = np.random.Generator(np.random.Philox(key=self.seed, counter=state.steps)).random()
        arm = min(int(np.searchsorted(p.cumsum(), uniform, side="right")), len(p) - 1)
        return arm, float(p[arm])
