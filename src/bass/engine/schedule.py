"""Schedules the next step: which rows it serves, and how long their drafts are."""

from collections import deque
from dataclasses import dataclass
from typing import final

import numpy as np

from bass.engine.requests import Request
from bass.engine.slots import Slots
from bass.engine.step import Step
from bass.ops.batch_state import clipped
from bass.records import Sequences


@dataclass(frozen=True)
class StepPlan:
    """The lengths and the shape of a step."""

    lengths: np.ndarray  # int [B], of the drafts
    k: int  # at least the longest of them
    span: int
    positions_read: int  # of each row


@final
@dataclass
class Schedule:
    """The host's view of the rows: the request and the number of tokens of each."""

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
        """Whether a request is running or waiting."""
        return self.slots.busy

    @property
    def waiting(self) -> bool:
        """Whether a request is waiting for a row."""
        return bool(self.slots.queue)

    @property
    def most_generated(self) -> int:
        """The number of tokens that the row with the most has after its prompt."""
        serving = enumerate(self.slots.requests.tolist())
        lens = self.lens.tolist()
        return max(lens[row] - len(self.requests[r].prompt) for row, r in serving if r >= 0)

    def admit(self) -> tuple[np.ndarray, int]:
        """Prefill waiting requests into idle rows; return the rows and the number of tokens fed."""
        admitted, fed = self.slots.admit(self.requests)
        self.step.log.take()  # a prefill is not part of a step
        if len(admitted):
            served = [self.requests[r] for r in self.slots.requests[admitted]]
            self.lens[admitted] = [len(request.prompt) for request in served]
            self.limits[admitted] = [request.limit for request in served]
        return admitted, fed

    def plan(self, requested: np.ndarray) -> StepPlan:
        """The next step; each draft has its requested length, or what its row's limit leaves."""
        active = self.slots.requests >= 0
        lengths = clipped(requested, self.lens, self.limits, active)
        longest = int(((self.lens + lengths) * active).max())
        return self._planned(lengths, self.step.draft_length(int(lengths.max())), longest)

    def plan_ahead(self, plan: StepPlan, active: np.ndarray) -> StepPlan | None:
        """The step after this one, if its shape does not depend on this one's report; else None.

        That holds where no request waits for a row, no active row can reach its limit in either
        step, the longest draft is that of an active row, and the shape is prepared.
        """
        most = self.lens + plan.lengths + 1  # tokens after this step
        if (
            self.waiting
            or not (most + plan.lengths + 1 <= self.limits)[active].all()
            or self.step.draft_length(int((plan.lengths * active).max())) != plan.k
        ):
            return None
        after = self._planned(plan.lengths, plan.k, int((most + plan.lengths)[active].max()))
        return after if self.step.prepared(plan.k, after.span) else None

    def _planned(self, lengths: np.ndarray, k: int, longest: int) -> StepPlan:
        """The step whose longest row has `longest` positions."""
        capacity = self.sequences.capacity
        span, read = (f(longest, capacity) for f in (self.step.span, self.step.positions_read))
        return StepPlan(lengths, k, span, read)

    def finish(self, request: int) -> None:
        """End a request early; its row becomes free."""
        for row in np.flatnonzero(self.slots.requests == request):
            self.sequences.active[row] = False
            self.slots.release(int(row))

    def released(self, active: np.ndarray, serving: np.ndarray) -> list[int]:
        """The rows that still serve their request of `serving`; those that are done become idle."""
        rows = []
        for row, (request, now) in enumerate(
            zip(serving.tolist(), self.slots.requests.tolist(), strict=True)
        ):
            if request == now >= 0:
                rows.append(row)
                if not active[row]:
                    self.slots.release(row)
        return rows
