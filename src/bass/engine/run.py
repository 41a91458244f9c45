"""The host's loop: ask the policy, take a step, learn from it, hand over finished rows."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch

from bass.drafters.validity import invalid_draft, invalid_target
from bass.engine.passes import Pass, work_of
from bass.engine.requests import EXCLUDED, Emission, Request, StepRecord, Trace
from bass.engine.slots import Slots
from bass.engine.step import Step, StepReport
from bass.errors import CheckpointError, PolicyError, RequestError, StrategyError, explained
from bass.interfaces import DraftLengthPolicy
from bass.ops.batch_state import TARGET, last
from bass.records import Feedback, Sequences, Window


def asked_lengths(policy: DraftLengthPolicy[Any], state: Any, batch: int) -> np.ndarray:
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
class PendingStep:
    """A step that is under way."""

    collect: Callable[[], StepReport]
    lengths: np.ndarray  # int [B], asked for
    k: int
    span: int
    # passes in which drafters took in what was committed without them
    caught_up: tuple[Pass, ...] = ()


@dataclass
class RunStatus:
    """What becomes of a run: known to who holds it when the run itself is gone."""

    failed: bool = False


@final
@dataclass
class Run:
    """One call's requests on their way through a batch of rows.

    Iterate it once; `trace` and `finish` may be used meanwhile.
    """

    requests: list[Request]
    sequences: Sequences
    step: Step
    policy: DraftLengthPolicy[Any]
    time_budget: float | None = None

    def __post_init__(self) -> None:
        batch = len(self.sequences.lens)
        self.trace = Trace()
        self.over = False  # ended, or given up
        self.run_status = RunStatus()
        self.eos = frozenset(self.sequences.eos.tolist())
        self._slots = Slots(
            self.sequences,
            self.step.target,
            self.step.drafter,
            np.full(batch, -1),
            np.zeros(batch, dtype=np.int64),
            deque(range(len(self.requests))),
        )

    def finish(self, request: int) -> None:
        """End a request early, for example at a stop string: its row goes to the next one
        waiting.
        """
        for row in np.flatnonzero(self._slots.requests == request):
            self.sequences.active[row] = False
            self._slots.release(int(row))

    @torch.inference_mode()
    def __iter__(self) -> Iterator[Emission]:
        """Yield what each step committed, row by row, until all is done or the time budget
        (seconds, without captures) is spent.
        """
        try:
            with explained(self.no_room):
                yield from self._steps()
        except Exception:
            self.run_status.failed = True
            raise
        finally:
            self.over = True

    def no_room(self, reason: str) -> RequestError:
        """What to lower when there is no memory for a pass."""
        rows, longest = self.sequences.tokens.shape[0], self.sequences.capacity
        return RequestError(
            f"A pass of {rows} rows of up to {longest} positions, with up to "
            f"{self.policy.max_length} drafted tokens each, needs more "
            f"memory for its buffers than is left beside weights, keys and values ({reason}): "
            "lower `max_batch_size`, the policy's "
            "longest draft, or `max_new_tokens`."
        )

    def _steps(self) -> Iterator[Emission]:
        slots, sequences, policy, trace = self._slots, self.sequences, self.policy, self.trace
        batch, capacity = len(sequences.lens), sequences.capacity
        state = policy.init(batch)
        lens, limits = np.zeros(batch, dtype=np.int64), np.zeros(batch, dtype=np.int64)
        behind = 0  # steps that the drafter has not seen, because no row drafted
        emissions: Iterator[Emission] = iter(())
        ahead: PendingStep | None = None  # launched before the report of the step before
        # `waiting`: since when the device has had nothing to do
        began = waiting = time.perf_counter()

        def now() -> float:
            return time.perf_counter() - began - trace.capture_seconds

        while slots.busy:
            if ahead is None:
                admitted, fed = slots.admit(self.requests)
                self.step.log.take()  # a prefill is no part of a step
                if len(admitted):
                    # copies for the policy, which may write to them
                    state = policy.reset(state, admitted.copy())
                    lens[admitted] = [
                        len(self.requests[r].prompt) for r in slots.requests[admitted]
                    ]
                    limits[admitted] = [self.requests[r].limit for r in slots.requests[admitted]]
                    trace.prompt_tokens_fed += fed
                    trace.prefilled |= dict.fromkeys(slots.requests[admitted].tolist(), now())
                    waiting = time.perf_counter()
                seated = slots.requests >= 0
                lengths = (
                    np.minimum(asked_lengths(policy, state, batch), limits - lens - 1) * seated
                )
                k = int(lengths.max())
                span = self.step.span(int(((lens + lengths) * seated).max()), capacity)
                preparing = time.perf_counter()
                self.step.prepare(sequences, k, span)
                started = time.perf_counter()
                trace.capture_seconds += started - preparing
                caught_up = self._caught_up(behind, span) if k and behind else ()
                pending, waited = self._launched(lengths, k, span, caught_up), preparing - waiting
            else:
                pending, started, waited = ahead, waiting, 0.0
            behind = 0 if pending.k else behind + 1
            serving = slots.requests.copy()
            active = serving >= 0
            ahead = self._launched_ahead(pending, lens, limits, active)
            yield from emissions  # of the step before, while the device works
            report = pending.collect()
            ended = time.perf_counter()
            # nothing of this step, or of one launched ahead, is emitted
            if found := max((report.flags % TARGET).tolist()):
                raise invalid_draft(self.step.drafter, found)
            # From here to the next launch the device waits, unless it has one: what the policy need
            # not know is told later, with the emissions.
            # Nothing is of rows that ended meanwhile.
            report = replace(
                report, drafted=report.drafted * active, emitted=report.emitted * active
            )
            before, lens, accepted, at = lens, report.lens.copy(), report.accepted * active, now()
            rows = self._released(report, serving)
            learned = report.drafted.copy(), accepted.copy(), active.copy()
            state = policy.update(state, Feedback(*learned, ended - started))
            times = ended - started, waited, at
            emissions, waiting = (
                self._told(report, (pending, before, serving), accepted, times, rows),
                ended,
            )
            over = self.time_budget is not None and now() > self.time_budget
            if over or not self.step.overlaps:
                reading = time.perf_counter()
                yield from emissions
                emissions = iter(())
                waiting += time.perf_counter() - reading
            if over:
                return
        yield from emissions
        if ahead is not None:  # all ended in the step before it, which nobody could know
            ahead.collect()

    def _launched(
        self, lengths: np.ndarray, k: int, span: int, caught_up: tuple[Pass, ...] = ()
    ) -> PendingStep:
        return PendingStep(
            self.step.launch(self.sequences, lengths, k, span), lengths, k, span, caught_up
        )

    def _caught_up(self, behind: int, span: int) -> tuple[Pass, ...]:
        """The drafter takes in the tokens of the last `behind` steps, and the two that its last
        draft may have left out.
        """
        self.step.drafter.fill(Window(*last(self.sequences, behind + 2), span))
        return self.step.log.take()

    def _launched_ahead(
        self, pending: PendingStep, lens: np.ndarray, limits: np.ndarray, active: np.ndarray
    ) -> PendingStep | None:
        """The step after this one, while this one is under way: if nothing of this one's report can
        matter to it.

        So the policy must have a constant length, no request waiting for a row, time no matter,
        every row far enough from its limit, the longest draft still asked for, and the shape at
        hand.
        """
        most = lens + pending.lengths + 1  # tokens after this step
        if (
            not (getattr(self.policy, "constant_length", False) and self.step.overlaps)
            or self._slots.queue
            or self.time_budget is not None
        ):
            return None
        if (
            not (most + pending.lengths + 1 <= limits)[active].all()
            or (pending.lengths * active).max() != pending.k
        ):
            return None
        span = self.step.span(int((most + pending.lengths)[active].max()), self.sequences.capacity)
        return (
            self._launched(pending.lengths, pending.k, span)
            if self.step.prepared(pending.k, span)
            else None
        )

    def _released(self, report: StepReport, serving: np.ndarray) -> list[int]:
        """The rows whose requests have not been finished meanwhile; those of them that are done
        become idle.

        Refuses verdicts that cannot be: a row would wait for ever, or its text mean nothing.
        """
        rows = []
        columns = serving, self._slots.requests, report.verdict, report.drafted, report.active
        for row, (request, now, accepted, drafted, active) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            if request >= 0 and not 0 <= accepted <= drafted:
                raise StrategyError(
                    f"`{type(self.step.verifier).__name__}` kept {accepted} of {drafted} "
                    "drafted tokens: "
                    "a verdict accepts between 0 and as many as were drafted."
                )
            if request == now >= 0:
                rows.append(row)
                if not active:
                    self._slots.release(row)
        return rows

    def _told(
        self,
        report: StepReport,
        asked: tuple[PendingStep, np.ndarray, np.ndarray],
        accepted: np.ndarray,
        times: tuple[float, float, float],
        rows: list[int],
    ) -> Iterator[Emission]:
        """The step enters the trace, and what it gave is handed over: when asked for, while the
        device works on the next step.
        """
        pending, lens, serving = asked
        active = serving >= 0
        reached = int(((lens + report.drafted) * active).sum())
        target, counted = self.step.log.target, (lens, report.drafted, report.emitted, active)
        work = work_of(report.passes, pending.caught_up, target, *counted)
        counts, drafts = (
            (report.drafted, accepted, report.emitted),
            (report.draft_tokens, report.draft_probs),
        )
        record = StepRecord(
            pending.k, pending.span, reached, serving, *counts, *times, *drafts, work
        )
        self.trace.steps.append(record)
        if report.flags.any() or np.isnan(report.logprobs).any():
            self._refuse_what_cannot_be(report, rows)
        tokens, logprobs, emitted = (
            report.tokens.tolist(),
            np.maximum(report.logprobs, EXCLUDED).tolist(),
            report.emitted.tolist(),
        )
        for row in rows:
            count = emitted[row]
            yield Emission(
                int(serving[row]),
                tokens[row][:count],
                logprobs[row][:count],
                not report.active[row],
                record.at,
            )

    def _refuse_what_cannot_be(self, report: StepReport, rows: list[int]) -> None:
        """Beyond the emitted tokens a report may hold anything, and beyond the drafted ones."""
        column = np.arange(report.tokens.shape[1])
        served = np.isin(np.arange(len(report.tokens)), rows)
        emitted = served[:, None] & (column < report.emitted[:, None])
        size = self.step.vocab_size
        known = (report.tokens >= 0) & (report.tokens < size)  # others are nobody's
        unknown = report.tokens[emitted & ~known]
        if len(unknown):
            raise StrategyError(
                f"`{type(self.step.verifier).__name__}` emitted the token id {unknown[0]}, which "
                "is outside of the vocabulary: ids go "
                f"from 0 to {size - 1}."
            )
        judged = emitted
        if self.step.verifier.judges_jointly:
            judged = served[:, None] & known & (column <= report.drafted[:, None])
        if (np.isnan(report.logprobs) & judged).any():
            raise CheckpointError(
                "The target's logits are not finite (NaN or infinity): its weights are damaged, or "
                "its dtype is too narrow."
            )
        if found := max((report.flags // TARGET * served).tolist()):
            raise invalid_target(self.step.warp, found)
