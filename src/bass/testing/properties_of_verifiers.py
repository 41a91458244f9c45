"""The properties of every verifier: of a single verdict, and over the steps of a run.

A single verdict cannot show noise that is reused in a later step, or state that a verifier keeps
between steps; and it is not computed in the engine's precision.
"""

import copy
import functools
from typing import Any

import numpy as np
from jaxtyping import Int

from bass.api.resolve import make
from bass.drafters import Ngram
from bass.engine.step import check_verdict
from bass.interfaces import Verifier
from bass.policies import Fixed
from bass.sampling_params import Sampling
from bass.testing import engine
from bass.testing.checking import COSTLY, Checker
from bass.testing.doubles import ByRow, OwnPast
from bass.testing.engine import Setup
from bass.testing.enumeration import (
    CUTS,
    Arguments,
    Cuts,
    constant_in_boxes,
    looked_up,
    output_laws,
    verifier_input,
)
from bass.testing.inputs import MIXED, Batch, batches, single_problems
from bass.testing.small_models import tensors_of
from bass.testing.statistics import FALSE_FAILURE, count

# sizes of vocabularies and long drafts, by samples and by enumeration
LONG, LONG_BOXES = (((2, 4), (2, 5), (2, 6)), ((2, 4),))
GENERIC = ((4, 2), (2, 4), (24, 1))  # sizes of vocabularies, and the drafts' lengths
CALLS = 3  # with the same arguments
MOST_CELLS = 256  # of a distribution that samples are compared with
# in place of probabilities beyond a row's own length
GARBAGE = ((), (np.nan,), (np.inf, -1.0, 0.0))
SAMPLES = 16384  # of the noise, for each drawn problem
NEW = 5  # tokens whose joint distribution is tested: of up to five steps
COIN_NEW, COIN_LENGTH = 4, 2  # the same in `engine.COIN`, and the draft's length
CERTAIN_NEW = 3  # the same with deterministic drafts

TOKENS = "emitted tokens are of the vocabulary."
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
    "autoregressive decoding."
)
RUN_LAW = (
    "the first tokens of a run are distributed as the target's own: no noise is used in two "
    "steps, and nothing is kept from one step to the next."
)
RUN_MATES = (
    "a request's tokens depend neither on its batch mates nor on its place: a verifier keeps "
    "nothing of a row."
)


def check_verifier(
    verifier: Any, cuts: Cuts | None = None, examples: int = 40, seed: int = 0
) -> None:
    """Test that a verifier keeps its contract and that its output distribution is the target's.

    `verifier`: what `bass.load` takes. For drawn batches of draft and target distributions (zeros,
    one-hots, equal, disjoint; mixed lengths, also 0; deterministic drafts too): the same verdict
    for repeated calls, the shapes of the verdict, 0 <= accepted <= length, the emitted prefix, and
    independence from other rows and from values beyond a row's length (also NaN and infinity).
    A verifier with `lossless = False` is tested for these, and for independence of other rows in
    the engine. Else its output distribution is tested:

    * with `cuts`, a function from a problem and drafted tokens to the uniforms at which verdicts
      change (as in `bass.testing.enumeration.CUTS`, where the registered verifiers have theirs), by
      exact enumeration within 1e-12, with drafts of up to 4 tokens; without chance;
    * without it, by 16384 samples of each drawn problem, with drafts of up to 6 tokens and
      vocabularies of up to 24. The false-failure rate is 1e-6 for all of them together;
    * in the engine, over several steps, in the precision of a run: greedy decoding equals the
      recomputed reference, and the joint distribution of the first tokens is the target's, with
      sampled drafts, with a draft unlike the target, and with deterministic drafts in rows of
      different options; each at a false-failure rate of 1e-6;
    * for a verifier with `coupled = True`, which makes its own noise, only in the engine: the
      tokens of autoregressive decoding for any draft, and the same joint distributions over seeds.

    docs/correctness.md has the biases that these tests detect. `seed`: of cases and samples.

    Raises `ExactnessError`; `OptionError` for an object that is no verifier.
    """
    made: Verifier = make("verifier", verifier)
    checker = Checker(type(made).__name__, examples, seed)
    by_cuts = made.lossless and not made.coupled
    for deterministic in (False, True):
        drawn = batches(deterministic)
        checker.for_all(drawn, lambda batch: contract(checker, made, batch), most=COSTLY)
        if by_cuts:
            known = CUTS.get(type(made)) if cuts is None else cuts
            require_output_law(checker, made, known, deterministic)
    setup = Setup(engine.WHOLE_MEMORY, engine.CPU, policy=ByRow(), verifier=made)
    if made.coupled and made.lossless:
        ways: engine.Ways = {
            f"with {policy}": lambda s, r, p=policy: s.but(policy=p).tokens(r)
            for policy in (OwnPast(), ByRow(), Fixed(3))
        }
        engine.require_same(checker, setup.but(policy=Fixed(0)), examples // 4, SEED, ways)
    if made.lossless:
        engine.require_greedy(checker, setup, examples // 4)
        # drafts without distributions
        engine.require_greedy(checker, setup.but(drafter=Ngram()), examples // 8)
    # lengths that depend only on the row's own past
    own = setup.but(policy=OwnPast())
    engine.require_same(checker, own, examples // 4, RUN_MATES, engine.REVERSED)
    if made.lossless:
        require_run_law(checker, setup)


def sample(batch: Batch, each: int, **options: Any) -> Arguments:
    """`each` samples of every problem: drafts drawn by the draft stream's uniforms, as a drafter
    draws them. `options`: of `verifier_input`.
    """
    random, tokens, uniforms = np.random.default_rng(batch.seed), [], []
    for problem in batch.problems:
        noise = random.uniform(size=(each, problem.length + 1, 4))
        drafted = np.zeros((each, problem.length), dtype=np.int64)
        if problem.path is not None:
            drafted[:] = problem.path
        for slot in range(problem.length if problem.path is None else 0):
            probs = looked_up(problem.draft, drafted[:, :slot], problem.vocab)
            drafted[:, slot] = drawn(probs, noise[:, slot, 0])
        tokens.append(drafted)
        uniforms.append(noise)
    return verifier_input(batch.problems, tokens, uniforms, batch.k, **options)


def drawn(probs: np.ndarray, uniforms: np.ndarray) -> Int[np.ndarray, " rows"]:
    """The token at which the running sum of each row exceeds its uniform."""
    running = probs.cumsum(1)
    return (running <= uniforms[:, None] * running[:, -1:]).sum(1)


def contract(checker: Checker, verifier: Verifier, batch: Batch) -> None:
    """Check all properties but that of the output distribution."""

    def emitted(**options: Any) -> list[list[int]]:
        return judged(checker, verifier, sample(batch, 8, **options))[0].tolist()

    first = emitted()
    for _ in range(CALLS - 1):
        checker.equal(SAME, emitted(), first, "again")
    for garbage in GARBAGE:
        how = f"with {list(garbage) or 'other distributions'} beyond"
        checker.equal(BEYOND, emitted(junk=1, garbage=garbage), first, how)
    rows = range(len(first))
    for order in (slice(None, None, -1), slice(None, None, 2), slice(-1, None)):
        how = f"from rows {[*rows[order]]} by themselves"
        checker.equal(MATES, emitted(order=order), first[order], how)


def judged(checker: Checker, verifier: Verifier, given: Arguments) -> tuple[np.ndarray, np.ndarray]:
    """The emitted tokens of each row, then -1, and its accepted count, from a checked verdict."""
    draft, target_probs, _ = before = copy.deepcopy(given)
    verdict = verifier(*given)
    pairs = zip(tensors_of(before), tensors_of(given), strict=True)
    same = verifier.writes_inputs or all(np.array_equal(*pair, equal_nan=True) for pair in pairs)
    checker.require(LEAVES, same, "what was given, as before", "other values in it")
    check_verdict(verifier, verdict, target_probs)
    tokens, accepted = verdict.tokens.numpy(), verdict.accepted.numpy()
    slots, count, vocab = np.arange(tokens.shape[1]), accepted[:, None], target_probs.shape[2]
    lengths, drafted = draft.lengths.numpy(), np.pad(draft.tokens.numpy(), ((0, 0), (0, 1)))
    for property, holds in (
        (COUNTS, (count >= 0) & (count <= lengths[:, None])),
        (TOKENS, (tokens >= 0) & (tokens < vocab) | (slots > count)),
        (PREFIX, (tokens == drafted) | (slots >= count)),
    ):
        row = int((~holds.all(1)).argmax())
        expected = f"this for the draft {drafted[row, : lengths[row]].tolist()}"
        found = f"{accepted[row]} accepted, tokens {tokens[row].tolist()}"
        checker.require(property, bool(holds.all()), expected, found)
    return np.where(slots <= count, tokens, -1), accepted


def require_output_law(
    checker: Checker, verifier: Verifier, cuts: Cuts | None, deterministic: bool
) -> None:
    """Check the output on drawn batches, long drafts and, by samples, wide vocabularies."""
    every = checker.examples
    sizes, few = (LONG, every // 2) if cuts is None else (LONG_BOXES, every // 5)
    kinds = [(batches(deterministic), every), (single_problems(deterministic, sizes), few)]
    if cuts is None:
        law = functools.partial(require_law_of_samples, checker, verifier)
        kinds.append((single_problems(deterministic, GENERIC, generic=True), every))
    else:
        law = functools.partial(require_law_of_boxes, checker, verifier, cuts)
    for cases, some in kinds:
        checker.for_all(cases, law, some, COSTLY)


def require_law_of_samples(checker: Checker, verifier: Verifier, batch: Batch) -> None:
    """Check the output distribution by samples.

    Each test gets a share of the false-failure rate: there are two kinds of drafts, and a batch
    makes up to three assertions, a batch of long drafts one (for half as many), a generic one one.
    With a large vocabulary, only the first token is tested.
    """
    share = FALSE_FAILURE / (9 * checker.examples)
    given = sample(batch._replace(seed=batch.seed + checker.seed), SAMPLES)
    tokens, accepted = judged(checker, verifier, given)
    for i, problem in enumerate(batch.problems):
        here = slice(i * SAMPLES, (i + 1) * SAMPLES)
        random = np.random.default_rng(2000 + i + checker.seed)
        whole = tokens[here, : problem.length + 1].copy()
        for slot in range(1, problem.length + 1):  # what follows the emitted tokens: the target's
            probs = looked_up(problem.target, whole[:, :slot], problem.vocab)
            own = drawn(probs, random.uniform(size=SAMPLES))
            whole[:, slot] = np.where(slot > accepted[here], own, whole[:, slot])
        counts, law = count(whole, problem.vocab), problem.target_law()
        if law.size > MOST_CELLS:
            rest = tuple(range(1, law.ndim))
            counts, law = counts.sum(rest), law.sum(rest)
        engine.require_samples(checker, LAW, counts, law, share, f"row {i}: ")


def require_law_of_boxes(checker: Checker, verifier: Verifier, cuts: Cuts, batch: Batch) -> None:
    """Check the output distribution by enumeration."""
    problems, k = batch.problems, batch.k
    same = constant_in_boxes(verifier, problems, k, cuts=cuts)
    found = "two verdicts in one: a breakpoint is missing"
    checker.require(BOXES, same, "one verdict in each box", found)
    laws = output_laws(verifier, problems, k, cuts=cuts)
    for i, (problem, law) in enumerate(zip(problems, laws, strict=True)):
        engine.require_equal(checker, LAW, law, problem.target_law(), f"row {i}: ")


def require_run_law(checker: Checker, setup: Setup) -> None:
    """Check `RUN_LAW` on two small models, and with deterministic drafts in rows of different
    sampling options, with 768 samples per example, at a false-failure rate of `FALSE_FAILURE` in
    each.
    """
    narrow, coin = (setup.but(model=model) for model in (engine.NARROW_TABLE, engine.COIN))
    engine.require_law(checker, narrow.but(policy=ByRow(3)), Sampling(), RUN_LAW, NEW)
    engine.require_law(checker, coin.but(policy=Fixed(COIN_LENGTH)), Sampling(), RUN_LAW, COIN_NEW)
    certain = narrow.but(policy=ByRow(3), drafter=Ngram())
    engine.require_law(checker, certain, MIXED, RUN_LAW, CERTAIN_NEW)
