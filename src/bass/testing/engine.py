"""Builds the real engine on a small model, and checks its output: greedy decoding equals the
reference, and the joint distribution of the first tokens is the target's.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from hypothesis import reject

from bass.attention import SDPA
from bass.caches import PaddedCache
from bass.drafters import ModelDraft
from bass.engine.assembly import ModelPair, Storage, Strategies
from bass.engine.requests import Request
from bass.engine.run import EngineRun
from bass.engine.schedule import room_for
from bass.engine.step import SpeculativeStep
from bass.interfaces import DraftLengthPolicy, DraftMethod, DraftTrim, StopRule, Verifier
from bass.ops.noise import row_key
from bass.policies import Fixed
from bass.records import Sequences
from bass.sampling import RowSampling
from bass.sampling_params import Sampling
from bass.testing.checking import COSTLY, Checker
from bass.testing.inputs import LONGEST, SIZES, RequestBatch, requests
from bass.testing.small_models import (
    NearTie,
    Pairing,
    SamplingReference,
    SmallLlama,
    SmallModel,
    SmallTable,
    greedy,
    poisoned,
    sequence_law,
)
from bass.testing.statistics import FALSE_FAILURE, count, distance, threshold
from bass.verifiers.rejection import Rejection

CPU = torch.device("cpu")
NARROW, LARGE = 3, 24  # sizes of vocabularies
PROMPT = (0, 2)
# for narrow models: some defects show only in long rows
LONG_PROMPT = tuple(np.random.default_rng(0).integers(0, 3, 40).tolist())
MANY = 2  # batches of many requests
COST = 0.3  # that a trim reads
NEW = 2  # tokens whose distribution is tested
BEYOND = 2  # further generated tokens, so that drafts are longer than that
# rows of a batch of samples, of one of a large model, and of one whose drafter may compare each row
# with all others
ROWS, LARGE_MODEL_ROWS, BATCH_WIDE_ROWS = 8192, 256, 64
PER_EXAMPLE = 768  # samples
END = 1  # ends a sequence in rows with `min_new_tokens`

GREEDY = "at temperature 0, every request gets the target's greedy output, token for token."
LAW = "the first two tokens are distributed as the target's own."

# A table that hashes its whole memory: one stale or missing token in a row's past changes all later
# ones.
WHOLE_MEMORY = SmallTable()
# Three tokens: a wide vocabulary hides noise that is used twice.
NARROW_TABLE = SmallTable(vocab=NARROW, order=2, seed=1, sharpness=1.2, likeness=0.5)
# With three tokens, top-k and rounded probabilities change little. Each token depends on the one
# before, so the distributions of pairs show all that goes wrong after a token. The draft knows
# fewer tokens than the target.
LARGE_TABLE = SmallTable(vocab=LARGE, order=1, sharpness=1.0, likeness=0.5, draft_vocab=LARGE - 2)
# Two tokens, of probability 1/2 in the target and 0.1 and 0.9 in the draft, at every position:
# rejections are frequent, so noise of rejected tokens that is used again shows.
COIN = SmallTable(vocab=2, order=1, seed=555, sharpness=1.2, likeness=0.0, entries=1)
# The same with three tokens, for drafters that know token ids up to 2: 0.50, 0.01 and 0.49 in the
# target, 0.83, 0.02 and 0.15 in the draft.
UNLIKE = SmallTable(vocab=NARROW, order=1, seed=1301, sharpness=2.0, likeness=0.0, entries=1)


def sampled_llama(layers: int, vocab: int) -> SmallLlama:
    """A Llama with flat distributions, and a draft unlike its target."""
    return SmallLlama(vocab, layers=layers, seed=2, unlikeness=0.4, sharpness=0.3)


@final
@dataclass(frozen=True)
class Poisoned:
    """A cache class whose caches hold a large value wherever nothing was written."""

    layout: Any

    def allocate(self, *arguments: Any) -> Any:
        return poisoned(self.layout.allocate(*arguments))


@dataclass(frozen=True)
class Setup:
    """The configuration of an engine: the small model, the strategies, and the number of rows.

    `warp`: `Sampling` of all requests, or `RowSampling`, where each has its own. `wrap`: changes
    the step of a run. `graphs`: steps run as CUDA graphs.
    """

    model: SmallModel
    device: torch.device
    pairing: Pairing = (PaddedCache, SDPA)
    policy: DraftLengthPolicy[Any] = Fixed(3)  # noqa: RUF009  (frozen)
    drafter: DraftMethod = ModelDraft()  # noqa: RUF009  (frozen)
    verifier: Verifier = Rejection()  # noqa: RUF009  (frozen)
    warp: Sampling | RowSampling = Sampling(temperature=0)  # noqa: RUF009  (frozen)
    eos: tuple[int, ...] = ()
    batch: int = 3
    wrap: Callable[[SpeculativeStep, Sequences], SpeculativeStep] | None = None
    graphs: bool = False
    stop_rule: StopRule | None = None
    trim: DraftTrim | None = None

    def but(self, **changes: Any) -> "Setup":
        """The setup with other values of some fields."""
        return replace(self, **changes)

    def engine(self, requests: list[Request]) -> EngineRun:
        """The engine for these requests, as of `bass.load`, with poisoned caches of their size."""
        budget = room_for(requests, min(self.batch, len(requests)))
        if self.eos or isinstance(self.warp, Sampling):
            requests = [self.own(request) for request in requests]
        target, draft = (self.model.models[role].to(self.device) for role in ("target", "draft"))
        draft = draft if self.drafter.needs_draft else None
        models = ModelPair(target, draft, self.device, self.model.dtype)
        cache, backend = self.model.pairing or self.pairing
        parts = Poisoned(cache), backend(), self.verifier, self.drafter, self.stop_rule, self.trim
        ends = max(len(request.end_tokens) for request in requests)
        strategies = Strategies(self.policy, *parts).for_models(models)
        storage = Storage(models, strategies, budget, ends, self.graphs)
        engine = storage.engine_for(budget, ends)
        step = engine.step
        if step.trimming is not None:
            step.trimming.costs.fill_(COST)
        if self.wrap is not None:
            assert isinstance(step, SpeculativeStep)
            step = self.wrap(step, engine.sequences)
        return EngineRun(requests, engine.sequences, step, self.policy)

    def own(self, request: Request) -> Request:
        """The request with the setup's end tokens and, if all requests have one, its `Sampling`."""
        sampling = self.warp if isinstance(self.warp, Sampling) else request.sampling
        return replace(request, end_tokens=(*request.end_tokens, *self.eos), sampling=sampling)

    def tokens(self, requests: list[Request]) -> list[list[int]]:
        """The new tokens of each request."""
        found: list[list[int]] = [[] for _ in requests]
        for emission in self.engine(requests):
            assert emission.tokens, "a step emitted nothing for an active row"
            found[emission.request].extend(emission.tokens)
        return found


def same_prompt(
    prompt: list[int], new: int, samples: int, seed: int = 0, kinds: Sequence[Sampling] = ()
) -> list[Request]:
    """Samples of one prompt, with these options in turn, and an end token for `min_new_tokens`."""
    limit = len(prompt) + new
    options: list[dict[str, Any]] = [
        {"sampling": kind, "end_tokens": (END,) if kind.min_new_tokens else ()} for kind in kinds
    ] or [{}]
    return [
        Request(prompt, limit, row_key(seed, prompt, i), 0, i, **options[i % len(options)])
        for i in range(samples)
    ]


def require_greedy(
    checker: Checker, setup: Setup, examples: int, property: str = GREEDY, sizes: tuple = SIZES
) -> None:
    """Check `GREEDY` on drawn requests with prompts of these sizes."""

    def attempt(batch: RequestBatch) -> None:
        expected = [greedy(setup.model, r.prompt, r.limit, batch.eos) for r in batch.requests]
        got = setup.but(batch=batch.rows, eos=batch.eos).tokens(batch.requests)
        checker.equal(property, got, expected)

    for_requests(checker, attempt, examples, setup.model.vocab, sizes)


def for_requests(
    checker: Checker,
    attempt: Callable[[RequestBatch], None],
    examples: int,
    vocab: int,
    sizes: tuple = SIZES,
) -> None:
    """Try drawn requests, and shrink a failing case; then try a few large batches."""

    def drawn(batch: RequestBatch) -> None:
        try:
            attempt(batch)
        except NearTie:  # rounding would decide
            reject()

    checker.for_all(requests(vocab, sizes=sizes), drawn, examples, COSTLY)
    for i in range(MANY):
        # twelve requests for four rows: a large batch reveals more of the rare defects
        seed = checker.seed * MANY + i
        batch = RequestBatch.drawn(seed, vocab, 12, 4, (*sizes, *sizes), LONGEST // 2)
        with checker.on(batch), contextlib.suppress(NearTie):
            attempt(batch)


def require_law(
    checker: Checker,
    setup: Setup,
    options: Sampling | tuple[Sampling, ...],
    property: str = LAW,
    new: int = NEW,
    prompt: tuple = PROMPT,
    subsets: Sequence[tuple[int, ...]] = (),
) -> None:
    """Check the distribution of the first `new` tokens, at the false-failure rate `FALSE_FAILURE`.

    `options`: of all rows, or several that the rows have in turn, each with its share of the
    samples. `subsets`: the indices of the tokens whose joint distribution is tested, several times;
    all by default. For many possible tokens, where the samples do not fill the cells of all.
    """
    kinds = (options,) if isinstance(options, Sampling) else options
    samples, vocab = PER_EXAMPLE * checker.examples, setup.model.vocab
    subsets = subsets or ((*range(new),),)
    rows = ROWS if vocab <= LARGE else LARGE_MODEL_ROWS
    rows = rows if setup.drafter.batch_invariant else BATCH_WIDE_ROWS
    mixed = setup.but(warp=RowSampling(), batch=min(rows, samples))
    of_rows = kinds[0] if len(kinds) == 1 else f"rows of {len(kinds)} sampling options"
    case = (
        f"{vocab} tokens, a prompt of {len(prompt)} tokens, {of_rows}, {samples} samples of seed "
        f"{checker.seed}"
    )
    with checker.on(case):
        requests = same_prompt(list(prompt), new + BEYOND, samples, checker.seed, kinds)
        tokens = mixed.tokens(requests)
        # an output that ended is filled with its last token, as in `SamplingReference`
        first = np.array([(row + row[-1:] * new)[:new] for row in tokens])
        for i, kind in enumerate(kinds):
            reference = SamplingReference(kind, len(prompt), END if kind.min_new_tokens else None)
            possible, probabilities = sequence_law(setup.model, prompt, new, reference)
            known = np.unique(possible)
            expected = np.zeros((len(known) + 1,) * new)  # the last index: all other tokens
            expected[tuple(np.searchsorted(known, possible).T)] = probabilities
            found = np.searchsorted(known, own := first[i :: len(kinds)])
            found[~np.isin(own, known)] = len(known)
            for subset in subsets:
                rest = tuple(n for n in range(new) if n not in subset)
                of = f"{kind}: " if len(kinds) > 1 else ""
                of += f"tokens {[n + 1 for n in subset]}: " if rest else ""
                of += f"by index in the tokens {known.tolist()}: " if len(known) < vocab else ""
                counts = count(found[:, subset], len(known) + 1)
                share = FALSE_FAILURE / (len(subsets) * len(kinds))
                require_samples(checker, property, counts, expected.sum(rest), share, of)


def require_samples(
    checker: Checker,
    property: str,
    counts: np.ndarray,
    expected: np.ndarray,
    false_failure: float,
    of: str = "",
) -> None:
    """Check that the counts are samples of the distribution `expected`."""
    n = int(counts.sum())
    found, apart, most = (
        counts / n,
        distance(counts, expected),
        threshold(expected, n, false_failure),
    )
    checker.require(
        property,
        apart <= most and not counts[expected == 0].any(),
        f"{of}probabilities {cells(expected, expected - found)}; total variation up to "
        f"{most:.4f}, which an exact one exceeds with probability {false_failure:.0e}",
        f"{of}frequencies {cells(found, expected - found)} of {n} samples; total variation "
        f"{apart:.4f}",
    )


def require_equal(
    checker: Checker, property: str, found: np.ndarray, expected: np.ndarray, of: str = ""
) -> None:
    """Check that two enumerated distributions are equal within 1e-12, the rounding of sums of up to
    some 10^4 terms in float64.
    """
    apart = expected - found
    texts = (f"{of}probabilities {cells(law, apart)}" for law in (expected, found))
    checker.require(property, bool(np.abs(apart).max() <= 1e-12), *texts)


def cells(law: np.ndarray, difference: np.ndarray, most: int = 4) -> str:
    """The entries of a distribution where the difference from another one is largest."""
    order = np.argsort(-np.abs(difference), axis=None)[:most]
    indices = sorted(tuple(map(int, np.unravel_index(cell, law.shape))) for cell in order)
    return ", ".join(f"{' '.join(map(str, index))}: {law[index]:.3f}" for index in indices)


# Functions of a setup and requests that give the tokens of each, by what is other in them.
Ways = dict[str, Callable[[Setup, list[Request]], list[list[int]]]]
REPEATED: Ways = {"again": lambda setup, requests: setup.tokens(requests)}
REVERSED: Ways = {"in the other order": lambda setup, requests: setup.tokens(requests[::-1])[::-1]}
ALONE: Ways = {
    "when each is alone": lambda setup, requests: [
        setup.but(batch=1).tokens([request])[0] for request in requests
    ]
}


def require_same(checker: Checker, setup: Setup, examples: int, property: str, ways: Ways) -> None:
    """Check that requests, each with its own options, get the same tokens in other ways."""

    def attempt(batch: RequestBatch) -> None:
        together = setup.but(batch=batch.rows, eos=batch.eos, warp=RowSampling())
        expected = together.tokens(batch.requests)
        for text, way in ways.items():
            got = way(together, batch.requests)
            checker.equal(property, got, expected, f"{text} too")

    for_requests(checker, attempt, examples, setup.model.vocab)
