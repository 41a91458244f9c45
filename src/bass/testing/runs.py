"""Properties of a whole engine: greedy decoding equals the truth, and the joint distribution of the
first tokens is the target's.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from hypothesis import reject

from bass.engine.requests import Request
from bass.records import SAMPLING_OPTIONS
from bass.sampling import RowSampling, Sampling
from bass.testing.engine import Setup, same_prompt
from bass.testing.proof import COSTLY, Proof
from bass.testing.statistics import FALSE_FAILURE, LawTest, count
from bass.testing.strategies import LONGEST, SIZES, Work, columns, many_requests, requests
from bass.testing.truth import NearTie, Reference, ended, greedy, joint_law
from bass.testing.worlds import LlamaWorld, TableWorld, World

CPU = torch.device("cpu")
NARROW, LARGE = 3, 24  # sizes of vocabularies
PROMPT = (0, 2)
# for narrow worlds: some defects show only in long rows
LONG_PROMPT = tuple(np.random.default_rng(0).integers(0, 3, 40).tolist())
MANY = 2  # batches of many requests
NEW = 2  # tokens whose distribution is tested
BEYOND = 2  # further generated tokens, so that drafts are longer than that
ROWS = 8192  # of a batch of samples
PER_EXAMPLE = 768  # samples
END = 1  # ends a sequence in rows with `min_new_tokens`

GREEDY = "at temperature 0, every request gets the target's greedy output, token for token."
LAW = "the first two tokens are distributed as the target's own."


@functools.cache
def wide() -> TableWorld:
    """A table that hashes its whole memory: one stale or missing token in a row's past changes all
    later ones.
    """
    return TableWorld()


@functools.cache
def narrow() -> TableWorld:
    """Three tokens: a wide vocabulary hides noise that is used twice."""
    return TableWorld(vocab=NARROW, order=2, seed=1, sharpness=1.2, likeness=0.5)


@functools.cache
def large() -> TableWorld:
    """24 tokens: with three, top-k and rounded probabilities change little. Each token depends on
    the one before, so the distributions of pairs show all that goes wrong after a token. The draft
    knows fewer tokens than the target.
    """
    return TableWorld(vocab=LARGE, order=1, sharpness=1.0, likeness=0.5, draft_vocab=LARGE - 2)


@functools.cache
def coin() -> TableWorld:
    """Two tokens, of probability 1/2 in the target and 0.1 and 0.9 in the draft, at every position:
    rejections are frequent, so noise of rejected tokens that is used again shows.
    """
    return TableWorld(vocab=2, order=1, seed=555, sharpness=1.2, likeness=0.0, entries=1)


@functools.cache
def unlike() -> TableWorld:
    """`coin` with three tokens, for drafters that know token ids up to 2: 0.50, 0.01 and 0.49 in
    the target, 0.83, 0.02 and 0.15 in the draft.
    """
    return TableWorld(vocab=NARROW, order=1, seed=1301, sharpness=2.0, likeness=0.0, entries=1)


@functools.cache
def llama(layers: int = 2, vocab: int = 13) -> LlamaWorld:
    """A tiny Llama, in the library's caches and backends."""
    return LlamaWorld(vocab=vocab, layers=layers)


@functools.cache
def sampled_llama(layers: int, vocab: int) -> LlamaWorld:
    """The same with flat distributions, and a draft unlike its target."""
    return LlamaWorld(vocab=vocab, layers=layers, seed=2, unlikeness=0.4, sharpness=0.3)


def greedy_world(target_layers: int) -> World:
    """A table, or a Llama for a drafter that runs the target's first layers."""
    return llama(target_layers + 1) if target_layers else wide()


def sampled_world(target_layers: int, vocab: int) -> World:
    """The same, for tests of distributions over `NARROW` or `LARGE` tokens."""
    if target_layers:
        return sampled_llama(target_layers + 1, vocab)
    return narrow() if vocab == NARROW else large()


def greedy_tokens(world: World, work: Work) -> list[list[int]]:
    """The expected tokens of each request. Each prompt's output is computed once."""
    whole = [greedy(world, r.prompt, len(r.prompt) + LONGEST) for r in work.requests]
    return [
        ended(tokens[:new], work.eos) for tokens, (_, new) in zip(whole, work.pairs, strict=True)
    ]


def prove_greedy(
    proof: Proof, setup: Setup, examples: int, law: str = GREEDY, sizes: tuple = SIZES
) -> None:
    """Test `GREEDY` on drawn requests with prompts of these sizes."""

    def attempt(work: Work) -> None:
        expected = greedy_tokens(setup.world, work)
        got = setup.but(batch=work.rows, eos=work.eos).outcome(work.requests).tokens
        proof.require(law, got == expected, expected, got)

    for_requests(proof, law, attempt, examples, setup.world.vocab, sizes)


def for_requests(
    proof: Proof,
    law: str,
    attempt: Callable[[Work], None],
    examples: int,
    vocab: int,
    sizes: tuple = SIZES,
) -> None:
    """Test drawn requests, and shrink a failing case; then test a few large batches."""

    def drawn(work: Work) -> None:
        try:
            attempt(work)
        except NearTie:  # rounding would decide
            reject()

    def many(work: Work) -> None:
        with contextlib.suppress(NearTie):
            attempt(work)

    proof.for_all(law, requests(vocab, sizes=sizes), drawn, examples, COSTLY)
    for i in range(MANY):
        work = many_requests(vocab, proof.seed * MANY + i, sizes=sizes)
        proof.attempt(law, work, lambda work=work: many(work))


def prove_law(
    proof: Proof,
    setup: Setup,
    options: Sampling | tuple[Sampling, ...],
    law: str = LAW,
    new: int = NEW,
    prompt: tuple = PROMPT,
    parts: Sequence[tuple[int, ...]] = (),
) -> None:
    """Test `LAW` on the first `new` tokens, at the false-failure rate `FALSE_FAILURE`.

    `options`: of all rows, or several that the rows have in turn, each with its share of the
    samples. `parts`: the indices of the tokens whose joint distribution is tested, several times;
    all by default. For a large vocabulary, where the samples do not fill the cells of all tokens.
    """
    kinds = (options,) if isinstance(options, Sampling) else options
    samples, vocab, parts = (
        PER_EXAMPLE * proof.examples,
        setup.world.vocab,
        parts or ((*range(new),),),
    )
    mixed = setup.but(warp=RowSampling(), batch=min(ROWS, samples))
    reported = f"prompt {list(prompt)}" if len(prompt) < 9 else f"a prompt of {len(prompt)} tokens"
    of_rows = named(kinds[0]) if len(kinds) == 1 else f"rows of {len(kinds)} sampling options"
    case = f"{vocab} tokens, {reported}, {of_rows}, {samples} samples of seed {proof.seed}"

    def attempt() -> None:
        requests = same_prompt(list(prompt), new + BEYOND, samples, proof.seed)
        tokens = mixed.outcome(with_options(requests, kinds)).tokens
        # an output that ended is filled with its last token, as in `Reference`
        first = np.array([(row + row[-1:] * new)[:new] for row in tokens])
        for turn, kind in enumerate(kinds):
            reference = Reference(kind, len(prompt), END if kind.min_new_tokens else None)
            expected = joint_law(setup.world, list(prompt), new, reference)
            for part in parts:
                rest = tuple(i for i in range(new) if i not in part)
                of = f"{named(kind)}: " if len(kinds) > 1 else ""
                of += f"tokens {[i + 1 for i in part]}: " if rest else ""
                counts = count(first[turn :: len(kinds)][:, part], vocab)
                share = FALSE_FAILURE / (len(parts) * len(kinds))
                follows(proof, law, counts, expected.sum(rest), share, of)

    proof.attempt(law, case, attempt)


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


def follows(
    proof: Proof,
    law: str,
    counts: np.ndarray,
    expected: np.ndarray,
    false_failure: float,
    of: str = "",
) -> None:
    """Check that the counts are samples of the distribution `expected`."""
    test = LawTest(expected, int(counts.sum()), false_failure)
    never = (counts > 0) & (expected == 0)
    distance = test.distance(counts)
    proof.require(
        law,
        distance <= test.threshold and not never.any(),
        f"{of}probabilities {cells(expected, expected, counts / test.n)}; total variation up to "
        f"{test.threshold:.4f}, which an exact one "
        f"exceeds with probability {false_failure:.0e}",
        (
            f"{of}frequencies {cells(counts / test.n, expected, counts / test.n)} of {test.n} "
            f"samples; total variation {distance:.4f}"
        ),
    )


def cells(law: np.ndarray, expected: np.ndarray, found: np.ndarray, most: int = 4) -> str:
    """The entries of a distribution at which two others differ most."""
    order = np.argsort(-np.abs(expected - found), axis=None)[:most]
    places = [tuple(int(i) for i in np.unravel_index(cell, law.shape)) for cell in order]
    return ", ".join(f"{' '.join(map(str, place))}: {law[place]:.3f}" for place in sorted(places))


def sampled(setup: Setup, work: Work, backwards: bool = False) -> list[list[int]]:
    """The tokens of each request by its own options; `backwards`: admitted in reverse order."""
    step = -1 if backwards else 1
    return (
        setup.but(batch=work.rows, eos=work.eos, warp=RowSampling())
        .outcome(work.requests[::step])
        .tokens[::step]
    )


def one_by_one(setup: Setup, work: Work) -> list[list[int]]:
    """The tokens of each request when it runs alone, with the same noise as in the batch."""
    single = setup.but(batch=1, eos=work.eos, warp=RowSampling())
    return [single.outcome([request]).tokens[0] for request in work.requests]
