"""The contract of draft-length policies, and checks of lengths. It imports NumPy, not torch."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from bass.errors import PolicyError, counted
from bass.host_records import Feedback
from bass.option import Ranged

State = TypeVar("State")
Lengths = TypeVar("Lengths", list[int], set[int])
DrafterTimes = tuple[tuple[tuple[float, ...], float], ...]  # seconds by length, and of a catch-up
CAUGHT_UP = 32  # tokens of a row, of the catch-ups that are measured


class DraftLengthPolicy(Ranged, ABC, Generic[State]):
    """How many tokens to draft for each row. Pure functions on the host: NumPy, no torch.

    `max_length`: the longest draft that it can request. `constant_length`: lengths never change.
    `reads_times`: the engine calls `timed` before `init`. `draft_lengths`, `lengths_ahead`: see
    there. `drafter`, `drafter_ahead`: where a run has several drafters. `drafters`: how many of
    them it needs.
    """

    max_length: int
    drafters: int = 1
    constant_length: ClassVar[bool] = False
    reads_times: ClassVar[bool] = False
    paper: ClassVar[str] = ""

    @property
    def draft_lengths(self) -> Collection[int]:
        """The lengths that `lengths` may contain, next to 0; by default 1..max_length.

        CUDA graphs are captured for these lengths alone. A length between two of them is correct
        too: it runs in the graph of the next longer one.
        """
        return range(1, self.max_length + 1)

    def timed(
        self,
        seconds: tuple[float, ...],
        catch_up: float,
        early_end_saves: bool,
        others: DrafterTimes = (),
    ) -> "DraftLengthPolicy[State]":
        """The policy with the measured seconds of a step of 0, 1, ... `max_length` drafted tokens,
        for a batch of the size of the run.

        catch_up: seconds in which a draft model is fed `CAUGHT_UP` tokens of each row, which it
        lacks after steps without drafts.

        early_end_saves: the step costs what its longest draft does, which may be shorter than
        requested. If False, in a CUDA graph or with a trim, it costs what the longest requested
        draft does.

        others: `seconds` and `catch_up` of the further drafters; given if there are any.
        """
        return self

    @abstractmethod
    def init(self, batch_size: int) -> State:
        """The state before the first step."""

    @abstractmethod
    def lengths(self, state: State) -> np.ndarray:
        """Draft length of each row, int32 [B] in 0..max_length; 0 is autoregressive decoding.

        A draft model is fed the prompt of a row whose length is 0 only before its first draft.
        """

    def lengths_ahead(self, state: State) -> np.ndarray | None:
        """If `lengths(state)` is for step t, the lengths of step t + 1, where the feedback of step
        t cannot change them; else None.

        A GPU then begins step t + 1 before the host has the feedback of step t. Given by default
        where `constant_length`.
        """
        return self.lengths(state) if self.constant_length else None

    def drafter(self, state: State) -> int:
        """The index in `Drafter.choices` of the drafter of the coming step; without effect in a
        step without drafts. Drafters other than `choice` have one.
        """
        return 0

    def drafter_ahead(self, state: State) -> int:
        """The drafter of the step whose lengths are `lengths_ahead(state)`."""
        return self.drafter(state)

    @abstractmethod
    def update(self, state: State, feedback: Feedback) -> State:
        """The state after a step. The old state stays unchanged."""

    def reset(self, state: State, rows: np.ndarray) -> State:
        """The state after `rows`, int [rows], got new prompts. A batch-wide policy keeps it."""
        return state


def captured_lengths(policy: DraftLengthPolicy[Any]) -> tuple[int, ...]:
    """The policy's `draft_lengths`, 0 and `max_length`, ascending. Raises `PolicyError`."""
    try:
        lengths = {int(length) for length in policy.draft_lengths}
    except (TypeError, ValueError) as error:
        raise PolicyError(
            f"`{type(policy).__name__}.draft_lengths` holds something that is no integer "
            f"({error}): give the lengths that the policy may request."
        ) from error
    return tuple(sorted({0, int(policy.max_length), *_within(policy, "draft_lengths", lengths)}))


def checked_lengths(policy: DraftLengthPolicy[Any], given: Any, batch: int) -> list[int]:
    """Lengths that the policy gave for `batch` rows, if each is in 0..max_length."""
    lengths = np.asarray(given)
    if lengths.shape != (batch,) or lengths.dtype.kind not in "iu":
        raise PolicyError(
            f"`{type(policy).__name__}.lengths` returned {lengths.dtype} of shape "
            f"{list(lengths.shape)}; give integers of shape [{batch}]."
        )
    # for a few numbers Python is five times as fast as NumPy
    return _within(policy, "lengths", lengths.tolist())


def checked_drafter(policy: DraftLengthPolicy[Any], given: Any, count: int) -> int:
    """The index of a drafter that the policy gave, if the run has it. Raises `PolicyError`."""
    if isinstance(given, int | np.integer) and 0 <= given < count:
        return int(given)
    raise PolicyError(
        f"`{type(policy).__name__}.drafter` returned {given!r}, and the run has "
        f"{counted(count, 'drafter')}: return the index of one, counted from 0, or give more "
        "`methods` to `drafter=choice`."
    )


def _within(policy: DraftLengthPolicy[Any], what: str, lengths: Lengths) -> Lengths:
    """The lengths, if each is in 0..max_length. Raises `PolicyError`."""
    most = policy.max_length
    if lengths and (min(lengths) < 0 or max(lengths) > most):
        bad = next(length for length in lengths if not 0 <= length <= most)
        raise PolicyError(
            f"`{type(policy).__name__}.{what}` holds {bad}; every length must be between 0 and its "
            f"`max_length={most}`."
        )
    return lengths
