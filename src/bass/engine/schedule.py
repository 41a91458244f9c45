"""Assigns requests to the rows of a batch, feeds their prompts, and plans the next step: how long
the drafts are.
"""

import sys
from collections import deque
from dataclasses import dataclass, field
from typing import final

import numpy as np

from bass.engine.prefill import Part, chunk_tokens, on_device, segments_of
from bass.engine.requests import Request
from bass.engine.shapes import StepShape
from bass.engine.step import Step
from bass.records import CacheBudget, RowAssignment, Sequences, copied

# A packed window has room for ROOM times the most drafted tokens that one of the last STEPS
# verified, and an eighth of the rows more, if the trim keeps no more than fit.
ROOM, STEPS = 1.25, 8


@dataclass
class StepPlan:
    """The lengths and the shape of a step, and the parts of prompts that it feeds."""

    lengths: list[int]  # of the drafts of the rows
    shape: StepShape
    parts: list[Part] = field(default_factory=list)


@dataclass
class Prefill:
    """A row whose prompt is being fed; it is idle in steps."""

    request: int
    fed: int = 0  # tokens of the prompt


@final
@dataclass
class Schedule:
    """The host's view of the rows: the request, the number of tokens and the limit of each.

    A request waits in `queue`, has its row in `prefilling` while its prompt is fed, then in
    `serving`, which holds the index of each row's request, -1 for a row that is idle in steps. The
    limit of a row without a request is 0. `known`: the requests that have not ended. `lacking`: of
    each drafter, by row, the first token that it has not been fed; other rows lack none, nor
    do drafters that are fed nothing.
    """

    requests: list[Request]
    sequences: Sequences
    step: Step

    def __post_init__(self) -> None:
        batch, self.capacity = len(self.sequences.lens), self.sequences.capacity
        self.lens, self.limits, self.serving = [0] * batch, [0] * batch, [-1] * batch
        self.longest = [0] * batch  # the longest draft that each row's request allows
        self.known = dict(enumerate(self.requests))
        self.arrived = len(self.known)
        self.queue = deque(self.known)
        self.prefilling: dict[int, Prefill] = {}  # by row, in the order of their admission
        self.lacking: list[dict[int, int]] = [{} for _ in self.step.drafter.choices]
        # the drafters that are fed tokens
        self.fed = [i for i, one in enumerate(self.step.drafter.choices) if one.fills]
        self.kept = deque[int](maxlen=STEPS)  # drafted tokens that each of the last steps verified
        device, joins = self.sequences.tokens.device, bool(self.step.shapes.segments)
        self.chunk, self.segment = chunk_tokens(batch, device, joins)
        self.parts: list[Part] = []  # of prompts, which the next step feeds

    @property
    def busy(self) -> bool:
        return bool(self.queue or self.prefilling) or max(self.serving) >= 0

    @property
    def admits(self) -> bool:
        """Whether there is something to feed, or a request and an idle row for it."""
        return bool(self.prefilling) or (bool(self.queue) and min(self.serving) < 0)

    def add(self, requests: list[Request]) -> None:
        """Let requests wait for a row; they have the next indices."""
        for request in requests:
            self.known[self.arrived] = request
            self.queue.append(self.arrived)
            self.arrived += 1

    def admit(self, lengths: list[int] | None = None, drafter: int = 0) -> np.ndarray:
        """Assign idle rows to waiting requests and feed prompts: as many tokens as take about as
        long as a step, or all of them if no row runs. Returns the rows that begin to decode.

        A step that can feed prompts feeds them itself (`parts`); their rows begin after it.

        lengths: of the next drafts. drafter: that drafts them. A row of length 0, and the other
        drafters, are fed before their first draft. Samples of one prompt share a prefill: the first
        is fed, or copied from a row that already serves the prompt; the others are copies, and wait
        for that row.
        """
        started = self._completed()  # by the last step
        self._start(started)
        runs = max(self.serving) >= 0
        joins = runs and self.step.shapes.feeds(max(lengths or [0]))
        budget = self.chunk if runs else sys.maxsize
        if joins:
            budget = self.segment * self.step.shapes.segments[-1]
        left = budget - sum(
            self._in_segments(len(self._prompt(p.request)) - 1 - p.fed)
            for p in self.prefilling.values()
        )
        idle = [i for i, r in enumerate(self.serving) if r < 0 and i not in self.prefilling]
        assignment, copies = None, dict[int, int]()
        if self.queue and idle:
            lengths, left = lengths or [1] * len(self.lens), -1 if joins else left
            assignment, copies = self._assigned(idle, left, lengths, drafter)
        stores = self.step.target, self.step.drafter
        if assignment is not None:
            for store in stores:
                store.reserve(copied(assignment) if store.writes_inputs else assignment)
        if parts := self._parts(budget):
            if joins:
                self.parts = parts
            else:
                self.step.prefill(self.sequences, parts)
            for one in self.fed:
                if own := [part for part in parts if part.row not in self.lacking[one]]:
                    self.step.catch_up(self.sequences, own, one)
        if assignment is not None:
            for store in stores:
                store.copy_rows(copied(assignment) if store.writes_inputs else assignment)
        self.step.log.take()  # a prefill is not part of a step
        self._start(now := copies if joins else self._completed() | copies)
        return np.array([*started, *now], dtype=np.int64)

    def _completed(self) -> dict[int, int]:
        """The requests whose prompts are fed, by row; they are not prefilling any more."""
        done = {
            row: one.request
            for row, one in self.prefilling.items()
            if one.fed == len(self._prompt(one.request)) - 1
        }
        for row in done:
            del self.prefilling[row]
        return done

    def _prompt(self, request: int) -> list[int]:
        return self.known[request].prompt

    def _in_segments(self, tokens: int) -> int:
        """The tokens of the segments that a part of a prompt takes."""
        return -(-tokens // self.segment) * self.segment

    def _assigned(
        self, idle: list[int], left: int, lengths: list[int], drafter: int
    ) -> tuple[RowAssignment, dict[int, int]]:
        """Assign idle rows to the first requests of the queue; also returns the request of each row
        that copies its prompt.

        left: tokens of new prompts to feed before the next step. A request whose prompt is not fed
        completely before it stays in the queue.
        """
        donors = {
            tuple(self._prompt(r)): row
            for row, r in reversed(list(enumerate(self.serving)))
            if r >= 0
        }
        known, begun = {*donors}, {tuple(self._prompt(p.request)) for p in self.prefilling.values()}
        # Leaders, whose prompts are fed, come first: their rows are adjacent and need one pass.
        leaders: list[int] = []
        followers: list[int] = []
        waiting: list[int] = []
        for request in [self.queue.popleft() for _ in idle[: len(self.queue)]]:
            prompt = tuple(self._prompt(request))
            if prompt in begun:
                waiting.append(request)
            elif prompt in known:
                followers.append(request)
            else:
                leaders.append(request)
                left -= self._in_segments(len(prompt) - 1)
                (known if left >= 0 else begun).add(prompt)
        self.queue.extendleft(reversed(waiting))
        # rows with a request continue, idle ones hold nothing
        source, shared, copies = np.arange(len(self.serving)), np.array(self.limits), {}
        for row, request in zip(idle, leaders + followers, strict=False):
            prompt, self.limits[row] = self._prompt(request), self.known[request].limit
            source[row] = donors.setdefault(tuple(prompt), row)
            if source[row] == row:
                self.prefilling[row] = Prefill(request)
            else:
                shared[row], copies[row] = len(prompt) - 1, request
            for one in self.fed:
                lacking = self.lacking[one]
                lacking.pop(row, None)
                if source[row] in lacking:
                    lacking[row] = min(lacking[source[row]], len(prompt) - 1)
                elif source[row] == row and not (one == drafter and lengths[row]):
                    lacking[row] = 0
        return RowAssignment(np.array(self.limits), source, shared), copies

    def _parts(self, budget: int) -> list[Part]:
        """The next tokens of prompts, up to `budget`, which count as fed."""
        parts = []
        for row, one in self.prefilling.items():
            prompt = self._prompt(one.request)
            last = min(len(prompt) - 1, one.fed + budget)
            if last > one.fed:
                parts.append(Part(row, prompt, one.fed, last))
            budget = max(0, budget - self._in_segments(last - one.fed))
            one.fed = last
        return parts

    def _start(self, started: dict[int, int]) -> None:
        """Write the requests to the device's rows, which decode from now on."""
        if not started:
            return
        s, rows, requests = self.sequences, [*started], [self.known[r] for r in started.values()]
        self.lens = self.lens.copy()  # the report of the last step may hold the same list
        for row, request in started.items():
            self.serving[row], self.lens[row] = request, len(self._prompt(request))
            most = self.known[request].max_draft_length
            self.longest[row] = sys.maxsize if most is None else most
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
            on_device(np.asarray(array), s.tokens.device) for array in arrays
        )
        s.tokens[index, : prompts.shape[1]] = prompts
        s.lens[index], s.limits[index], s.keys[index] = numbers.unbind(1)
        s.prompt_lens[index], s.end_tokens[index], s.sampling[index] = numbers[:, 0], ends, sampling
        s.steps[index] = 0
        s.active[index] = True

    def undrafted(self, shape: StepShape) -> None:
        """Note which drafters do not draft in the next step, of this shape: a drafter is
        fed the last two tokens of a row when it drafts.
        """
        for one in self.fed:
            if shape.k and one == shape.drafter:
                continue
            for row, request in enumerate(self.serving):
                if request >= 0:
                    self.lacking[one].setdefault(row, max(self.lens[row] - 2, 0))

    def lacked(self, plan: StepPlan) -> list[Part]:
        """What the drafter of the step lacks of the rows that draft now; it counts as fed."""
        lacking = self.lacking[plan.shape.drafter]
        rows = [row for row in lacking if plan.lengths[row]]
        if not rows:
            return []
        tokens = self.sequences.tokens[:, : max(self.lens[row] for row in rows)].tolist()
        firsts = [(row, lacking.pop(row)) for row in rows]
        parts = [Part(row, tokens[row], first, self.lens[row] - 1) for row, first in firsts]
        return [part for part in parts if part.first < part.last]

    def plan(self, requested: list[int], drafter: int = 0) -> StepPlan:
        """The next step, with this drafter; each draft has its requested length,
        or what its request, its row's limit and the drafter's context leave.
        """
        lengths, longest, context = [0] * len(requested), 0, self.step.draft_context
        rows = zip(self.serving, requested, self.lens, self.limits, self.longest, strict=True)
        for row, (request, length, tokens, limit, most) in enumerate(rows):
            if request >= 0:
                left = (limit - 1 if limit <= context else context) - tokens
                left = left if left < most else most
                lengths[row] = length if length < left else left if left > 0 else 0
                if tokens + lengths[row] > longest:
                    longest = tokens + lengths[row]
        parts, self.parts = self.parts, []
        shape = self._shape(lengths, longest, drafter, segments_of(parts))
        return StepPlan(lengths, shape, parts)

    def _shape(
        self, lengths: list[int], longest: int, drafter: int, segments: int = 0
    ) -> StepShape:
        """The shape of a step of drafts of these lengths, in rows of up to `longest` positions."""
        k, drafted, rows = max(lengths), sum(lengths), len(lengths) - self.serving.count(-1)
        if (trimming := self.step.trimming) is not None:
            drafted = min(drafted, trimming.trim.most(rows, k))
            if trimming.trim.reads_places and self.kept:
                drafted = min(drafted, int(max(self.kept) * ROOM) + rows // 8 + 1)
        tokens = drafted + rows
        return self.step.shapes.shape(k, longest, self.capacity, tokens, drafter, segments)

    def plan_ahead(self, plan: StepPlan, requested: list[int], drafter: int = 0) -> StepPlan | None:
        """The step after this one, if it does not depend on this one's report; else None.

        That holds where no prompt is to be fed, no active row can reach its limit in either step,
        nor its draft the end of the drafter's context, the shape is prepared, and the drafter that
        drafts lacks no token.
        """
        if self.admits:
            return None
        lengths, longest, context = [0] * len(requested), 0, self.step.draft_context
        allowed = map(min, requested, self.longest)
        rows = zip(self.serving, plan.lengths, allowed, self.lens, self.limits, strict=True)
        for row, (request, length, following, tokens, limit) in enumerate(rows):
            if request >= 0:
                following = following if tokens + 1 < context else 0
                most = tokens + length + 1 + following  # before the second step's own token
                if most + 1 > limit or (following and most > context):
                    return None
                lengths[row], longest = following, max(longest, most)
        shape = self._shape(lengths, longest, drafter)
        if any(lengths[row] for row in self.lacking[shape.drafter]):
            return None
        return StepPlan(lengths, shape) if self.step.prepared(shape) else None

    def finish(self, request: int) -> None:
        """End a request, if it has not ended; it may wait for a row, or have one."""
        if request not in self.known:
            return
        for row, served in enumerate(self.serving):
            if served == request:
                self.sequences.active[row] = False
                self.release(row)
        for row in [row for row, one in self.prefilling.items() if one.request == request]:
            self.limits[row] = 0
            del self.prefilling[row], self.known[request]
        if request in self.queue:
            self.queue.remove(request)
            del self.known[request]

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
        del self.known[self.serving[row]]
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
