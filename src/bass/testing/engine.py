"""Builds the real engine on a small world, runs it, and collects the output of each request."""

import functools
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, replace
from typing import Any, final

import numpy as np
import torch

from bass.attention import SDPA
from bass.caches import PaddedCache
from bass.drafters import ModelDraft
from bass.drafters.validity import features_of
from bass.engine.drafter_context import RunContext, check_features, draw_for
from bass.engine.graphs import GraphedStep
from bass.engine.requests import Request, StepRecord
from bass.engine.run import EngineRun
from bass.engine.scorer import ModelScorer
from bass.engine.shapes import StepShapes
from bass.engine.slots import room_for
from bass.engine.step import SpeculativeStep
from bass.errors import PairingError
from bass.interfaces import (
    Drafter,
    DrafterContext,
    DraftLengthPolicy,
    DraftMethod,
    Draw,
    Scorer,
    StopRule,
    Verifier,
    Warp,
)
from bass.interfaces.lengths import captured_lengths
from bass.ops.noise import row_key
from bass.policies import Fixed
from bass.records import SAMPLING_OPTIONS, CacheBudget, Sequences
from bass.sampling import RowSampling, Sampling
from bass.testing.drafters import Scripted
from bass.testing.worlds import LlamaWorld, Pairing, World
from bass.verifiers.rejection import Rejection

NO_OPTIONS = tuple(SAMPLING_OPTIONS.values())


@dataclass(frozen=True)
class Scorers:
    """Makes scorers for the rows of one run, by role. `target`: the run's target."""

    setup: "Setup"
    budget: CacheBudget
    sequences: Sequences
    target: Scorer

    def __call__(self, role: str) -> Scorer:
        s = self.setup
        return s.wrap_draft(s.world.scorer(role, s.pairing, self.budget, s.device), self.sequences)


DrafterMaker = Callable[["Setup", list[Request], Scorers], Drafter]


@final
@dataclass(frozen=True)
class WorldContext(DrafterContext):
    """The `DrafterContext` of a run in a small world."""

    method: DraftMethod
    scorers: Scorers
    warp: Warp
    draw: Draw
    stop_rule: StopRule | None
    batch: int
    capacity: int

    @property
    def device(self) -> torch.device:
        return self.scorers.setup.device

    @property
    def vocab_size(self) -> int:
        return self.scorers.setup.world.vocab

    def draft(self) -> Scorer:
        if not self.method.needs_draft:
            raise PairingError(
                "The drafter uses a draft model, but its `needs_draft` is False: none is loaded."
            )
        return self.scorers("draft")

    def first_layers(self, count: int) -> Scorer:
        target = self.scorers.target
        if count > self.method.target_layers or not isinstance(target, ModelScorer):
            raise PairingError(
                f"The drafter uses {count} layers of the target, but its `target_layers` is "
                f"{self.method.target_layers}."
            )
        run = RunContext(
            target, None, self.warp, self.draw, self.stop_rule, self.batch, self.capacity
        )
        return run.first_layers(count)


@final
@dataclass(frozen=True)
class By:
    """Builds a run's drafter from a method, as `bass.load` does.

    `watch`: wraps the drafter; its second argument is the size of the vocabulary.
    """

    method: DraftMethod
    stop_rule: StopRule | None = None
    watch: Callable[[Drafter, int], Drafter] | None = None

    def __call__(self, setup: "Setup", requests: list[Request], scorers: Scorers) -> Drafter:
        drafter = self.method.build(
            WorldContext(
                self.method,
                scorers,
                setup.step_warp,
                draw_for(setup.verifier),
                self.stop_rule,
                len(scorers.sequences.lens),
                scorers.sequences.capacity,
            )
        )
        return drafter if self.watch is None else self.watch(drafter, setup.world.vocab)


def _as_it_is(scorer: Scorer, _: Sequences) -> Scorer:
    return scorer


@dataclass(frozen=True)
class Setup:
    """The configuration of an engine: the world, the strategies, and the number of rows.

    `graphs`: steps run as CUDA graphs, unless `reads_on_the_host` names a reason against it.
    """

    world: World
    device: torch.device
    pairing: Pairing = (PaddedCache, SDPA)
    policy: DraftLengthPolicy[Any] = Fixed(3)  # noqa: RUF009  (frozen)
    drafter: Any = By(ModelDraft())
    verifier: Verifier = Rejection()  # noqa: RUF009  (frozen)
    warp: Warp = Sampling(temperature=0)  # noqa: RUF009  (frozen)
    eos: tuple[int, ...] = ()
    batch: int = 3
    wrap_target: Callable[[Scorer, Sequences], Scorer] = _as_it_is
    wrap_draft: Callable[[Scorer, Sequences], Scorer] = _as_it_is
    graphs: bool = False

    def but(self, **changes: Any) -> "Setup":
        return replace(self, **changes)

    @property
    def step_warp(self) -> Warp:
        """The warp of the step: as in `LLM`, `warp` by row if it consists of sampling options."""
        return RowSampling() if isinstance(self.warp, Sampling) else self.warp

    def maker(self) -> DrafterMaker:
        """The function that builds the run's drafter."""
        return self.drafter

    def engine(self, requests: list[Request]) -> EngineRun:
        """The engine for these requests, with caches of exactly their size."""
        budget = room_for(requests, min(self.batch, len(requests)))
        requests = [self._with_options(request) for request in requests]
        longest = max(len(request.end_tokens) for request in requests)
        sequences = Sequences.empty(
            budget.batch, int(budget.limits.max()), [], self.device, longest
        )
        scorer = self.world.scorer("target", self.pairing, budget, self.device)
        if isinstance(self.drafter, By):
            scorer = with_features(scorer, self.drafter.method)
        target = self.wrap_target(scorer, sequences)
        drafter = self.maker()(self, requests, Scorers(self, budget, sequences, target))
        step = SpeculativeStep(target, drafter, self.verifier, self.step_warp, self.world.vocab)
        graphed = self.graphs and self.reads_on_the_host(drafter) is None
        if graphed:
            lengths, reads = captured_lengths(self.policy), self.pairing[1]().reads_lengths
            shapes = StepShapes.of(lengths, sequences.capacity, reads)
            graphs = GraphedStep(step, sequences, shapes)
            return EngineRun(requests, sequences, graphs, self.policy)
        return EngineRun(requests, sequences, step, self.policy)

    @functools.cached_property
    def options(self) -> tuple[float, ...] | None:
        """`Request.sampling` of every request; None if each has its own."""
        return tuple(map(float, astuple(self.warp))) if isinstance(self.warp, Sampling) else None

    def _with_options(self, request: Request) -> Request:
        """The request with the end tokens and the options of all."""
        sampling = request.sampling if self.options is None else self.options
        if not self.eos and sampling == request.sampling:  # thousands of them: no copies
            return request
        ends = tuple(dict.fromkeys((*request.end_tokens, *self.eos)))
        return replace(request, end_tokens=ends, sampling=sampling)

    def reads_on_the_host(self, drafter: Drafter) -> str | None:
        """Why the step cannot be captured in a graph; None if it can."""
        if self.device.type != "cuda":
            return "only a CUDA device has graphs"
        if isinstance(self.world, LlamaWorld) and not self.pairing[1]().capturable:
            return "the backend reads rows' lengths on the host"
        if isinstance(drafter, Scripted):
            return "the script is looked up on the host"
        if (self.wrap_target, self.wrap_draft) != (_as_it_is, _as_it_is):
            return "a wrapper of a scorer reads every pass on the host"
        return None

    def outcome(self, requests: list[Request]) -> "Outcome":
        return Outcome.of(self.engine(requests))


def with_features(scorer: Scorer, method: DraftMethod) -> Scorer:
    """The target's scorer, with the hidden states that the drafter reads. Raises `PairingError`."""
    if isinstance(scorer, ModelScorer):
        return replace(scorer, layers=check_features(method, scorer.decoder.shape.layers))
    if features_of(method):
        raise PairingError(
            f"`{type(method).__name__}` reads hidden states of the target (`target_features`), and "
            "this world has none: use `LlamaWorld`."
        )
    return scorer


@dataclass
class Outcome:
    """New tokens and their log-probabilities, by request, and the trace."""

    tokens: list[list[int]]
    logprobs: list[list[float]]
    steps: list[StepRecord]
    done: list[bool] = field(default_factory=list)

    @classmethod
    def of(cls, run: EngineRun) -> "Outcome":
        """Run the engine and collect its output."""
        count = len(run.requests)
        outcome = cls(
            [[] for _ in range(count)], [[] for _ in range(count)], run.trace.steps, [False] * count
        )
        for emission in run:
            outcome.tokens[emission.request].extend(emission.tokens)
            outcome.logprobs[emission.request].extend(emission.logprobs)
            assert not outcome.done[emission.request], "a finished request emitted again"
            assert emission.tokens, "a step emitted nothing for an active row"
            outcome.done[emission.request] = emission.done
        return outcome

    def history(self, request: int) -> list[tuple[int, int, int]]:
        """(drafted, accepted, emitted) of each step that the request took part in."""
        rows = [
            (step, int(row))
            for step in self.steps
            for row in np.flatnonzero(step.requests == request)
        ]
        return [(int(s.drafted[b]), int(s.accepted[b]), int(s.emitted[b])) for s, b in rows]

    def acceptance(self) -> tuple[int, int]:
        """(drafted, accepted) of the whole run."""
        return sum(int(s.drafted.sum()) for s in self.steps), sum(
            int(s.accepted.sum()) for s in self.steps
        )


def mixed_requests(world: World, seed: int = 0, count: int = 9, longest: int = 18) -> list[Request]:
    """Ragged prompts, some repeated, some of one token; different limits, some of one token."""
    random = np.random.default_rng(seed)
    prompts = [random.integers(0, world.vocab, size).tolist() for size in (5, 1, 8, 2, 3, 7, 1, 4)]
    prompts = (prompts * (count // len(prompts) + 1))[:count]
    prompts[count // 2] = prompts[0]
    new = [longest, 1, longest - 5, 6, 2, longest, 9, 3]
    return [
        Request(prompt, len(prompt) + new[i % len(new)], row_key(seed, prompt, i), i)
        for i, prompt in enumerate(map(list, prompts))
    ]


def same_prompt(
    prompt: list[int],
    new: int,
    samples: int,
    seed: int = 0,
    sampling: tuple[float, ...] = NO_OPTIONS,
) -> list[Request]:
    """Samples of one prompt."""
    fixed, limit = tuple(prompt), len(prompt) + new
    return [
        Request(prompt, limit, _key(seed, fixed, i), 0, i, sampling=sampling)
        for i in range(samples)
    ]


@functools.cache
def _key(seed: int, prompt: tuple[int, ...], sample: int) -> int:
    return row_key(seed, list(prompt), sample)
