"""A wrapper of a policy, which delays its feedback."""

from collections.abc import Collection
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, final

import numpy as np

from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy
from bass.option import within
from bass.policies.batch_adaptive import BatchAdaptive


@dataclass(frozen=True)
class Delayed:
    """The inner policy's state, and the feedback that it has not received yet, oldest first."""

    inner: Any
    waiting: tuple[Feedback, ...] = ()


@final
@dataclass(frozen=True)
class Lagged(DraftLengthPolicy[Delayed]):
    """`policy` with feedback `steps` steps late, as in an engine that plans ahead of the device.

        the state after step t  =  that of `policy` after step t - steps

    A new prompt takes effect at once: pending feedback of the row's old prompt is removed (the row
    counts as inactive in it). Cost: storage of `steps` feedbacks, and an update more per step on a
    GPU, which then begins the next step without waiting for the host.
    """

    paper: ClassVar[str] = "this project"

    policy: DraftLengthPolicy[Any] = field(default_factory=BatchAdaptive)
    steps: int = within("[0, inf)", 1)

    @property
    def max_length(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.policy.max_length

    @property
    def draft_lengths(self) -> Collection[int]:
        return self.policy.draft_lengths

    @property
    def drafters(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.policy.drafters

    @property
    def reads_times(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.policy.reads_times

    def timed(self, *times: Any, **more: Any) -> "Lagged":
        return replace(self, policy=self.policy.timed(*times, **more))

    def init(self, batch_size: int) -> Delayed:
        return Delayed(self.policy.init(batch_size))

    def lengths(self, state: Delayed) -> np.ndarray:
        return self.policy.lengths(state.inner)

    def lengths_ahead(self, state: Delayed) -> np.ndarray | None:
        if not self.steps:
            return self.policy.lengths_ahead(state.inner)
        return self.policy.lengths(self._following(state))

    def drafter(self, state: Delayed) -> int:
        return self.policy.drafter(state.inner)

    def drafter_ahead(self, state: Delayed) -> int:
        if not self.steps:
            return self.policy.drafter_ahead(state.inner)
        return self.policy.drafter(self._following(state))

    def _following(self, state: Delayed) -> Any:
        """The inner state of the step after the coming one."""
        if len(state.waiting) < self.steps:
            return state.inner
        return self.policy.update(state.inner, deepcopy(state.waiting[0]))

    def update(self, state: Delayed, feedback: Feedback) -> Delayed:
        waiting = (*state.waiting, feedback)
        if len(waiting) <= self.steps:
            return Delayed(state.inner, waiting)
        return Delayed(self.policy.update(state.inner, waiting[0]), waiting[1:])

    def reset(self, state: Delayed, rows: np.ndarray) -> Delayed:
        return Delayed(
            self.policy.reset(state.inner, rows),
            tuple(_without(feedback, rows) for feedback in state.waiting),
        )


def _without(feedback: Feedback, rows: np.ndarray) -> Feedback:
    others = np.ones(len(feedback.active), dtype=bool)
    others[rows] = False
    return replace(
        feedback,
        drafted=feedback.drafted * others,
        accepted=feedback.accepted * others,
        active=feedback.active & others,
        lens=None if feedback.lens is None else feedback.lens * others,
    )
