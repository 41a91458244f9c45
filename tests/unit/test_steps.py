"""How a run deals with its step: spans are the step's own, preparation is nobody's time, a warm-up
prepares all that may occur.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, ClassVar, final

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bass
from bass.engine.graphs import trial
from bass.engine.prefill import Part
from bass.engine.run import EngineRun
from bass.engine.shapes import StepShape, StepShapes, bucket
from bass.engine.step import SpeculativeStep, Step, StepReport
from bass.interfaces import Drafter, DrafterContext, DraftMethod
from bass.ops import batch_state
from bass.policies import BatchAdaptive, Fixed
from bass.records import Draft, Feedback, Noise, Sequences
from bass.testing.small_models import SmallLlama, SmallModel, SmallTable
from support.engines import PAIRINGS, READ_LAYERS, TABLE_DRAFTERS, Setup, mixed_requests
from support.matrix import night
from unit.checkpoints import Pair

TABLE = SmallTable()
CAPTURE, STEP, HOST = 100.0, 1.0, 0.125  # seconds


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@final
class Prepared(Step):
    """A step that takes a second, and a hundred the first time it has a shape; both by the
    clock.
    """

    def __init__(self, inner: Step, clock: Clock, is_late: bool, capacity: int) -> None:
        self.inner, self.clock, self.is_late = inner, clock, is_late
        self.shapes = StepShapes(spans=StepShapes.of((0,), capacity).spans)
        self.target, self.drafter, self.log = inner.target, inner.drafter, inner.log
        self.verifier, self.warp = inner.verifier, inner.warp
        self.met: list[StepShape] = []

    @property
    def overlaps(self) -> bool:  # type: ignore[override]
        return self.is_late

    def prepared(self, shape: StepShape) -> bool:
        return shape in self.met

    def prepare(self, sequences: Sequences, shape: StepShape) -> None:
        self.met.append(shape)
        self.clock.now += CAPTURE

    def launch(
        self, sequences: Sequences, lengths: list[int], shape: StepShape, parts: Sequence[Part] = ()
    ) -> Callable[[], StepReport]:
        assert shape in self.met
        collect = self.inner.launch(sequences, lengths, shape, parts)

        def wait() -> StepReport:
            self.clock.now += STEP
            return collect()

        return wait


@dataclass(frozen=True)
class Thinking(BatchAdaptive):
    """Thinks for an eighth of a second, and notes how long steps took."""

    clock: Clock = field(default_factory=Clock)
    seen: list[float] = field(default_factory=list)

    def update(self, state: Any, feedback: Feedback) -> Any:
        self.seen.append(feedback.seconds)
        self.clock.now += HOST
        return super().update(state, feedback)


@pytest.fixture(params=[False, True], ids=["waits", "overlaps"])
def run(
    request: pytest.FixtureRequest, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> EngineRun:
    """Nine requests of different lengths in three rows, by the clock."""
    clock = Clock()
    monkeypatch.setattr("bass.engine.run.time", SimpleNamespace(perf_counter=clock))
    made = Setup(TABLE, device, policy=Thinking(clock=clock), graphs=False).engine(
        mixed_requests(TABLE)
    )
    step = Prepared(made.step, clock, request.param, made.sequences.capacity)
    return replace(made, step=step)


@given(length=st.integers(1, 5000), capacity=st.integers(1, 5000))
def test_spans_cover_the_length_and_stay_within_the_capacity(length: int, capacity: int) -> None:
    length = min(length, capacity)
    assert length <= bucket(length, capacity) <= min(length + 63, capacity)
    span = StepShapes.of((0,), capacity).span(length, capacity)
    assert length <= span <= min(max(2 * length - 1, 256), capacity)
    assert span == capacity or span in [2**n for n in range(8, 13)]
    few = StepShapes.of((0,), capacity, reads_lengths=True)
    assert few.span(length, capacity) == (512 if length <= 512 < capacity else capacity)


def test_captures_count_neither_as_the_policys_nor_as_the_requests_time(run: EngineRun) -> None:
    emissions = list(run)
    steps, captured = run.trace.steps, CAPTURE * len(run.step.met)  # type: ignore[attr-defined]
    assert captured == run.trace.capture_seconds > CAPTURE
    assert run.policy.seen == [s.seconds for s in steps] == [STEP] * len(steps)  # type: ignore[attr-defined]
    assert [s.at for s in steps] == [STEP * (i + 1) + HOST * i for i in range(len(steps))]
    assert {e.seconds for e in emissions} <= {s.at for s in steps}
    assert max(run.trace.prefilled.values()) < steps[-1].at


def test_host_seconds_are_those_between_a_report_and_the_next_launch_without_readers_and_captures(
    run: EngineRun,
) -> None:
    clock = run.policy.clock  # type: ignore[attr-defined]
    for _ in run:
        clock.now += 7.0
    assert {s.host_seconds for s in run.trace.steps} == {0.0, HOST}
    admissions = len(set(run.trace.prefilled.values()))
    assert sum(s.host_seconds == 0 for s in run.trace.steps) == admissions, (
        "after an admission the wait begins with its end"
    )


def test_a_time_budget_is_spent_by_steps_and_not_by_captures(run: EngineRun) -> None:
    run.time_budget = 2 * STEP + HOST / 2
    list(run)
    assert len(run.trace.steps) == 2


def test_a_generation_that_is_given_up_has_no_more_events(pair: Pair) -> None:
    generation = bass.load(pair.target, pair.draft, device="cpu").stream(
        [3, 4, 5], max_new_tokens=30, ignore_eos=True
    )
    first = next(iter(generation))
    generation.close()
    assert generation.run.status.over
    assert generation.result(interrupted=True).completions[0].token_ids == first.token_ids
    assert list(generation) == []


@final
class Tried(Step):
    """A step that is tried in a greater length before it is taken."""

    overlaps: ClassVar[bool] = False

    def __init__(self, inner: Step) -> None:
        self.inner = inner
        self.target, self.drafter, self.log = inner.target, inner.drafter, inner.log
        self.verifier, self.warp = inner.verifier, inner.warp

    def launch(
        self, sequences: Sequences, lengths: list[int], shape: StepShape, parts: Sequence[Part] = ()
    ) -> Callable[[], StepReport]:
        assert isinstance(self.inner, SpeculativeStep)
        trial(self.inner, sequences, shape._replace(k=shape.k + 5))
        return self.inner.launch(sequences, lengths, shape, parts)


@pytest.mark.parametrize(
    ("world", "pairing", "drafter"),
    [
        (world, name, drafter)
        for world, drafters in ((TABLE, TABLE_DRAFTERS), (SmallLlama(), ["model", *READ_LAYERS]))
        for name, drafter in zip(itertools.cycle(PAIRINGS), drafters, strict=False)
    ]
    + [night(SmallLlama(), name, "model") for name in [*PAIRINGS][1:]],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_trial_of_a_step_changes_nothing_even_of_rows_near_their_limit(
    world: SmallModel, pairing: str, drafter: str, device: torch.device
) -> None:
    setup = Setup(world, device, PAIRINGS[pairing], Fixed(3), drafter=drafter)
    requests = mixed_requests(world, count=6)
    run = setup.engine(requests)
    run = replace(run, step=Tried(run.step))
    tokens: list[list[int]] = [[] for _ in requests]
    for emission in run:
        tokens[emission.request] += emission.tokens
    assert tokens == setup.but(graphs=False).outcome(requests).tokens


@dataclass(frozen=True)
class Learns(DraftMethod):
    """Batch-wide: what followed a token the last time in any row of the run."""

    batch_invariant: ClassVar[bool] = False

    def build(self, context: DrafterContext) -> Drafter:
        return Learned(torch.zeros(context.vocab_size, dtype=torch.int64, device=context.device))


@dataclass(frozen=True)
class Learned(Drafter):
    after: torch.Tensor

    def propose(
        self, sequences: Sequences, lengths: torch.Tensor, k: int, noise: Noise, span: int
    ) -> Draft:
        tokens, positions = batch_state.last(sequences, 2)
        known = (positions >= 0).all(1)
        self.after[tokens[known, 0]] = tokens[known, 1]
        columns = [self.after[tokens[:, 1]]]
        for _ in range(k - 1):
            columns.append(self.after[columns[-1]])
        return Draft(torch.stack(columns, 1), None, lengths)
