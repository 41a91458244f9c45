"""The host's loop: lengths from the policy, one step, feedback to the policy, finished rows
released.
"""

import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Int

from bass.drafters.validity import invalid_draft, invalid_target
from bass.engine.cost import Pass, work_of
from bass.engine.requests import (
    EXCLUDED,
    Emission,
    Request,
    RunRecord,
    RunStatus,
    Source,
    StepRecord,
)
from bass.engine.schedule import Schedule, StepPlan
from bass.engine.shapes import StepShape
from bass.engine.step import Step, StepReport
from bass.engine.trimming import TOO_MANY
from bass.errors import CheckpointError, RequestError, StrategyError, explained
from bass.interfaces import DraftLengthPolicy
from bass.interfaces.policy import checked_drafter, checked_lengths
from bass.ops.batch_state import TARGET
from bass.records import Feedback, Sequences


@dataclass
class PendingStep:
    """A step in flight."""

    collect: Callable[[], StepReport]
    plan: StepPlan
    # the drafter's passes over tokens that it lacked, and their number of each row
    caught_up: tuple[tuple[Pass, ...], Int[np.ndarray, " batch"]] | None = None
    host_seconds: float = 0.0  # time for which the device was idle before the launch
    started: float | None = None  # None: launched while the previous step was in flight


@dataclass
class Outcome:
    """A step that has ended; rows that ended before it, even after its launch, count as idle."""

    report: StepReport
    lens: list[int]  # before it
    serving: list[int]  # the request of each row, -1 for none
    seconds: float
    at: float  # since the run began

    def feedback(self, active: np.ndarray, queued: int) -> Feedback:
        """The policy's feedback, in new arrays, which it may write to, and `active`."""
        drafted, accepted = np.array(self.report.drafted), np.array(self.report.accepted)
        lens = np.array(self.lens) * active
        return Feedback(drafted * active, accepted * active, active, self.seconds, queued, lens)


@final
@dataclass
class EngineRun:
    """Runs the requests of one call, and those that arrive from `source` meanwhile, through a batch
    of rows.

    Iterate it once; `trace` and `finish` may be used during the iteration. A run that is dropped is
    over too. Each second is counted once, as a capture, a step, or the host's work between steps:

        | prefill |  policy, lengths  | capture |   step on the device   | report |  policy ...
                  ^ idle                        ^ started                ^ idle

    `began`: when the run began, `idle`: when the device became idle, both without the captures.
    """

    requests: list[Request]
    sequences: Sequences
    step: Step
    policy: DraftLengthPolicy[Any]
    time_budget: float | None = None
    status: RunStatus = field(default_factory=RunStatus)
    source: Source | None = None

    def __post_init__(self) -> None:
        self.trace = RunRecord()
        weakref.finalize(self, setattr, self.status, "over", True)
        self.schedule = Schedule(self.requests, self.sequences, self.step)
        self.batch, self.drafters = len(self.sequences.lens), len(self.step.drafter.choices)
        self.began = self.idle = 0.0

    @property
    def now(self) -> float:
        """Seconds since the run began, without captures."""
        return time.perf_counter() - self.began - self.trace.capture_seconds

    def finish(self, request: int) -> None:
        """End a request early, for example at a stop string, while it waits, is fed or decodes; its
        row becomes free.
        """
        self.schedule.finish(request)

    def __iter__(self) -> Iterator[Emission]:
        """Yield the tokens that each step committed, row by row, until all requests are done or the
        time budget (in seconds, without captures) is spent.
        """
        try:
            with explained(self.no_room):
                for emissions in self._steps():
                    yield from emissions
        except Exception:
            self.status.failed = True
            raise
        finally:
            self.status.over = True

    def no_room(self, reason: str) -> RequestError:
        """The error for a pass that runs out of memory: what it needs and what to lower."""
        rows, longest = self.sequences.tokens.shape[0], self.sequences.capacity
        return RequestError(
            f"A pass of {rows} rows of up to {longest} positions, with up to "
            f"{self.policy.max_length} drafted tokens each, needs more memory for its buffers than "
            f"is free next to weights, keys and values ({reason}): lower `max_batch_size`, the "
            "policy's longest draft, or `max_new_tokens`."
        )

    @torch.inference_mode()
    def _steps(self) -> Iterator[Iterator[Emission]]:
        """Yield the emissions of each step, to be consumed before the next step's."""
        self.began = self.idle = time.perf_counter()
        self._prepare()
        state = self.policy.init(self.batch)
        emissions: Iterator[Emission] = iter(())  # of the previous step
        ahead: PendingStep | None = None  # launched before the previous step's report
        while True:
            self._poll()
            if not self.schedule.busy:
                yield emissions
                emissions = iter(())
                if ahead is not None:  # launched before the report that ended all requests
                    ahead.collect()
                    ahead = None
                if self.source is None or not self.source.wait(self.now):
                    return
                self.idle = time.perf_counter()
                continue
            pending = ahead
            if pending is None:
                state = self._admitted(state)
                pending = self._launched(self.schedule.plan(*self._chosen(state)))
            self.schedule.undrafted(pending.plan.shape)
            ahead = self._launched_ahead(pending.plan, state)
            yield emissions  # while the device works; the consumer may end requests
            serving = self.schedule.serving.copy()
            active = np.array(serving) >= 0
            ended = self._collected(pending, serving)
            # The device is idle from here to the next launch, unless a step was launched ahead. So
            # nothing is done before that launch that it does not need: the emissions are reported,
            # and their tokens checked, after it.
            rows = self.schedule.released(ended.report.active, serving)
            feedback = ended.feedback(active, len(self.schedule.queue))
            state = self.policy.update(state, feedback)
            emissions = self._reported(pending, ended, rows)
            over = self.time_budget is not None and self.now > self.time_budget
            if over or not self.step.overlaps:
                before = time.perf_counter()
                yield emissions
                self.idle += time.perf_counter() - before  # which the consumer takes
                emissions = iter(())
            if over:
                return

    def _poll(self) -> None:
        if self.source is not None:
            self.schedule.add(self.source.poll(self.now))

    def _prepare(self) -> None:
        """Prepare every step that these requests can need."""
        if not self.requests:
            return
        lengths = range(
            min(len(request.prompt) for request in self.requests),
            max(request.limit for request in self.requests) + 1,
        )
        room = max(request.limit - len(request.prompt) for request in self.requests) - 1
        drafted = min(int(self.policy.max_length), room)
        waits = self.source is not None or len(self.requests) > self.batch
        for shape in self.step.shapes.needed(lengths, drafted, feeding=waits):
            self._capture(shape)

    def _capture(self, shape: StepShape) -> None:
        if not self.step.prepared(shape):
            before = time.perf_counter()
            self.step.prepare(self.sequences, shape)
            self.trace.capture_seconds += time.perf_counter() - before

    def _chosen(self, state: Any) -> tuple[list[int], int]:
        """The policy's lengths of the next step, and the drafter."""
        lengths = checked_lengths(self.policy, self.policy.lengths(state), self.batch)
        return lengths, checked_drafter(self.policy, self.policy.drafter(state), self.drafters)

    def _admitted(self, state: Any) -> Any:
        """Feed prompts of waiting requests; returns the policy's state, reset for the rows that
        begin to decode.
        """
        if not self.schedule.admits:
            return state
        admitted = self.schedule.admit(*self._chosen(state))
        if (device := self.sequences.tokens.device).type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # not a part of the next step's time
        if len(admitted):
            served = [self.schedule.serving[row] for row in admitted.tolist()]
            state = self.policy.reset(state, admitted)  # may write to `admitted`
            self.trace.prefilled |= dict.fromkeys(served, self.now)
        self.idle = time.perf_counter()
        return state

    def _launched(self, plan: StepPlan) -> PendingStep:
        host_seconds = time.perf_counter() - self.idle
        self._capture(plan.shape)
        started = time.perf_counter()
        caught_up = None
        if lacked := self.schedule.lacked(plan):
            tokens = np.zeros(self.batch, dtype=np.int64)
            for part in lacked:
                tokens[part.row] = part.last - part.first
            passes = self.step.catch_up(self.sequences, lacked, plan.shape.drafter)
            caught_up = passes, tokens
        if plan.parts and not plan.shape.segments:  # the drafts are longer than at the admission
            self.step.prefill(self.sequences, plan.parts)
        collect = self.step.launch(self.sequences, plan.lengths, plan.shape, plan.parts)
        return PendingStep(collect, plan, caught_up, host_seconds, started)

    def _launched_ahead(self, plan: StepPlan, state: Any) -> PendingStep | None:
        """Launch the next step while this one is in flight, or return None.

        It requires a policy that gives lengths ahead, and a plan that does not depend on this
        step's report.
        """
        if not self.step.overlaps or self.time_budget is not None:
            return None
        given = self.policy.lengths_ahead(state)
        if given is None:
            return None
        lengths = checked_lengths(self.policy, given, self.batch)
        drafter = checked_drafter(self.policy, self.policy.drafter_ahead(state), self.drafters)
        after = self.schedule.plan_ahead(plan, lengths, drafter)
        if after is None:
            return None
        return PendingStep(self.step.launch(self.sequences, after.lengths, after.shape), after)

    def _collected(self, pending: PendingStep, serving: list[int]) -> Outcome:
        """Wait for the report and check it."""
        report = pending.collect()
        started = self.idle if pending.started is None else pending.started
        self.idle = time.perf_counter()
        check_counts(self.step, report, serving)
        before, self.schedule.lens = self.schedule.lens, report.lens
        if pending.plan.shape.k:
            self.schedule.kept.append(sum(report.drafted))
        return Outcome(report, before, serving, self.idle - started, self.now)

    def _reported(
        self, pending: PendingStep, ended: Outcome, rows: list[int]
    ) -> Iterator[Emission]:
        """Add the step to the trace and yield its emissions.

        It is a generator: it runs when iterated, while the device works on the next step.
        """
        report, text, plan = ended.report, ended.report.text, pending.plan
        serving, lens = np.array(ended.serving), np.array(ended.lens)
        active = serving >= 0
        drafted, accepted, emitted = (
            np.array(of_rows) * active
            for of_rows in (report.drafted, report.accepted, report.emitted)
        )
        trimmed = None if report.trimmed is None else np.array(report.trimmed) * active
        counted = lens, drafted, emitted, active, 0 if trimmed is None else trimmed
        fed, log = sum(part.last - part.first for part in plan.parts), self.step.log
        record = StepRecord(
            plan.shape.k,
            serving,
            drafted,
            accepted,
            emitted,
            ended.seconds,
            pending.host_seconds,
            ended.at,
            text.draft_tokens,
            text.draft_probs,
            work_of(report.passes, pending.caught_up, log.target, *counted) + log.fed(fed),
            trimmed,
            fed,
            plan.shape.drafter,
        )
        self.trace.steps.append(record)
        check_prefix(self.step, report)
        check_emitted(self.step, report, rows)
        tokens, logprobs = text.tokens.tolist(), np.maximum(text.logprobs, EXCLUDED).tolist()
        for row in rows:
            count = report.emitted[row]
            yield Emission(
                ended.serving[row],
                tokens[row][:count],
                logprobs[row][:count],
                not report.active[row],
                record.at,
            )


def check_counts(step: Step, report: StepReport, serving: list[int]) -> None:
    """Raise `StrategyError` for an invalid draft, for a trim that keeps more than it said, or if a
    verdict accepts fewer than 0 tokens, or more than were drafted, which would stall its row or
    corrupt its text.

    The engine then emits nothing of this step or of a step launched after it.
    """
    if any(report.flags) and (found := max(flags % TARGET for flags in report.flags)):
        raise invalid_draft(step.drafter, found)
    if report.trimmed and TOO_MANY in report.trimmed and step.trimming is not None:
        raise StrategyError(
            f"`{type(step.trimming.trim).__name__}` keeps more drafted tokens than its `most` says "
            "for the rows of a step: return a bound that holds, or leave `most` out."
        )
    rows = zip(serving, report.verdict_accepted, report.drafted, strict=True)
    for request, accepted, drafted in rows:
        if not 0 <= accepted <= drafted and request >= 0:
            raise StrategyError(
                f"`{type(step.verifier).__name__}` accepted {accepted} of {drafted} drafted "
                "tokens: return a count from 0 to the number of drafted tokens."
            )


def check_prefix(step: Step, report: StepReport) -> None:
    """Raise `StrategyError` if a verdict accepts other tokens than the drafted ones, of which the
    caches would hold no keys and values.
    """
    text = report.text
    if columns := text.draft_tokens.shape[1]:
        same = text.tokens[:, :columns] == text.draft_tokens
        accepted = np.arange(columns) < np.array(report.accepted)[:, None]
        if (accepted & ~same).any():
            raise StrategyError(
                f"`{type(step.verifier).__name__}` returned other tokens than the draft's as "
                "accepted: return the accepted tokens as drafted, then the next one."
            )


def check_emitted(step: Step, report: StepReport, rows: list[int]) -> None:
    """Raise for emitted token ids outside the vocabulary and for invalid target distributions.

    rows: the rows to check. A report may hold anything after a row's emitted and drafted tokens.
    """
    tokens, impossible = report.text.tokens, np.isnan(report.text.logprobs)
    if not any(report.flags) and not impossible.any():
        return  # an id outside the vocabulary has the log-probability NaN
    column = np.arange(tokens.shape[1])
    served = np.isin(np.arange(len(tokens)), rows)
    emitted = served[:, None] & (column < np.array(report.emitted)[:, None])
    size = step.vocab_size
    known = (tokens >= 0) & (tokens < size)  # False for ids outside the vocabulary
    unknown = tokens[emitted & ~known]
    if len(unknown):
        raise StrategyError(
            f"`{type(step.verifier).__name__}` emitted the token id {unknown[0]}, which is outside "
            f"of the vocabulary: ids go from 0 to {size - 1}."
        )
    judged = emitted
    if step.verifier.judges_jointly:
        judged = served[:, None] & known & (column <= np.array(report.drafted)[:, None])
    if (impossible & judged).any():
        raise CheckpointError(
            "The target's logits are not finite (NaN or infinity): its weights are damaged, or "
            "its dtype is too narrow."
        )
    if found := max((np.array(report.flags) // TARGET * served).tolist()):
        raise invalid_target(step.warp, step.verifier, found)
