"""Schedules the next step: which rows it serves, and how long their drafts are."""

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np

from bass.engine.batch_rows import BatchRows
from bass.engine.requests import Request
from bass.engine.step import Step
from bass.records import Sequences


@dataclass
class StepPlan:
    """The lengths and the shape of a step."""

    lengths: list[int]  # of the drafts of the rows
    k: int  # at least the longest of them
    span: int
    longest: int  # positions of the longest row, drafted ones included


@final
@dataclass
class Schedule:
    """The host's view of the rows: the request and the number of tokens of each."""

    requests: list[Request]
    sequences: Sequences
    step: Step

    def __post_init__(self) -> None:
        batch, self.capacity = len(self.sequences.lens), self.sequences.capacity
        self.lens, self.limits = [0] * batch, [0] * batch
        self.rows = BatchRows(
            self.sequences,
            self.step.target,
            self.step.drafter,
            partial(self.step.prefill, self.sequences),
            np.full(batch, -1),
            np.zeros(batch, dtype=np.int64),
            deque(range(len(self.requests))),
        )

    @property
    def busy(self) -> bool:
        """Whether a request is running or waiting."""
        return self.rows.busy

    @property
    def waiting(self) -> bool:
        """Whether a request is waiting for a row."""
        return bool(self.rows.queue)

    @property
    def serving(self) -> list[int]:
        """The request of each row, -1 for none."""
        return self.rows.requests.tolist()

    @property
    def most_generated(self) -> int:
        """The number of tokens that the row with the most has after its prompt."""
        rows = zip(self.lens, self.serving, strict=True)
        return max(tokens - len(self.requests[r].prompt) for tokens, r in rows if r >= 0)

    def admit(self) -> tuple[np.ndarray, int]:
        """Prefill waiting requests into idle rows; return the rows and the number of tokens fed."""
        admitted, fed = self.rows.admit(self.requests)
        self.step.log.take()  # a prefill is not part of a step
        self.lens = self.lens.copy()  # the report of the last step may hold the same list
        for row in admitted.tolist():
            request = self.requests[self.rows.requests[row]]
            self.lens[row], self.limits[row] = len(request.prompt), request.limit
        return admitted, fed

    def plan(self, requested: list[int]) -> StepPlan:
        """The next step; each draft has its requested length, or what its row's limit leaves."""
        lengths, longest = [0] * len(requested), 0
        rows = zip(self.serving, requested, self.lens, self.limits, strict=True)
        for row, (request, length, tokens, limit) in enumerate(rows):
            if request >= 0:
                left = limit - tokens - 1
                lengths[row] = length if length < left else left
                if tokens + lengths[row] > longest:
                    longest = tokens + lengths[row]
        k = self.step.draft_length(max(lengths))
        return StepPlan(lengths, k, self.step.span(longest, self.capacity), longest)

    def plan_ahead(self, plan: StepPlan) -> StepPlan | None:
        """The step after this one, if its shape does not depend on this one's report; else None.

        That holds where no request waits for a row, no active row can reach its limit in either
        step, the longest draft is that of an active row, and the shape is prepared.
        """
        if self.waiting:
            return None
        longest_draft = longest = 0
        rows = zip(self.serving, plan.lengths, self.lens, self.limits, strict=True)
        for request, length, tokens, limit in rows:
            if request >= 0:
                most = tokens + length + 1  # after this step
                if most + length + 1 > limit:
                    return None
                longest_draft, longest = max(longest_draft, length), max(longest, most + length)
        if self.step.draft_length(longest_draft) != plan.k:
            return None
        span = self.step.span(longest, self.capacity)
        after = StepPlan(plan.lengths, plan.k, span, longest)
        return after if self.step.prepared(plan.k, span) else None

    def finish(self, request: int) -> None:
        """End a request early; its row becomes free."""
        for row in np.flatnonzero(self.rows.requests == request):
            self.sequences.active[row] = False
            self.rows.release(int(row))

    def released(self, active: list[int], serving: list[int]) -> list[int]:
        """The rows that still serve their request of `serving`; those that are done become idle."""
        now = self.serving
        rows = [row for row, r in enumerate(serving) if r >= 0 and r == now[row]]
        if not all(active):
            for row in rows:
                if not active[row]:
                    self.rows.release(row)
        return rows
