"""The host's loop: ask the policy, take a step, learn from it, hand over finished rows."""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch

from bass.engine.requests import Emission, Request, StepRecord, Trace
from bass.engine.slots import Slots
from bass.engine.step import Step, StepReport
from bass.errors import CheckpointError, PolicyError, RequestError, StrategyError, explained
from bass.interfaces import DraftLengthPolicy
from bass.records import Feedback, Sequences


def asked_lengths(policy: DraftLengthPolicy[Any], state: Any, batch: int) -> np.ndarray:
    """The policy's lengths, checked: int [B], each in 0..max_length."""
    name = type(policy).__name__
    try:
        lengths = np.asarray(policy.lengths(state))
    except ValueError as error:
        raise PolicyError(f"`{name}.lengths` failed ({error}); give integers of shape [{batch}].") from error
    if lengths.shape != (batch,) or not np.issubdtype(lengths.dtype, np.integer):
        raise PolicyError(f"`{name}.lengths` returned {lengths.dtype} of shape {list(lengths.shape)}; give integers of shape [{batch}].")
    if (lengths < 0).any() or (lengths > policy.max_length).any():
        bad = int(lengths[(lengths < 0) | (lengths > policy.max_length)][0])
        raise PolicyError(f"`{name}.lengths` returned {bad}; every length must be between 0 and its `max_length={policy.max_length}`.")
    return lengths


@final
@dataclass
class Run:
    """One call's requests on their way through a batch of rows. Iterate it once; `trace` and `finish` may be used meanwhile."""

    requests: list[Request]
    sequences: Sequences
    step: Step
    policy: DraftLengthPolicy[Any]
    time_budget: float | None = None

    def __post_init__(self) -> None:
        batch = len(self.sequences.lens)
        self.trace = Trace()
        self.over = False  # ended, or given up
        self.eos = frozenset(self.sequences.eos.tolist())
        self._slots = Slots(
            self.sequences,
            (self.step.target, self.step.drafter),
            np.full(batch, -1),
            np.zeros(batch, dtype=np.int64),
            deque(range(len(self.requests))),
        )

    def finish(self, request: int) -> None:
        """End a request early, for example at a stop string: its row goes to the next one waiting."""
        for row in np.flatnonzero(self._slots.requests == request):
            self.sequences.active[row] = False
            self._slots.release(int(row))

    @torch.inference_mode()
    def __iter__(self) -> Iterator[Emission]:
        """Yield what each step committed, row by row, until all is done or the time budget (seconds, without captures) is spent."""
        try:
            with explained(self.no_room):
                yield from self._steps()
        finally:
            self.over = True

    def no_room(self, reason: str) -> RequestError:
        """What to lower when there is no memory for a pass."""
        rows, longest = self.sequences.tokens.shape[0], self.sequences.capacity
        return RequestError(
            f"A pass of {rows} rows of up to {longest} positions, with up to {self.policy.max_length} drafted tokens each, needs more "
            f"memory for its buffers than is left beside weights, keys and values ({reason}): lower `max_batch_size`, the policy's "
            "longest draft, or `max_new_tokens`."
        )

    def _steps(self) -> Iterator[Emission]:
        slots, sequences, policy, trace = self._slots, self.sequences, self.policy, self.trace
        batch, capacity = len(sequences.lens), sequences.capacity
        state = policy.init(batch)
        lens, limits = np.zeros(batch, dtype=np.int64), np.zeros(batch, dtype=np.int64)
        behind = 0  # steps that the drafter has not seen, because no row drafted
        emissions: Iterator[Emission] = iter(())
        began = waiting = time.perf_counter()  # `waiting`: since when the device has had nothing to do

        def now() -> float:
            return time.perf_counter() - began - trace.capture_seconds

        while slots.queue or (slots.requests >= 0).any():
            admitted, fed = slots.admit(self.requests)
            if len(admitted):
                state = policy.reset(state, admitted)
                lens[admitted] = [len(self.requests[r].prompt) for r in slots.requests[admitted]]
                limits[admitted] = [self.requests[r].limit for r in slots.requests[admitted]]
                trace.prompt_tokens_fed += fed
                trace.prefilled |= dict.fromkeys(slots.requests[admitted].tolist(), now())
                waiting = time.perf_counter()
            active = slots.requests >= 0
            room = limits - lens - 1
            lengths = np.where(active, np.minimum(asked_lengths(policy, state, batch), room), 0)
            k = int(lengths.max())
            reached = (lens + lengths)[active]
            span = self.step.span(int(reached.max()), capacity)
            preparing = time.perf_counter()
            self.step.prepare(sequences, k, span)
            started = time.perf_counter()
            trace.capture_seconds += started - preparing
            if k and behind:
                # The tokens committed meanwhile, and the two that the last draft may have left out.
                self.step.drafter.fill(*sequences.last(behind + 2), span, 0)
            behind = 0 if k else behind + 1
            serving = slots.requests.copy()
            collect = self.step.launch(sequences, lengths, k, span)
            yield from emissions  # of the step before, while the device works
            report = collect()
            ended = time.perf_counter()
            lens = report.lens.copy()
            accepted, at = report.accepted * active, now()
            state = policy.update(state, Feedback(report.drafted, accepted, active, ended - started))
            trace.steps.append(
                StepRecord(
                    k,
                    span,
                    int(reached.sum()),
                    serving,
                    report.drafted,
                    accepted,
                    report.emitted,
                    ended - started,
                    preparing - waiting,
                    at,
                )
            )
            emissions, waiting = self._take(report, serving, at), ended
            over = self.time_budget is not None and now() > self.time_budget
            if over or not self.step.overlaps:
                reading = time.perf_counter()
                yield from emissions
                emissions = iter(())
                waiting += time.perf_counter() - reading
            if over:
                return
        yield from emissions

    def _check(self, report: StepReport, took_part: np.ndarray) -> None:
        """Refuse verdicts that cannot be: a row would wait for ever, or its text mean nothing."""
        most = report.drafted + 1
        wrong = took_part & ((report.emitted < 1) | (report.emitted > most))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            kept, drafted, name = report.emitted[row] - 1, report.drafted[row], type(self.step.verifier).__name__
            raise StrategyError(
                f"`{name}` kept {kept} of {drafted} drafted tokens: a verdict accepts between 0 and as many as were drafted."
            )

    def _take(self, report: StepReport, serving: np.ndarray, seconds: float) -> Iterator[Emission]:
        """What the step gave to each request that has not been finished meanwhile; the rows of those that are done become idle.

        Emissions are made as they are asked for, which is while the device works on the next step.
        """
        self._check(report, serving >= 0)
        rows = np.flatnonzero((serving >= 0) & (serving == self._slots.requests))
        for row in rows[~report.active[rows]]:
            self._slots.release(int(row))
        return (self._emission(report, serving, row, seconds) for row in rows)

    def _emission(self, report: StepReport, serving: np.ndarray, row: np.intp, seconds: float) -> Emission:
        count = report.emitted[row]
        if not np.isfinite(report.logprobs[row, :count]).all():
            raise CheckpointError(
                "The target's logits are not finite (NaN or infinity): its weights are damaged, or its dtype is too narrow."
            )
        given = report.tokens[row, :count].tolist(), report.logprobs[row, :count].tolist()
        return Emission(int(serving[row]), *given, not report.active[row], seconds)
