"""Builds the real engine on a small model, runs it, and collects the output of each request."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import torch

from bass.attention import SDPA
from bass.caches import PaddedCache
from bass.drafters import ModelDraft
from bass.drafters.validity import built
from bass.engine.assembly import ModelPair, Storage, Strategies
from bass.engine.drafter_context import RunContext, check_features, draw_for
from bass.engine.graphs import GraphedStep
from bass.engine.requests import Request, StepRecord
from bass.engine.run import EngineRun
from bass.engine.schedule import room_for
from bass.engine.scorer import ModelScorer
from bass.engine.shapes import StepShapes
from bass.engine.step import SpeculativeStep
from bass.errors import PairingError
from bass.interfaces import (
    Drafter,
    DrafterContext,
    DraftLengthPolicy,
    DraftMethod,
    Draw,
    KVCache,
    Scorer,
    StopRule,
    Verifier,
    Warp,
)
from bass.interfaces.policy import captured_lengths
from bass.ops.noise import row_key
from bass.policies import Fixed
from bass.records import CacheBudget, DecoderShape, Sequences
from bass.sampling import RowSampling, Sampling
from bass.sampling_params import SAMPLING_OPTIONS
from bass.testing.doubles import Scripted
from bass.testing.small_models import DecoderPair, Pairing, SmallModel, poisoned
from bass.testing.strategies import columns
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
        return s.wrap_draft(s.model.scorer(role, s.pairing, self.budget, s.device), self.sequences)


DrafterMaker = Callable[["Setup", list[Request], Scorers], Drafter]


@final
@dataclass(frozen=True)
class SmallContext(DrafterContext):
    """The `DrafterContext` of a run of a small model."""

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
        return self.scorers.setup.model.vocab

    def draft(self) -> Scorer:
        if not self.method.needs_draft:
            raise PairingError(
                "The drafter uses a draft model, but its `needs_draft` is False: none is loaded."
            )
        return self.scorers("draft")

    def first_layers(self, count: int) -> Scorer:
        target, declared = self.scorers.target, self.method.target_layers
        if count > declared or not isinstance(target, ModelScorer):
            raise PairingError(
                f"The drafter uses {count} layers of the target, but its `target_layers` is "
                f"{declared}."
            )
        run = self.warp, self.draw, self.stop_rule, self.batch, self.capacity
        return RunContext(target, None, *run).first_layers(count)


@final
@dataclass(frozen=True)
class By:
    """Builds a run's drafter from a method, as `bass.load` does."""

    method: DraftMethod
    stop_rule: StopRule | None = None

    def __call__(self, setup: "Setup", requests: list[Request], scorers: Scorers) -> Drafter:
        rows = len(scorers.sequences.lens), scorers.sequences.capacity
        strategies = setup.step_warp, draw_for(setup.verifier), self.stop_rule
        return built(self.method, SmallContext(self.method, scorers, *strategies, *rows))


@final
@dataclass(frozen=True)
class PoisonedLayout:
    """A cache class whose caches are poisoned when they are allocated."""

    layout: Any

    def allocate(
        self, shape: DecoderShape, budget: CacheBudget, device: torch.device, dtype: torch.dtype
    ) -> KVCache[Any]:
        """A cache with a large finite value everywhere."""
        return poisoned(self.layout.allocate(shape, budget, device, dtype))


def _unwrapped(scorer: Scorer, _: Sequences) -> Scorer:
    return scorer


@dataclass(frozen=True)
class Setup:
    """The configuration of an engine: the small model, the strategies, and the number of rows.

    `graphs`: steps run as CUDA graphs, unless `reads_on_the_host` names a reason against it.
    """

    model: SmallModel
    device: torch.device
    pairing: Pairing = (PaddedCache, SDPA)
    policy: DraftLengthPolicy[Any] = Fixed(3)  # noqa: RUF009  (frozen)
    drafter: Any = By(ModelDraft())
    verifier: Verifier = Rejection()  # noqa: RUF009  (frozen)
    warp: Warp = Sampling(temperature=0)  # noqa: RUF009  (frozen)
    eos: tuple[int, ...] = ()
    batch: int = 3
    wrap_target: Callable[[Scorer, Sequences], Scorer] = _unwrapped
    wrap_draft: Callable[[Scorer, Sequences], Scorer] = _unwrapped
    graphs: bool = False

    def but(self, **changes: Any) -> "Setup":
        """The setup with other values of some fields."""
        return replace(self, **changes)

    @property
    def step_warp(self) -> Warp:
        """The warp of the step: as in `LLM`, `warp` by row if it consists of sampling options."""
        return RowSampling() if isinstance(self.warp, Sampling) else self.warp

    @property
    def wraps(self) -> bool:
        """Whether a wrapper of a scorer reads every pass on the host."""
        return (self.wrap_target, self.wrap_draft) != (_unwrapped, _unwrapped)

    def maker(self) -> DrafterMaker:
        """The function that builds the run's drafter."""
        return self.drafter

    def engine(self, requests: list[Request]) -> EngineRun:
        """The engine for these requests, with caches of exactly their size."""
        budget = room_for(requests, min(self.batch, len(requests)))
        requests = [self._with_options(request) for request in requests]
        longest = max(len(request.end_tokens) for request in requests)
        model, by = self.model, self.drafter
        warps = isinstance(self.step_warp, RowSampling)
        if isinstance(model, DecoderPair) and isinstance(by, By) and warps and not self.wraps:
            engine = self.storage(model, by, budget, longest).engine_for(budget, longest)
            return EngineRun(requests, engine.sequences, engine.step, self.policy)
        capacity = int(budget.limits.max())
        sequences = Sequences.empty(budget.batch, capacity, [], self.device, longest)
        scorer = self.model.scorer("target", self.pairing, budget, self.device)
        if isinstance(by, By):
            scorer = with_features(scorer, by.method)
        target = self.wrap_target(scorer, sequences)
        drafter = self.maker()(self, requests, Scorers(self, budget, sequences, target))
        step = SpeculativeStep(target, drafter, self.verifier, self.step_warp, self.model.vocab)
        if self.captures(drafter):
            lengths, reads = captured_lengths(self.policy), self.pairing[1]().reads_lengths
            graphs = GraphedStep(step, sequences, StepShapes.of(lengths, capacity, reads))
            return EngineRun(requests, sequences, graphs, self.policy)
        return EngineRun(requests, sequences, step, self.policy)

    def storage(self, pair: DecoderPair, by: By, budget: CacheBudget, end_tokens: int) -> Storage:
        """The rows and caches of a pair, as `bass.load` makes them; the caches are poisoned."""
        target, draft = (decoder.to(self.device) for decoder in pair.models.values())
        used = draft if by.method.needs_draft else None
        models = ModelPair(target, used, self.device, pair.dtype)
        layout, backend = PoisonedLayout(self.pairing[0]), self.pairing[1]()
        drafting = by.method, by.stop_rule
        strategies = Strategies(self.policy, layout, backend, self.verifier, *drafting)
        return Storage(models, strategies, budget, end_tokens, self.captures())

    @functools.cached_property
    def options(self) -> tuple[float, ...] | None:
        """`Request.sampling` of every request; None if each has its own."""
        return columns(self.warp) if isinstance(self.warp, Sampling) else None

    def _with_options(self, request: Request) -> Request:
        """The request with the end tokens and the options of all."""
        sampling = request.sampling if self.options is None else self.options
        if not self.eos and sampling == request.sampling:  # thousands of them: no copies
            return request
        ends = tuple(dict.fromkeys((*request.end_tokens, *self.eos)))
        return replace(request, end_tokens=ends, sampling=sampling)

    def captures(self, drafter: Drafter | None = None) -> bool:
        """Whether steps run as CUDA graphs."""
        return self.graphs and self.reads_on_the_host(drafter) is None

    def reads_on_the_host(self, drafter: Drafter | None) -> str | None:
        """Why the step cannot be captured in a graph; None if it can."""
        if self.device.type != "cuda":
            return "only a CUDA device has graphs"
        if isinstance(self.model, DecoderPair) and not self.pairing[1]().capturable:
            return "the backend reads rows' lengths on the host"
        if isinstance(drafter, Scripted):
            return "the script is looked up on the host"
        return "a wrapper of a scorer reads every pass on the host" if self.wraps else None

    def outcome(self, requests: list[Request]) -> "RunOutput":
        """Run the engine on these requests."""
        return RunOutput.of(self.engine(requests))


def with_features(scorer: Scorer, method: DraftMethod) -> Scorer:
    """The target's scorer, with the hidden states that the drafter reads. Raises `PairingError`."""
    if isinstance(scorer, ModelScorer):
        return replace(scorer, layers=check_features(method, scorer.decoder.shape.layers))
    if method.target_features:
        raise PairingError(
            f"`{type(method).__name__}` reads hidden states of the target (`target_features`), and "
            "this small model has none: use `SmallLlama`."
        )
    return scorer


@dataclass
class RunOutput:
    """New tokens and their log-probabilities, by request, and the trace."""

    tokens: list[list[int]]
    logprobs: list[list[float]]
    steps: list[StepRecord]
    done: list[bool] = field(default_factory=list)

    @classmethod
    def of(cls, run: EngineRun) -> "RunOutput":
        """Run the engine and collect its output."""
        count = range(len(run.requests))
        outcome = cls(
            [[] for _ in count], [[] for _ in count], run.trace.steps, [False for _ in count]
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
        return [
            (int(step.drafted[row]), int(step.accepted[row]), int(step.emitted[row]))
            for step in self.steps
            for row in np.flatnonzero(step.requests == request)
        ]

    def acceptance(self) -> tuple[int, int]:
        """(drafted, accepted) of the whole run."""
        drafted, accepted = (
            [getattr(s, n).sum() for s in self.steps] for n in ("drafted", "accepted")
        )
        return int(sum(drafted)), int(sum(accepted))


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
