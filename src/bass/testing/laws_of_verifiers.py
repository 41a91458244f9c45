"""The properties of every lossless verifier."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from bass.api.resolve import make
from bass.errors import OptionError
from bass.interfaces import Verifier
from bass.policies import Fixed
from bass.records import Draft, Verdict
from bass.testing import runs
from bass.testing.engine import Setup
from bass.testing.enumeration import CUTS, Cuts, judge, middle, output_laws
from bass.testing.laws_of_verified_runs import prove_run_law, prove_runs
from bass.testing.policies import ByRow, OwnPast
from bass.testing.proof import COSTLY, Proof, shown
from bass.testing.statistics import FALSE_FAILURE, count
from bass.testing.strategies import Work, batches, generic_batches, long_batches
from bass.testing.verdicts import Batch, Sampled, continued, sample

# longest drafts over a vocabulary of two tokens, by samples and by enumeration
LONG, LONG_BOXES = 6, 4
CALLS = 3  # with the same arguments
MOST_CELLS = 256  # of a distribution that samples are compared with
# in place of probabilities beyond a row's own length
GARBAGE = ((), (np.nan,), (np.inf, -1.0, 0.0))
SAMPLES = 16384  # of the noise, for each drawn problem
TOLERANCE = 1e-12  # float64 sums of up to some 10^4 terms

SHAPES = (
    "a verdict has integer tokens [batch, k + 1] of the vocabulary and integer accepted counts "
    "[batch]."
)
COUNTS = "0 <= accepted <= length in every row: what stands beyond a row's own length is no draft."
PREFIX = "what a row emits begins with the accepted tokens of its draft."
SAME = "the same arguments give the same verdict."
BEYOND = (
    "what lies beyond a row's own length (tokens, probabilities, finite or not, noise) changes "
    "nothing."
)
MATES = "a row's verdict depends on nothing of the other rows."
LEAVES = "a verifier does not write to what it is given."
LAW = (
    "the emitted tokens, continued by the target, are distributed as the target's own, at every "
    "length."
)
BOXES = "between the breakpoints that `cuts` gives, the noise does not change the verdict."
SEED = (
    "a seed fixes the output: with every draft, the tokens of a coupled verifier are those of "
    "plain decoding."
)


def check_verifier(
    verifier: Any, cuts: Cuts | None = None, examples: int = 40, seed: int = 0
) -> None:
    """Test that a verifier keeps its contract and that its output distribution is the target's.

    `verifier`: what `bass.load` takes. For drawn batches of draft and target distributions (zeros,
    one-hots, equal, disjoint; mixed lengths, also 0; deterministic drafts too): the same verdict
    for repeated calls, the shapes of the verdict, 0 <= accepted <= length, the emitted prefix, and
    independence from other rows and from values beyond a row's length (also NaN and infinity).
    Then its output distribution:

    * with `cuts`, a function from a problem and drafted tokens to the uniforms at which verdicts
      change (as in `bass.testing.enumeration.CUTS`, where the registered verifiers have theirs), by
      exact enumeration within 1e-12, with drafts of up to 4 tokens; without chance;
    * without it, by 16384 samples of each drawn problem, with drafts of up to 6 tokens and
      vocabularies of up to 24. The false-failure rate is 1e-6 for all of them together; it detects
      a bias of about 0.06 in total variation in one problem, or 0.09 in one of 6 tokens;
    * in the engine, over several steps, in the precision of a run: greedy decoding equals the
      recomputed truth, a request's tokens do not depend on its place, and the joint distribution
      of the first tokens is the target's: of five with a vocabulary of 3, and of four with a
      vocabulary of 2 and a draft unlike the target, where a step that reuses the noise of rejected
      tokens shows most; and of three with deterministic drafts in rows of five settings, with
      every sampling option. Each uses 768 samples per example and has a false-failure rate of
      1e-6; the default of 40 examples detects a bias in total variation of 0.057, of 0.037 and of
      0.078 in a row of one setting;
    * for a verifier with `coupled = True`, which makes its own noise, only in the engine: the
      tokens of autoregressive decoding for any draft, and the same joint distributions, over 768
      seeds per example.

    `seed`: of cases and samples.

    Raises `ExactnessError`; `OptionError` for an object that is no verifier or has `lossless =
    False`.
    """
    made = provable(verifier, cuts)
    proof = Proof(type(made).__name__, examples, seed)
    for deterministic in (False, True):
        drawn = batches(deterministic).map(lambda parts: Batch(*parts))
        proof.for_all(
            SHAPES,
            st.tuples(drawn, st.integers(0, 9)).map(lambda p: replace(p[0], seed=p[1])),
            lambda b: contract(proof, made, b),
            most=COSTLY,
        )
        if not made.coupled:
            known = CUTS.get(type(made)) if cuts is None else cuts
            prove_output_law(proof, made, known, deterministic)
    if made.coupled:
        prove_coupled(proof, made)
    else:
        prove_runs(proof, made)


def provable(verifier: Any, cuts: Cuts | None) -> Verifier:
    """The named verifier.

    Raises `OptionError` for one that is not lossless, and for `cuts` of a coupled one.
    """
    made = make("verifier", verifier)
    name = type(made).__name__
    if not made.lossless:
        raise OptionError(
            f"`{name}` has `lossless = False`, so its output distribution cannot be tested: give "
            "a lossless verifier."
        )
    if made.coupled and cuts is not None:
        raise OptionError(
            f"`{name}` is coupled and makes its own noise, which `cuts` does not describe: leave "
            "it out."
        )
    return made


def contract(proof: Proof, verifier: Verifier, batch: Batch) -> None:
    """Test all properties but that of the output distribution."""
    each = 8
    sampled = sample(batch, each, junk=0)
    verdict = judged(proof, verifier, sampled)
    rows = np.arange(len(sampled.lengths))
    tokens, accepted = verdict
    emitted = np.arange(batch.k + 1) <= accepted[:, None]
    for _ in range(CALLS - 1):
        other_tokens, other_accepted = judged(proof, verifier, sampled)
        same = np.array_equal(accepted, other_accepted) and np.array_equal(
            tokens * emitted, other_tokens * emitted
        )
        proof.require(
            SAME, same, emissions(tokens, accepted), emissions(other_tokens, other_accepted)
        )
    for garbage in GARBAGE:
        other_tokens, other_accepted = judged(
            proof, verifier, sample(batch, each, junk=1, garbage=garbage)
        )
        same = np.array_equal(accepted, other_accepted) and np.array_equal(
            tokens * emitted, other_tokens * emitted
        )
        expected = (
            f"{emissions(tokens, accepted)} with {list(garbage) or 'other distributions'} beyond"
        )
        proof.require(BEYOND, same, expected, emissions(other_tokens, other_accepted))
    for order in (rows[::-1], rows[::2], rows[-1:]):
        moved_tokens, moved_accepted = judged(proof, verifier, sampled, order)
        same = np.array_equal(accepted[order], moved_accepted) and np.array_equal(
            (tokens * emitted)[order], moved_tokens * emitted[order]
        )
        expected = (
            f"{emissions(tokens[order], accepted[order])} from rows {order.tolist()} by themselves"
        )
        proof.require(MATES, same, expected, emissions(moved_tokens, moved_accepted))


def judged(
    proof: Proof, verifier: Verifier, sampled: Sampled, order: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The verdict's tokens and accepted counts, after the checks of a single verdict."""
    draft, target_probs, noise = sampled.given(order)
    verdict = verifier(draft, target_probs, noise)
    before, probs_before, noise_before = sampled.given(order)
    untouched = (*vars(before).values(), probs_before, *vars(noise_before).values())
    now = (*vars(draft).values(), target_probs, *vars(noise).values())
    kept = all(
        ours is None or np.array_equal(ours, theirs, equal_nan=True)
        for ours, theirs in zip(untouched, now, strict=True)
    )
    proof.require(LEAVES, kept, "what was given, as before", "other values in it")
    tokens, accepted = arrays_of(proof, verdict, tuple(target_probs.shape[:2]))
    require_emissions(proof, tokens, accepted, before, target_probs.shape[2])
    return tokens, accepted


def arrays_of(
    proof: Proof, verdict: Verdict, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """The verdict's tokens and accepted counts, integers for a window of this shape."""
    rows, window = shape
    expected = f"integers of shapes [{rows}, {window}] and [{rows}]"
    tokens, accepted = verdict.tokens, verdict.accepted
    whole = all(
        isinstance(t, torch.Tensor) and not t.is_floating_point() and t.dtype != torch.bool
        for t in (tokens, accepted)
    )
    proof.require(SHAPES, whole, expected, f"{tokens} and {accepted}")
    fits = tuple(tokens.shape) == (rows, window) and tuple(accepted.shape) == (rows,)
    proof.require(SHAPES, fits, expected, f"shapes {list(tokens.shape)} and {list(accepted.shape)}")
    return tokens.numpy(), accepted.numpy()


def require_emissions(
    proof: Proof, tokens: np.ndarray, accepted: np.ndarray, draft: Draft, vocab: int
) -> None:
    """Check counts against lengths, tokens against the vocabulary, and that accepted ones come
    first.
    """
    rows, window = tokens.shape
    lengths = draft.lengths.numpy()
    good = (accepted >= 0) & (accepted <= lengths)
    row = int((~good).argmax())
    proof.require(
        COUNTS,
        bool(good.all()),
        f"0 to {lengths[row]} accepted in a row of length {lengths[row]}",
        int(accepted[row]),
    )
    emitted = np.arange(window) <= accepted[:, None]
    inside = ((tokens >= 0) & (tokens < vocab) | ~emitted).all(1)
    row = int((~inside).argmax())
    proof.require(
        SHAPES,
        bool(inside.all()),
        f"tokens from 0 to {vocab - 1}",
        tokens[row, : accepted[row] + 1],
    )
    drafts = np.concatenate((draft.tokens.numpy(), np.zeros((rows, 1), dtype=np.int64)), 1)
    begins = ((tokens == drafts) | (np.arange(window) >= accepted[:, None])).all(1)
    row = int((~begins).argmax())
    proof.require(
        PREFIX,
        bool(begins.all()),
        f"{drafts[row, : accepted[row]].tolist()} first",
        tokens[row, : accepted[row] + 1],
    )


def emissions(tokens: np.ndarray, accepted: np.ndarray) -> str:
    """The emitted tokens of each row, as text."""
    return shown(
        [row[: count + 1] for row, count in zip(tokens.tolist(), accepted.tolist(), strict=True)]
    )


def prove_output_law(
    proof: Proof, verifier: Verifier, cuts: Cuts | None, deterministic: bool
) -> None:
    """Test the output distribution on drawn batches, on long drafts, and, by samples, on wide
    vocabularies.
    """

    def law(batch: Batch) -> None:
        if cuts is None:
            law_of_samples(proof, verifier, batch)
        else:
            law_of_boxes(proof, verifier, cuts, batch)

    every = proof.examples
    longest, few = (LONG, every // 2) if cuts is None else (LONG_BOXES, every // 5)
    kinds = [(batches(deterministic), every), (long_batches(deterministic, longest), few)]
    if cuts is None:
        kinds.append((generic_batches(deterministic), every))
    for drawn, some in kinds:
        proof.for_all(LAW, drawn.map(lambda parts: Batch(*parts)), law, some, COSTLY)


def law_of_samples(proof: Proof, verifier: Verifier, batch: Batch) -> None:
    """Test the output distribution by samples.

    Each test gets a share of the false-failure rate: there are two kinds of drafts, and a batch
    makes up to three assertions, a batch of long drafts one (for half as many), a generic one one.
    With a large vocabulary, only the first token is tested.
    """
    share = FALSE_FAILURE / (9 * proof.examples)
    tokens, accepted = judged(
        proof, verifier, sample(replace(batch, seed=batch.seed + proof.seed), SAMPLES, junk=0)
    )
    for i, problem in enumerate(batch.problems):
        here = slice(i * SAMPLES, (i + 1) * SAMPLES)
        counts = count(
            continued(problem, tokens[here], accepted[here], i + proof.seed), problem.vocab
        )
        law, rest = problem.target_law(), tuple(range(1, problem.length + 1))
        if law.size > MOST_CELLS:
            counts, law = counts.sum(rest), law.sum(rest)
        runs.follows(proof, LAW, counts, law, share, f"row {i}: ")


def law_of_boxes(proof: Proof, verifier: Verifier, cuts: Cuts, batch: Batch) -> None:
    """Test the output distribution by enumeration."""
    problems, k = batch.problems, batch.k
    random = np.random.default_rng(0)
    _, verdict = judge(verifier, problems, k, middle, runs.CPU, cuts)

    def emitted(v: Verdict) -> torch.Tensor:
        return torch.where(torch.arange(k + 1) <= verdict.accepted[:, None], v.tokens, -1)

    for place in (
        lambda shape: random.uniform(0.01, 0.99, shape),
        lambda shape: random.choice([1e-6, 1 - 1e-6], shape),
    ):
        _, other = judge(
            verifier,
            problems,
            k,
            lambda r, place=place: r.low + (r.high - r.low) * place(r.low.shape),
            runs.CPU,
            cuts,
        )
        same = torch.equal(verdict.accepted, other.accepted) and torch.equal(
            emitted(verdict), emitted(other)
        )
        proof.require(
            BOXES, same, "one verdict in each box", "two verdicts in one: a breakpoint is missing"
        )
    for i, (problem, law) in enumerate(
        zip(problems, output_laws(verifier, problems, k, runs.CPU, cuts), strict=True)
    ):
        expected = problem.target_law()
        near = bool(np.abs(law - expected).max() <= TOLERANCE)
        text = (
            f"row {i}: probabilities {runs.cells(shape, expected, law)}"
            for shape in (expected, law)
        )
        proof.require(LAW, near, *text)


def prove_coupled(proof: Proof, verifier: Verifier) -> None:
    """Test for the tokens of autoregressive decoding, and the distribution over seeds."""
    setup = Setup(runs.wide(), runs.CPU, policy=Fixed(0), verifier=verifier)

    def attempt(work: Work) -> None:
        plain = runs.sampled(setup, work)
        for policy in (OwnPast(), ByRow(), Fixed(3)):
            got = runs.sampled(setup.but(policy=policy), work)
            proof.require(SEED, got == plain, f"{plain} as without drafts", f"{got} with {policy}")

    runs.for_requests(proof, SEED, attempt, proof.examples // 4, setup.world.vocab)
    runs.prove_greedy(proof, setup.but(policy=ByRow()), proof.examples // 4)
    prove_run_law(proof, setup)
