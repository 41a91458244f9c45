"""Policies around a policy: one that writes down, one that bounds, one that hears late.

`Recorded` has no name: it writes into a list of the caller's.
"""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, final

import numpy as np

from bass.errors import OptionError, check_integer
from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy
from bass.policies.batch_adaptive import BatchAdaptive


@dataclass(frozen=True)
class Recording:
    """One step: what the policy asked for, and what came of it."""

    asked: np.ndarray  # int32 [B]
    feedback: Feedback


@final
@dataclass(frozen=True)
class Recorded(DraftLengthPolicy[Any]):
    """Does as `policy` does, and appends a `Recording` of every step to the list `into`, to be read
    after the run.

    The state is the inner policy's and the list is never read, so lengths are as pure as before; an
    `update` called twice is written twice.
    Cost: one small object per step.
    """

    paper: ClassVar[str] = "ours"

    policy: DraftLengthPolicy[Any]
    into: list[Recording] = field(default_factory=list, compare=False)

    def __post_init__(self) -> None:
        _check_policy("Recorded", self.policy)

    @property
    def max_length(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.policy.max_length

    def init(self, batch_size: int) -> Any:
        return self.policy.init(batch_size)

    def lengths(self, state: Any) -> np.ndarray:
        return self.policy.lengths(state)

    def update(self, state: Any, feedback: Feedback) -> Any:
        asked = np.array(self.policy.lengths(state), dtype=np.int32)
        self.into.append(Recording(asked, deepcopy(feedback)))  # the policy may write to its own
        return self.policy.update(state, feedback)

    def reset(self, state: Any, rows: np.ndarray) -> Any:
        return self.policy.reset(state, rows)


@final
@dataclass(frozen=True)
class Clamped(DraftLengthPolicy[Any]):
    """min(max(l_b, lo), hi) of the lengths l_b of `policy`, which sees what was really drafted.

    Cost: a clip.
    """

    paper: ClassVar[str] = "ours"

    policy: DraftLengthPolicy[Any] = field(default_factory=BatchAdaptive)
    lo: int = 0
    hi: int = 8

    def __post_init__(self) -> None:
        _check_policy("Clamped", self.policy)
        if not 0 <= self.lo <= self.hi:
            raise OptionError(f"`Clamped(lo={self.lo}, hi={self.hi})` needs 0 <= lo <= hi.")

    @property
    def max_length(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return max(self.lo, min(self.hi, self.policy.max_length))

    def init(self, batch_size: int) -> Any:
        return self.policy.init(batch_size)

    def lengths(self, state: Any) -> np.ndarray:
        return np.clip(self.policy.lengths(state), self.lo, self.hi).astype(np.int32)

    def update(self, state: Any, feedback: Feedback) -> Any:
        return self.policy.update(state, feedback)

    def reset(self, state: Any, rows: np.ndarray) -> Any:
        return self.policy.reset(state, rows)


@dataclass(frozen=True)
class Delayed:
    """The inner policy's state, and the feedback it has not seen yet, the oldest first."""

    inner: Any
    waiting: tuple[Feedback, ...] = ()


@final
@dataclass(frozen=True)
class Lagged(DraftLengthPolicy[Delayed]):
    """`policy` with feedback that arrives `steps` steps late, as in an engine that plans ahead of
    the device.

        the state after step t  =  that of `policy` after step t - steps

    A new prompt is known at once: what is still on its way of the row's old prompt is struck out
    (the row was not active in it).
    Cost: `steps` feedbacks kept.
    """

    paper: ClassVar[str] = "ours"

    policy: DraftLengthPolicy[Any] = field(default_factory=BatchAdaptive)
    steps: int = 1

    def __post_init__(self) -> None:
        _check_policy("Lagged", self.policy)
        check_integer("steps", self.steps, 0)

    @property
    def max_length(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.policy.max_length

    def init(self, batch_size: int) -> Delayed:
        return Delayed(self.policy.init(batch_size))

    def lengths(self, state: Delayed) -> np.ndarray:
        return self.policy.lengths(state.inner)

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
    )


def _check_policy(name: str, policy: object) -> None:
    if DraftLengthPolicy not in type(policy).__mro__:
        raise OptionError(
            f"`{name}(policy={policy!r})` wraps no policy: give an object of a subclass of "
            "`bass.interfaces.DraftLengthPolicy`."
        )
