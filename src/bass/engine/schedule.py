"""What the next step is: which rows are served, and how long their drafts are."""

from collections import deque
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from bass.engine.requests import Request
from bass.engine.slots import Slots
from bass.engine.step import Step
from bass.errors import PolicyError
from bass.interfaces import DraftLengthPolicy
from bass.ops.batch_state import clipped
from bass.records import Sequences


def requested_lengths(policy: DraftLengthPolicy[Any], state: Any, batch: int) -> np.ndarray:
    """The policy's lengths, checked: int [B], each in 0..max_length."""
    name = type(policy).__name__
    answer = policy.lengths(state)
    try:
        lengths = np.asarray(answer)
    except Exception as error:  # another's object says in its own way what it is not
        raise PolicyError(
            f"`{name}.lengths` returned what is no array of NumPy ({error}); give integers of "
            f"shape [{batch}]."
        ) from error
    if lengths.shape != (batch,) or lengths.dtype.kind not in "iu":
        raise PolicyError(
            f"`{name}.lengths` returned {lengths.dtype} of shape {list(lengths.shape)}; give "
            f"integers of shape [{batch}]."
        )
    # a few Python numbers are looked at in a fifth of the time of a small array
    values, most = lengths.tolist(), policy.max_length
    if min(values) < 0 or max(values) > most:
        bad = next(value for value in values if not 0 <= value <= most)
        raise PolicyError(
            f"`{name}.lengths` returned {bad}; every length must be between 0 and its "
            f"`max_length={most}`."
        )
    return lengths.astype(np.int64)  # torch has no arithmetic for some types of NumPy's integers


@dataclass(frozen=True)
class StepPlan:
    """The shape of a step."""

    lengths: np.ndarray  # int [B], of the drafts
    k: int  # the longest of them
    span: int


@final
@dataclass
class Schedule:
    """The rows as the host knows them: whose they are, and how many tokens they have."""

    requests: list[Request]
    sequences: Sequences
    step: Step

    def __post_init__(self) -> None:
        batch = len(self.sequences.lens)
        self.lens = np.zeros(batch, dtype=np.int64)
        self.limits = np.zeros(batch, dtype=np.int64)
        self.slots = Slots(
            self.sequences,
            self.step.target,
            self.step.drafter,
            np.full(batch, -1),
            np.zeros(batch, dtype=np.int64),
            deque(range(len(self.requests))),
        )

    @property
    def busy(self) -> bool:
        """Whether a request is served or waits."""
        return self.slots.busy

    @property
    def waiting(self) -> bool:
        """Whether a request has no row yet."""
        return bool(self.slots.queue)

    def admit(self) -> tuple[np.ndarray, int]:
        """Prefill waiting requests into idle rows; the rows, and the number of tokens fed."""
        admitted, fed = self.slots.admit(self.requests)
        self.step.log.take()  # a prefill is no part of a step
        if len(admitted):
            served = [self.requests[r] for r in self.slots.requests[admitted]]
            self.lens[admitted] = [len(request.prompt) for request in served]
            self.limits[admitted] = [request.limit for request in served]
        return admitted, fed

    def plan(self, requested: np.ndarray) -> StepPlan:
        """The next step, of drafts as long as requested where there is room."""
        active = self.slots.requests >= 0
        lengths = clipped(requested, self.lens, self.limits, active)
        longest = int(((self.lens + lengths) * active).max())
        span = self.step.span(longest, self.sequences.capacity)
        return StepPlan(lengths, int(lengths.max()), span)

    def plan_ahead(self, plan: StepPlan, active: np.ndarray) -> StepPlan | None:
        """The step after this one, if nothing of this one's report can matter to its shape: no
        request waits for a row, every row is far enough from its limit, the longest draft is still
        requested, and the shape is at hand.
        """
        most = self.lens + plan.lengths + 1  # tokens after this step
        if (
            self.waiting
            or not (most + plan.lengths + 1 <= self.limits)[active].all()
            or (plan.lengths * active).max() != plan.k
        ):
            return None
        span = self.step.span(int((most + plan.lengths)[active].max()), self.sequences.capacity)
        return StepPlan(plan.lengths, plan.k, span) if self.step.prepared(plan.k, span) else None

    def finish(self, request: int) -> None:
        """End a request early: its row goes to the next one waiting."""
        for row in np.flatnonzero(self.slots.requests == request):
            self.sequences.active[row] = False
            self.slots.release(int(row))

    def released(self, active: np.ndarray, serving: np.ndarray) -> list[int]:
        """The rows whose requests have not been finished since `serving`; those of them that are
        done become idle.
        """
        rows = []
        for row, (request, now) in enumerate(
            zip(serving.tolist(), self.slots.requests.tolist(), strict=True)
        ):
            if request == now >= 0:
                rows.append(row)
                if not active[row]:
                    self.slots.release(row)
        return rows
