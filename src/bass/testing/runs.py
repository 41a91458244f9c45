"""Properties of a whole engine: greedy decoding equals the reference, and the joint distribution of
the first tokens is the target's.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from hypothesis import reject

from bass.engine.requests import Request
from bass.sampling import RowSampling, Sampling
from bass.sampling_params import SAMPLING_OPTIONS
from bass.testing.checking import COSTLY, Checker
from bass.testing.engine import Setup, same_prompt
from bass.testing.reference import NearTie, SamplingReference, greedy, joint_law
from bass.testing.small_models import SmallLlama, SmallTable
from bass.testing.statistics import FALSE_FAILURE, LawTest, count
from bass.testing.strategies import SIZES, RequestBatch, columns, many_requests, requests

CPU = torch.device("cpu")
NARROW, LARGE = 3, 24  # sizes of vocabularies
PROMPT = (0, 2)
# for narrow models: some defects show only in long rows
LONG_PROMPT = tuple(np.random.default_rng(0).integers(0, 3, 40).tolist())
MANY = 2  # batches of many requests
NEW = 2  # tokens whose distribution is tested
BEYOND = 2  # further generated tokens, so that drafts are longer than that
ROWS, SPARSE_ROWS = 8192, 256  # of a batch of samples
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


@functools.cache
def llama(layers: int = 2) -> SmallLlama:
    """A tiny Llama, in the library's caches and backends."""
    return SmallLlama(layers=layers)


@functools.cache
def sampled_llama(layers: int, vocab: int) -> SmallLlama:
    """The same with flat distributions, and a draft unlike its target."""
    return SmallLlama(vocab, layers=layers, seed=2, unlikeness=0.4, sharpness=0.3)


def require_greedy(
    checker: Checker, setup: Setup, examples: int, property: str = GREEDY, sizes: tuple = SIZES
) -> None:
    """Check `GREEDY` on drawn requests with prompts of these sizes."""

    def attempt(batch: RequestBatch) -> None:
        expected = [greedy(setup.model, r.prompt, r.limit, batch.eos) for r in batch.requests]
        got = setup.but(batch=batch.rows, eos=batch.eos).outcome(batch.requests).tokens
        checker.require(property, got == expected, expected, got)

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
        batch = many_requests(vocab, checker.seed * MANY + i, sizes=sizes)
        with contextlib.suppress(NearTie):
            checker.attempt(batch, lambda batch=batch: attempt(batch))


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
    all by default. For a large vocabulary, where the samples do not fill the cells of all tokens.
    """
    kinds = (options,) if isinstance(options, Sampling) else options
    samples, vocab = PER_EXAMPLE * checker.examples, setup.model.vocab
    subsets = subsets or ((*range(new),),)
    mixed = setup.but(warp=RowSampling(), batch=min(ROWS, samples))
    of_prompt = f"prompt {list(prompt)}" if len(prompt) < 9 else f"a prompt of {len(prompt)} tokens"
    of_rows = named(kinds[0]) if len(kinds) == 1 else f"rows of {len(kinds)} sampling options"
    case = f"{vocab} tokens, {of_prompt}, {of_rows}, {samples} samples of seed {checker.seed}"

    def attempt() -> None:
        requests = same_prompt(list(prompt), new + BEYOND, samples, checker.seed)
        tokens = mixed.outcome(with_options(requests, kinds)).tokens
        # an output that ended is filled with its last token, as in `SamplingReference`
        first = np.array([(row + row[-1:] * new)[:new] for row in tokens])
        for i, kind in enumerate(kinds):
            reference = SamplingReference(kind, len(prompt), END if kind.min_new_tokens else None)
            expected = joint_law(setup.model, list(prompt), new, reference)
            for subset in subsets:
                rest = tuple(n for n in range(new) if n not in subset)
                of = f"{named(kind)}: " if len(kinds) > 1 else ""
                of += f"tokens {[n + 1 for n in subset]}: " if rest else ""
                counts = count(first[i :: len(kinds)][:, subset], vocab)
                share = FALSE_FAILURE / (len(subsets) * len(kinds))
                require_samples(checker, property, counts, expected.sum(rest), share, of)

    checker.attempt(case, attempt)


def with_options(requests: list[Request], kinds: Sequence[Sampling]) -> list[Request]:
    """The requests with these options in turn, and an end token where it may not come early."""
    made = [
        {"sampling": columns(kind), "end_tokens": (END,) if kind.min_new_tokens else ()}
        for kind in kinds
    ]
    return [replace(request, **made[i % len(made)]) for i, request in enumerate(requests)]


def named(options: Sampling) -> str:
    """The temperature, and the options in use."""
    return ", ".join(
        f"{name}={value}"
        for name, value in vars(options).items()
        if name == "temperature" or value != SAMPLING_OPTIONS[name]
    )


def require_samples(
    checker: Checker,
    property: str,
    counts: np.ndarray,
    expected: np.ndarray,
    false_failure: float,
    of: str = "",
) -> None:
    """Check that the counts are samples of the distribution `expected`."""
    test = LawTest(expected, int(counts.sum()), false_failure)
    distance, found = test.distance(counts), counts / test.n
    checker.require(
        property,
        distance <= test.threshold and not counts[expected == 0].any(),
        f"{of}probabilities {cells(expected, expected - found)}; total variation up to "
        f"{test.threshold:.4f}, which an exact one exceeds with probability {false_failure:.0e}",
        f"{of}frequencies {cells(found, expected - found)} of {test.n} samples; total variation "
        f"{distance:.4f}",
    )


def cells(law: np.ndarray, difference: np.ndarray, most: int = 4) -> str:
    """The entries of a distribution where the difference from another one is largest."""
    order = np.argsort(-np.abs(difference), axis=None)[:most]
    indices = sorted(tuple(map(int, np.unravel_index(cell, law.shape))) for cell in order)
    return ", ".join(f"{' '.join(map(str, index))}: {law[index]:.3f}" for index in indices)


def sampled(setup: Setup, batch: RequestBatch, backwards: bool = False) -> list[list[int]]:
    """The tokens of each request by its own options; `backwards`: admitted in reverse order."""
    step, mixed = -1 if backwards else 1, setup.but(warp=RowSampling())
    outcome = mixed.but(batch=batch.rows, eos=batch.eos).outcome(batch.requests[::step])
    return outcome.tokens[::step]


def require_same_alone(
    checker: Checker, setup: Setup, examples: int, property: str, alone: bool = True
) -> None:
    """Check that a request's tokens are the same in any row, and, with `alone`, by itself."""

    def attempt(batch: RequestBatch) -> None:
        together = sampled(setup, batch)
        backwards = sampled(setup, batch, backwards=True)
        expected = f"{together} in the other order too"
        checker.require(property, backwards == together, expected, backwards)
        if alone:
            single = setup.but(batch=1, eos=batch.eos, warp=RowSampling())
            each = [single.outcome([request]).tokens[0] for request in batch.requests]
            checker.require(property, each == together, f"{together} when each is alone too", each)

    for_requests(checker, attempt, examples, setup.model.vocab)


def require_repeatable(checker: Checker, setup: Setup, examples: int, property: str) -> None:
    """Check that the same requests with the same noise give the same tokens."""

    def attempt(batch: RequestBatch) -> None:
        first, second = (sampled(setup, batch) for _ in range(2))
        checker.require(property, first == second, f"{first} again", second)

    for_requests(checker, attempt, examples, setup.model.vocab)


def require_sparse_law(checker: Checker, setup: Setup, property: str, new: int) -> None:
    """Check the distribution of the first `new` tokens with top-k 2, for any vocabulary: it has at
    most 2^new sequences, at the false-failure rate `FALSE_FAILURE`.
    """
    options, samples = Sampling(top_k=2), PER_EXAMPLE * checker.examples
    prompt = np.random.default_rng(checker.seed).integers(0, setup.model.vocab, 8).tolist()

    def attempt() -> None:
        reference = SamplingReference(options, len(prompt))
        expected: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(new):
            prefixes = np.array([[*prompt, *tokens] for tokens in expected])
            following = reference(prefixes, setup.model.oracle("target", prefixes))
            expected = {
                (*tokens, int(token)): probability * row[token]
                for (tokens, probability), row in zip(expected.items(), following, strict=True)
                for token in np.flatnonzero(row)
            }
        index = {tokens: i for i, tokens in enumerate(expected)}
        mixed = setup.but(warp=RowSampling(), batch=min(SPARSE_ROWS, samples))
        requests = same_prompt(prompt, new + BEYOND, samples, checker.seed)
        rows = mixed.outcome(with_options(requests, (options,))).tokens
        # the last cell: sequences that are impossible
        found = [index.get(tuple(row[:new]), len(index)) for row in rows]
        counts = np.bincount(found, minlength=len(index) + 1)
        of = f"of the sequences {[list(tokens) for tokens in expected]}, then all others: "
        law = np.array([*expected.values(), 0.0])
        require_samples(checker, property, counts, law, FALSE_FAILURE, of)

    checker.attempt(f"prompt {prompt}, {named(options)}, {samples} samples", attempt)
