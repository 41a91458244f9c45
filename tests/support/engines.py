"""Builds the real engine around a test world, runs it, and collects what came out of each request."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from bass.attention import BACKENDS
from bass.caches import CACHES
from bass.drafters import DRAFTERS, ModelDrafter, NoDrafter
from bass.engine.bench import OwnDraw
from bass.engine.requests import Request, StepRecord
from bass.engine.run import Run
from bass.engine.step import SpeculativeStep
from bass.interfaces import Drafter, DraftLengthPolicy, Scorer, Verifier, Warp
from bass.noise import row_key
from bass.policies import POLICIES, Fixed
from bass.records import Sequences
from bass.sampling import Sampling
from bass.verifiers import VERIFIERS
from bass.verifiers.coupled import Coupled
from bass.verifiers.rejection import Rejection
from support.drafters import Scripted, Unsure
from support.oracle import greedy
from support.policies import ByRow, Cycle, OwnPast
from support.worlds import Pairing, World

# Every valid pair of layout and backend, so that a new one is enrolled in every law when it is registered.
PAIRINGS: dict[str, Pairing] = {
    f"{cache}+{backend}": (CACHES[cache], BACKENDS[backend])
    for cache in CACHES
    for backend in BACKENDS
    if CACHES[cache].view_type is BACKENDS[backend].view_type  # type: ignore[attr-defined]
}
FIRST_PAIRING = next(iter(PAIRINGS.values()))
EVERY_VERIFIER: dict[str, Verifier] = {name: cls() for name, cls in VERIFIERS.items()}
LOSSLESS = {name: verifier for name, verifier in EVERY_VERIFIER.items() if verifier.lossless}
COUPLED = {name: verifier for name, verifier in LOSSLESS.items() if isinstance(verifier, Coupled)}  # a seed fixes the output
BY_STEP = {name: verifier for name, verifier in LOSSLESS.items() if name not in COUPLED}  # they draw from the noise of steps alone
TEST_POLICIES: dict[str, DraftLengthPolicy[Any]] = {
    **{name: cls() for name, cls in POLICIES.items()},
    "own-past": OwnPast(),
    "by-row": ByRow(),
    "cycle": Cycle(),
}


@dataclass(frozen=True)
class Setup:
    """An engine to be: the world, the strategies, and the number of rows."""

    world: World
    device: torch.device
    pairing: Pairing = FIRST_PAIRING
    policy: DraftLengthPolicy[Any] = Fixed(3)  # noqa: RUF009  (frozen)
    drafter: "str | DrafterMaker" = "model"
    verifier: Verifier = Rejection()  # noqa: RUF009  (frozen)
    warp: Warp = Sampling(temperature=0)  # noqa: RUF009  (frozen)
    eos: tuple[int, ...] = ()
    batch: int = 3
    wrap_target: Callable[[Scorer, Sequences], Scorer] = lambda scorer, _: scorer
    wrap_draft: Callable[[Scorer, Sequences], Scorer] = lambda scorer, _: scorer

    def but(self, **changes: Any) -> "Setup":
        return replace(self, **changes)

    def engine(self, requests: list[Request]) -> Run:
        """As `LLM` does it: caches of exactly the room that these requests need."""
        batch = min(self.batch, len(requests))
        extents = np.sort([request.limit for request in requests])[::-1][:batch].copy()
        sequences = Sequences.empty(batch, int(extents.max()), list(self.eos), self.device)
        target = self.wrap_target(self.world.scorer("target", self.pairing, extents, self.device), sequences)

        def draft_scorer(role: str) -> Scorer:
            return self.wrap_draft(self.world.scorer(role, self.pairing, extents, self.device), sequences)

        make = DRAFTER_MAKERS[self.drafter] if isinstance(self.drafter, str) else self.drafter
        return Run(requests, sequences, SpeculativeStep(target, make(self, requests, draft_scorer), self.verifier, self.warp), self.policy)

    def outcome(self, requests: list[Request]) -> "Outcome":
        run = self.engine(requests)
        outcome = Outcome([[] for _ in requests], [[] for _ in requests], run.trace.steps, [False] * len(requests))
        for emission in run:
            outcome.tokens[emission.request].extend(emission.tokens)
            outcome.logprobs[emission.request].extend(emission.logprobs)
            assert not outcome.done[emission.request], "a finished request emitted again"
            assert emission.tokens, "a step gave an active row nothing"
            outcome.done[emission.request] = emission.done
        return outcome


@dataclass
class Outcome:
    """New tokens and their log-probabilities, by request, and the trace."""

    tokens: list[list[int]]
    logprobs: list[list[float]]
    steps: list[StepRecord]
    done: list[bool] = field(default_factory=list)

    def history(self, request: int) -> list[tuple[int, int, int]]:
        """(drafted, accepted, emitted) of each step that the request took part in."""
        rows = [(step, int(row)) for step in self.steps for row in np.flatnonzero(step.requests == request)]
        return [(int(s.drafted[b]), int(s.accepted[b]), int(s.emitted[b])) for s, b in rows]

    def acceptance(self) -> tuple[int, int]:
        """(drafted, accepted) of the whole run."""
        return sum(int(s.drafted.sum()) for s in self.steps), sum(int(s.accepted.sum()) for s in self.steps)


DrafterMaker = Callable[[Setup, list[Request], Callable[[str], Scorer]], Drafter]


def _scripted(errs: Callable[[int, int], bool], soft: bool = False) -> DrafterMaker:
    def make(setup: Setup, requests: list[Request], scorer: Callable[[str], Scorer]) -> Drafter:
        outputs = {r.key: r.prompt + greedy(setup.world, r.prompt, r.limit + 4) for r in requests}
        return Scripted(outputs, errs, setup.world.vocab, soft)

    return make


DRAFTER_MAKERS: dict[str, DrafterMaker] = {
    "model": lambda setup, _, scorer: ModelDrafter(scorer("draft"), setup.warp, OwnDraw()),
    "none": lambda *_: NoDrafter(),
    "model that stops": lambda setup, _, scorer: ModelDrafter(scorer("draft"), setup.warp, OwnDraw(), Unsure()),
    "the target itself": lambda setup, _, scorer: ModelDrafter(scorer("target"), setup.warp, OwnDraw()),
    "always right": _scripted(lambda *_: False),
    "always wrong": _scripted(lambda *_: True),
    "always wrong, soft": _scripted(lambda *_: True, soft=True),
    "wrong now and then": _scripted(lambda key, position: (key + position * position) % 3 == 0),
    "right and wrong rows": _scripted(lambda key, _: key % 2 == 0, soft=True),
}
assert DRAFTER_MAKERS.keys() >= DRAFTERS.keys(), "say in DRAFTER_MAKERS how to make each registered drafter"


def mixed_requests(world: World, seed: int = 0, count: int = 9, longest: int = 18) -> list[Request]:
    """Ragged prompts, some of them twice; different limits, some of one token; prompts of a single token among them."""
    random = np.random.default_rng(seed)
    prompts = [random.integers(0, world.vocab, size).tolist() for size in (5, 1, 8, 2, 3, 7, 1, 4)]
    prompts = (prompts * (count // len(prompts) + 1))[:count]
    prompts[count // 2] = prompts[0]
    new = [longest, 1, longest - 5, 6, 2, longest, 9, 3]
    return [Request(prompt, len(prompt) + new[i % len(new)], row_key(seed, prompt, i), i) for i, prompt in enumerate(map(list, prompts))]


def same_prompt(prompt: list[int], new: int, samples: int, seed: int = 0) -> list[Request]:
    """Samples of one prompt."""
    return [Request(prompt, len(prompt) + new, _key(seed, tuple(prompt), i), 0, i) for i in range(samples)]


@functools.cache
def _key(seed: int, prompt: tuple[int, ...], sample: int) -> int:
    return row_key(seed, list(prompt), sample)
