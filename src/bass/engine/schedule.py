"""Assigns requests to the rows of a batch, and plans the next step: how long the drafts are."""

from collections import deque
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from bass.engine.requests import Request
from bass.engine.step import Step
from bass.records import CacheBudget, RowAssignment, Sequences, copied


@dataclass
class StepPlan:
    """The lengths and the shape of a step."""

    lengths: list[int]  # of the drafts of the rows
    k: int  # at least the longest of them
    span: int


@final
@dataclass
class Schedule:
    """The host's view of the rows: the request, the number of tokens and the limit of each.

    `serving` holds the index of each row's request, -1 for an idle row, whose limit is 0.
    """

    requests: list[Request]
    sequences: Sequences
    step: Step

    def __post_init__(self) -> None:
        batch, self.capacity = len(self.sequences.lens), self.sequences.capacity
        self.lens, self.limits, self.serving = [0] * batch, [0] * batch, [-1] * batch
        self.queue = deque(range(len(self.requests)))  # of requests that wait for a row

    @property
    def busy(self) -> bool:
        return bool(self.queue) or max(self.serving) >= 0

    @property
    def most_generated(self) -> int:
        """The number of tokens that the row with the most has after its prompt."""
        rows = zip(self.lens, self.serving, strict=True)
        return max(tokens - len(self.requests[r].prompt) for tokens, r in rows if r >= 0)

    def admit(self) -> np.ndarray:
        """Assign idle rows to waiting requests and prefill them; returns these rows.

        Samples of one prompt share a prefill: the first is fed, or copied from a row that already
        serves the prompt; the others are copies.
        """
        idle = np.flatnonzero(np.array(self.serving) < 0)[: len(self.queue)]
        if not len(idle):
            return idle
        donors = {
            tuple(self.requests[r].prompt): row
            for row, r in reversed(list(enumerate(self.serving)))
            if r >= 0
        }
        # Leaders, whose prompts are fed, come first: their rows are adjacent and need one pass.
        leaders: list[int] = []
        followers: list[int] = []
        known = set(donors)
        for request in [self.queue.popleft() for _ in idle]:
            prompt = tuple(self.requests[request].prompt)
            (followers if prompt in known else leaders).append(request)
            known.add(prompt)
        # active rows continue, idle ones hold nothing
        source, shared = np.arange(len(self.serving)), np.array(self.limits)
        self.lens = self.lens.copy()  # the report of the last step may hold the same list
        for row, request in zip(idle.tolist(), leaders + followers, strict=True):
            prompt, limit = self.requests[request].prompt, self.requests[request].limit
            self.serving[row], self.lens[row], self.limits[row] = request, len(prompt), limit
            source[row] = donors.setdefault(tuple(prompt), row)
            if source[row] != row:
                shared[row] = len(prompt) - 1

        assignment = RowAssignment(np.array(self.limits), source, shared)
        for store in (self.step.target, self.step.drafter):
            store.reserve(copied(assignment) if store.writes_inputs else assignment)
        prompts = [self.requests[request].prompt for request in leaders]
        fed = idle[: len(leaders)]
        for run in np.split(np.arange(len(fed)), np.flatnonzero(np.diff(fed) > 1) + 1):
            if len(run):
                fed_prompts = prompts[run[0] : run[-1] + 1]
                self.step.prefill(self.sequences, fed_prompts, int(fed[run[0]]))
        for store in (self.step.target, self.step.drafter):
            store.copy_rows(copied(assignment) if store.writes_inputs else assignment)
        self.step.log.take()  # a prefill is not part of a step
        self._start(idle, [self.requests[request] for request in leaders + followers])
        return idle

    def _start(self, rows: np.ndarray, requests: list[Request]) -> None:
        """Write the requests to the device's rows."""
        s = self.sequences
        tokens = np.zeros(
            (len(rows), max(len(request.prompt) for request in requests)), dtype=np.int64
        )
        ends = np.full((len(rows), s.end_tokens.shape[1]), -1)
        for row, request in enumerate(requests):
            tokens[row, : len(request.prompt)] = request.prompt
            ends[row, : len(request.end_tokens)] = request.end_tokens
        numbers = np.array([(len(r.prompt), r.limit, r.key) for r in requests])
        sampling = np.array([r.sampling for r in requests], dtype=float)
        arrays = rows, tokens, numbers, ends, sampling
        index, prompts, numbers, ends, sampling = (
            torch.as_tensor(array, device=s.tokens.device) for array in arrays
        )
        s.tokens[index, : prompts.shape[1]] = prompts
        s.lens[index], s.limits[index], s.keys[index] = numbers.unbind(1)
        s.prompt_lens[index], s.end_tokens[index], s.sampling[index] = numbers[:, 0], ends, sampling
        s.steps[index] = 0
        s.active[index] = True

    def plan(self, requested: list[int]) -> StepPlan:
        """The next step; each draft has its requested length, or what its row's limit and the
        drafter's context leave.
        """
        lengths, longest, context = [0] * len(requested), 0, self.step.draft_context
        rows = zip(self.serving, requested, self.lens, self.limits, strict=True)
        for row, (request, length, tokens, limit) in enumerate(rows):
            if request >= 0:
                left = (limit - 1 if limit <= context else context) - tokens
                lengths[row] = length if length < left else left if left > 0 else 0
                if tokens + lengths[row] > longest:
                    longest = tokens + lengths[row]
        k = self.step.shapes.draft_length(max(lengths))
        return StepPlan(lengths, k, self.step.shapes.span(longest, self.capacity))

    def plan_ahead(self, plan: StepPlan, requested: list[int]) -> StepPlan | None:
        """The step after this one, if it does not depend on this one's report; else None.

        That holds where no request waits for a row, no active row can reach its limit in either
        step, nor its draft the end of the drafter's context, and the shape is prepared.
        """
        if self.queue:
            return None
        lengths, longest, context = [0] * len(requested), 0, self.step.draft_context
        rows = zip(self.serving, plan.lengths, requested, self.lens, self.limits, strict=True)
        for row, (request, length, following, tokens, limit) in enumerate(rows):
            if request >= 0:
                following = following if tokens + 1 < context else 0
                most = tokens + length + 1 + following  # before the second step's own token
                if most + 1 > limit or (following and most > context):
                    return None
                lengths[row], longest = following, max(longest, most)
        k = self.step.shapes.draft_length(max(lengths))
        span = self.step.shapes.span(longest, self.capacity)
        return StepPlan(lengths, k, span) if self.step.prepared(k, span) else None

    def finish(self, request: int) -> None:
        for row, served in enumerate(self.serving):
            if served == request:
                self.sequences.active[row] = False
                self.release(row)

    def released(self, active: list[int], serving: list[int]) -> list[int]:
        """The rows that still serve their request of `serving`; those that are done become idle."""
        rows = [row for row, r in enumerate(serving) if r >= 0 and r == self.serving[row]]
        if not all(active):
            for row in rows:
                if not active[row]:
                    self.release(row)
        return rows

    def release(self, row: int) -> None:
        """Mark the row idle until the next admission."""
        self.serving[row], self.limits[row] = -1, 0


def room_for(requests: list[Request], batch: int) -> CacheBudget:
    """The cache budget of these requests, `batch` at a time.

    Requests with the same prompt share the positions that a prefill feeds.
    """
    groups: dict[tuple[int, ...], int] = {}
    numbers = [
        (r.limit, len(r.prompt) - 1, groups.setdefault(tuple(r.prompt), len(groups)))
        for r in requests
    ]
    return CacheBudget(batch, *np.array(numbers, dtype=np.int64).T)
