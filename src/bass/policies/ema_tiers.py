"""SGLang's adaptive number of steps: a few tiers, a moving average, and hysteresis."""

import itertools
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np

from bass.errors import OptionError
from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy
from bass.option import within


@dataclass(frozen=True)
class TierState:
    """The current tier, the moving average of accepted tokens, and the number of steps."""

    batch: int
    tier: int
    mean: float
    steps: int = 0


@final
@dataclass(frozen=True)
class EmaTiers(DraftLengthPolicy[TierState]):
    """One of a few lengths for the whole batch, chosen by a moving average of accepted tokens
    (after SGLang's adaptive steps).

    With m the mean accepted draft tokens of the active rows in a step, and k_j the length of the
    current tier:

        e <- (1 - alpha) e + alpha m              at every step in which some row drafted
        e >  k_j     - 0.5 + up:    j <- j + 1    after `warmup` steps, once every `interval`
        e <= k_(j-1) - 0.5 + down:  j <- j - 1

    So the tier rises when its drafts are nearly always fully accepted, and falls when the tier
    below covers all accepted tokens; `down < up` prevents oscillation. e begins at k_j - 1. The
    tier changes by one at a time. There is no tier 0 by default: a step without drafts says nothing
    about acceptance, so the policy would never leave it. Cost: a mean over the batch.
    """

    paper: ClassVar[str] = "after SGLang"

    tiers: tuple[int, ...] = within("[0, inf)", (1, 3, 7))
    alpha: float = within("(0, 1]", 0.2)
    up: float = 0.0
    down: float = within("(-inf, {up}]", -0.25)
    interval: int = within("[1, inf)", 5)
    warmup: int = within("[0, inf)", 10)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tiers", tuple(self.tiers))
        super().__post_init__()
        if any(b <= a for a, b in itertools.pairwise(self.tiers)):
            raise OptionError(f"`EmaTiers(tiers={list(self.tiers)})`: give rising lengths.")

    @property
    def max_length(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.tiers[-1]

    @property
    def draft_lengths(self) -> Collection[int]:
        return self.tiers

    def init(self, batch_size: int) -> TierState:
        tier = len(self.tiers) // 2
        return TierState(batch_size, tier, max(0.0, self.tiers[tier] - 1.0))

    def lengths(self, state: TierState) -> np.ndarray:
        return np.full(state.batch, self.tiers[state.tier], dtype=np.int32)

    def update(self, state: TierState, feedback: Feedback) -> TierState:
        drafting = feedback.active & (feedback.drafted > 0)
        if not drafting.any():
            return state
        mean = (1 - self.alpha) * state.mean + self.alpha * float(
            feedback.accepted[drafting].mean()
        )
        state = replace(state, mean=mean, steps=state.steps + 1)
        if state.steps <= self.warmup or state.steps % self.interval:
            return state
        if state.tier + 1 < len(self.tiers) and mean > self.tiers[state.tier] - 0.5 + self.up:
            return replace(state, tier=state.tier + 1)
        if state.tier and mean <= self.tiers[state.tier - 1] - 0.5 + self.down:
            return replace(state, tier=state.tier - 1)
        return state
