"""What the registries hold, to be combined by the laws; the engine itself is built by
`bass.testing.engine`.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from bass.attention import BACKENDS, Flex
from bass.attention.kernels import KernelBackend
from bass.attention.torch import Reference
from bass.caches import CACHES
from bass.drafters import (
    DRAFTERS,
    Choice,
    Ensemble,
    ModelDraft,
    ModelDrafter,
    Ngram,
    NoDrafter,
    Replay,
    SelfDraft,
    Suffix,
)
from bass.drafters.ensemble import EnsembleDrafter
from bass.drafters.several import ChoiceDrafter
from bass.engine.requests import Request
from bass.engine.run import EngineRun
from bass.engine.step import SpeculativeStep
from bass.interfaces import (
    Drafter,
    DrafterContext,
    DraftLengthPolicy,
    DraftMethod,
    Scorer,
    StopRule,
    Verifier,
)
from bass.ops.noise import row_key
from bass.policies import POLICIES
from bass.records import Sequences
from bass.stop_rules import STOP_RULES
from bass.testing import engine
from bass.testing.doubles import ByRow, OwnPast, Unsure
from bass.testing.engine import same_prompt
from bass.testing.small_models import Pairing, SmallModel
from bass.verifiers import VERIFIERS, Coupled
from support.block_heads import WithHead
from support.doubles import Cycle, Scripted
from support.heads import Headed
from support.oracle import greedy

__all__ = ["DrafterMaker", "RunOutput", "Setup", "mixed_requests", "same_prompt"]

# Every valid pair of layout and backend, so that a new one is enrolled in every law when it is
# registered.
EVERY_PAIRING: dict[str, Pairing] = {
    f"{cache}+{backend}": (CACHES[cache], BACKENDS[backend])
    for cache in CACHES
    for backend in BACKENDS
    if CACHES[cache].view_type is BACKENDS[backend].view_type  # type: ignore[attr-defined]
}
# A CPU interprets what a GPU compiles, some 50 times slower than it runs the rest, and the float64
# reference takes long: there, tests/kernels has smaller laws for these.
SLOW = (
    {
        name: pair
        for name, pair in EVERY_PAIRING.items()
        if issubclass(pair[1], KernelBackend | Flex | Reference)
    }
    if os.environ.get("BASS_TEST_DEVICE", "cpu") == "cpu"
    else {}
)
PAIRINGS = {name: pair for name, pair in EVERY_PAIRING.items() if name not in SLOW}
FIRST_PAIRING = next(iter(PAIRINGS.values()))
EVERY_VERIFIER: dict[str, Verifier] = {name: cls() for name, cls in VERIFIERS.items()}
LOSSLESS = {name: verifier for name, verifier in EVERY_VERIFIER.items() if verifier.lossless}
# a seed fixes the output
COUPLED = {name: verifier for name, verifier in LOSSLESS.items() if isinstance(verifier, Coupled)}
# they draw from the noise of steps alone
BY_STEP = {name: verifier for name, verifier in LOSSLESS.items() if name not in COUPLED}
TEST_POLICIES: dict[str, DraftLengthPolicy[Any]] = {
    **{name: cls() for name, cls in POLICIES.items()},
    "own-past": OwnPast(),
    "by-row": ByRow(),
    "cycle": Cycle(),
}


@dataclass(frozen=True)
class By:
    """How a run drafts."""

    method: DraftMethod
    stop_rule: StopRule | None = None


# How a run drafts, by its setup and its requests.
DrafterMaker = By | Callable[[engine.Setup, list[Request]], By]


@dataclass(frozen=True)
class Setup(engine.Setup):
    """An engine to be, whose drafter may be named; see `DRAFTER_MAKERS`.

    With BASS_TEST_GRAPHS=1, in graphs where it can be.
    """

    pairing: Pairing = FIRST_PAIRING
    drafter: str | DrafterMaker = "model"  # type: ignore[assignment]
    graphs: bool = os.environ.get("BASS_TEST_GRAPHS", "0") == "1"

    def drafts(self, requests: list[Request]) -> By:
        """How a run of these requests drafts."""
        made = DRAFTER_MAKERS[self.drafter] if isinstance(self.drafter, str) else self.drafter
        return made if isinstance(made, By) else made(self, requests)

    def engine(self, requests: list[Request]) -> EngineRun:
        by, capturable = self.drafts(requests), self.device.type == "cuda" and self.wrap is None
        host = isinstance(by.method, Scripted) or not self.pairing[1]().capturable
        graphs = self.graphs and capturable and not host
        setup = replace(self, drafter=by.method, stop_rule=by.stop_rule, graphs=graphs)
        return super(Setup, setup).engine(requests)

    def outcome(self, requests: list[Request]) -> "RunOutput":
        """Run the engine on these requests."""
        return RunOutput(self.engine(requests))


class RunOutput:
    """Runs an engine: new tokens and their log-probabilities, by request, and the trace."""

    def __init__(self, run: EngineRun) -> None:
        self.tokens: list[list[int]] = []
        self.logprobs: list[list[float]] = []
        self.steps, self.done = run.trace.steps, list[bool]()
        for emission in run:
            while len(self.tokens) < run.schedule.arrived:
                self.tokens.append([])
                self.logprobs.append([])
                self.done.append(False)
            assert not self.done[emission.request], "a finished request emitted again"
            assert emission.tokens, "a step emitted nothing for an active row"
            self.tokens[emission.request].extend(emission.tokens)
            self.logprobs[emission.request].extend(emission.logprobs)
            self.done[emission.request] = emission.done

    def history(self, request: int) -> list[tuple[int, int, int]]:
        """(drafted, accepted, emitted) of each step that the request took part in."""
        return [
            (int(step.drafted[row]), int(step.accepted[row]), int(step.emitted[row]))
            for step in self.steps
            for row in np.flatnonzero(step.requests == request)
        ]

    def histories(self) -> list[list[tuple[int, int, int]]]:
        """The history of each request."""
        return [self.history(request) for request in range(len(self.tokens))]

    def acceptance(self) -> tuple[int, int]:
        """(drafted, accepted) of the whole run."""
        drafted = sum(int(step.drafted.sum()) for step in self.steps)
        return drafted, sum(int(step.accepted.sum()) for step in self.steps)


@dataclass(frozen=True)
class Built(DraftMethod):
    """The drafter that a function makes, with a draft model at hand."""

    make: Callable[[Any], Drafter]

    @property
    def needs_draft(self) -> bool:
        return True

    def build(self, context: DrafterContext) -> Drafter:
        return self.make(context)


def by_the_target(context: Any) -> ModelDrafter:
    """A drafter by another scorer of the target, from the same storage as that of the draft."""
    scorer = context.scorer_of(context.target.decoder)
    return ModelDrafter(scorer, context.warp, context.draw, context.stop_rule)


def with_draft(drafter: Any, wrap: Callable[[Scorer], Scorer]) -> Any:
    """The drafter, its models' scorers wrapped."""
    if isinstance(drafter, EnsembleDrafter | ChoiceDrafter):
        parts = tuple(with_draft(part, wrap) for part in drafter.drafters)
        return replace(drafter, drafters=parts)
    is_model = isinstance(drafter, ModelDrafter)
    return replace(drafter, scorer=wrap(drafter.scorer)) if is_model else drafter


def watched(watch: Callable[[Scorer, Sequences, bool], Scorer]) -> Callable[..., SpeculativeStep]:
    """For `Setup.wrap`: wraps the scorers of the target, and of the draft."""

    def wrap(step: SpeculativeStep, sequences: Sequences) -> SpeculativeStep:
        drafter = with_draft(step.drafter, lambda scorer: watch(scorer, sequences, False))
        return replace(step, target=watch(step.target, sequences, True), drafter=drafter)

    return wrap


def mixed_requests(
    model: SmallModel, seed: int = 0, count: int = 9, longest: int = 18
) -> list[Request]:
    """Ragged prompts, some repeated, some of one token; different limits, some of one token."""
    random = np.random.default_rng(seed)
    prompts = [random.integers(0, model.vocab, size).tolist() for size in (5, 1, 8, 2, 3, 7, 1, 4)]
    prompts = (prompts * (count // len(prompts) + 1))[:count]
    prompts[count // 2] = prompts[0]
    new = [longest, 1, longest - 5, 6, 2, longest, 9, 3]
    return [
        Request(prompt, len(prompt) + new[i % len(new)], row_key(seed, prompt, i), i)
        for i, prompt in enumerate(map(list, prompts))
    ]


def _scripted(errs: Callable[[int, int], bool], soft: bool = False) -> DrafterMaker:
    def make(setup: engine.Setup, requests: list[Request]) -> By:
        said: dict[tuple[tuple[int, ...], int], list[int]] = {}  # rows of one prompt share it
        outputs = {}
        for r in requests:
            same = tuple(r.prompt), r.limit
            if same not in said:
                said[same] = r.prompt + greedy(setup.model, r.prompt, r.limit + 4)
            outputs[r.key] = said[same]
        return By(Scripted(outputs, errs, setup.model.vocab, soft))

    return make


def _under(rule: StopRule) -> dict[str, DrafterMaker]:
    return {
        "model": By(ModelDraft(), rule),
        "self": By(SelfDraft(1), rule),
        "eagle": _head(EAGLE, rule),
        "medusa": _head(MEDUSA, rule),
        "block": _head(BLOCK, rule),
        "ensemble": By(Ensemble((Ngram(longest=2), ModelDraft())), rule),
    }


def _head(method: Callable[[], DraftMethod], rule: StopRule | None = None) -> DrafterMaker:
    return lambda setup, requests: By(method(), rule)


EAGLE = partial(Headed, "eagle3, reduced vocabulary")
MTP = partial(Headed, "mtp of mimo")
MEDUSA = partial(WithHead, "FasterDecoding")
BLOCK = partial(WithHead, "DeepSpec, DSpark")


def _replay(setup: engine.Setup, requests: list[Request]) -> By:
    """Of the rows in turn: the right script, one that goes wrong after three tokens, one that ends
    early, none.
    """
    scripts = [[setup.model.vocab - 1] * 40]  # so that there is one
    for i, r in enumerate(requests[:24]):
        script = r.prompt + greedy(setup.model, r.prompt, r.limit + 4)
        wrong = [
            (token + (place >= len(r.prompt) + 3)) % setup.model.vocab
            for place, token in enumerate(script)
        ]
        scripts += ([script], [wrong], [script[: len(r.prompt) + 4]], [])[i % 4]
    return By(Replay(scripts))


DRAFTER_MAKERS: dict[str, DrafterMaker] = {
    "model": By(ModelDraft()),
    "none": By(NoDrafter()),
    "ngram": By(Ngram()),
    "suffix": By(Suffix()),
    "self": By(SelfDraft(1)),
    "eagle": _head(EAGLE),
    "mtp": _head(MTP),
    "medusa": _head(MEDUSA),
    "block": _head(BLOCK),
    "replay": _replay,
    "ensemble": By(Ensemble((Ngram(longest=2), ModelDraft()))),
    "choice": By(Choice((Ngram(longest=2), ModelDraft()))),
    "ensemble with a head": lambda setup, requests: By(Ensemble((Ngram(longest=2), EAGLE()))),
    "ensemble of three that stops": By(
        Ensemble((Ngram(shortest=2), Replay([[0, 1, 2] * 9]), ModelDraft())), Unsure()
    ),
    "model that stops": By(ModelDraft(), Unsure()),
    "the target itself": By(Built(by_the_target)),
    "always right": _scripted(lambda *_: False),
    "always wrong": _scripted(lambda *_: True),
    "always wrong, soft": _scripted(lambda *_: True, soft=True),
    "wrong now and then": _scripted(lambda key, position: (key + position * position) % 3 == 0),
    "right and wrong rows": _scripted(lambda key, _: key % 2 == 0, soft=True),
}
# Every drafter that obeys stop rules, under every rule.
DRAFTER_MAKERS |= {
    f"{name}, {rule}": maker
    for rule, cls in STOP_RULES.items()
    for name, maker in _under(cls()).items()
}
# They read layers of the target; a table has none.
READ_LAYERS = ("self", "eagle", "mtp", "medusa", "block", "ensemble with a head")
TABLE_DRAFTERS = [name for name in DRAFTER_MAKERS if not name.startswith(READ_LAYERS)]
assert DRAFTER_MAKERS.keys() >= DRAFTERS.keys(), (
    "say in DRAFTER_MAKERS how to make each registered drafter"
)
