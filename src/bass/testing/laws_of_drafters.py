"""The properties of every drafter."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, is_dataclass
from typing import Any, final

import torch
from jaxtyping import Int
from torch import Tensor

from bass.api.resolve import make
from bass.drafters.validity import features_of, layers_of
from bass.interfaces import Drafter, DraftMethod, ForwardingRowStore, RowStore, StopRule
from bass.policies import Fixed
from bass.records import Draft, Features, Noise, RowAssignment, Sequences, Window
from bass.sampling import Sampling
from bass.testing import runs
from bass.testing.drafters import Unsure
from bass.testing.engine import By, Setup
from bass.testing.policies import ByRow, Mostly, OwnPast
from bass.testing.proof import Proof
from bass.testing.strategies import MIXED, Work
from bass.verifiers.block import Block

LENGTHS = (
    "a row's draft is no longer than the requested length, and a row with requested length 0 has "
    "no draft."
)
SHAPES = (
    "`propose` returns tokens [batch, columns], with a column for each drafted token and k at "
    "most, and their probabilities or None."
)
TOKENS = "drafted tokens are of the vocabulary."
PROBS = (
    "what is reported for a drafted token is a distribution over the vocabulary, in which that "
    "token has a positive probability."
)
LEAVES = "`propose` does not write to the sequences, the lengths or the noise."
LATER = "no other method writes to the sequences that `propose` received."
DRAFT = "`propose` returns a `Draft`."
MATES = (
    "a request's tokens depend neither on its batch mates, whose sampling options are others, nor "
    "on its place: new prompts in a row find nothing of the old ones."
)
AGAIN = (
    "the same requests with the same noise give the same tokens: a batch-wide drafter keeps "
    "nothing from one run to the next."
)
LAW = (
    "the first four tokens are distributed as the target's own: "
    "the reported distribution is the one that was drawn from, with noise used for nothing else."
)
LAW_OF_OPTIONS = (
    "the first four tokens of each row are distributed as the target's own with the row's sampling "
    "options: a distribution follows from the row's options and from the tokens before it."
)
LAW_BY_BLOCK = (
    "the first four tokens are distributed as the target's own with block verification, too: no "
    "step draws with the noise of tokens that were rejected before."
)
WITH_A_RULE = "with a stop rule, too, "
GREEDY_WITH_A_RULE, MATES_WITH_A_RULE = WITH_A_RULE + runs.GREEDY, WITH_A_RULE + MATES
LAW_WITH_A_RULE = (
    f"{WITH_A_RULE}the first four tokens are distributed as the target's own: a draft ends after "
    "the token at which the rule fires, whichever that token is."
)
NORMALISED = 1e-3  # tolerance for a sum of probabilities, because of rounding
NEW = 4  # tokens whose joint distribution is tested: one of each slot of the first draft
# of these tokens, with a large vocabulary: the first, and each with the one before
PAIRS = ((0,), (0, 1), (1, 2), (2, 3))
OPTIONS = (
    (Sampling(), runs.LONG_PROMPT),
    (Sampling(temperature=0.7, top_p=0.8), runs.PROMPT),
)
RULE = Unsure()
BLOCK_LENGTH = 3  # of drafts in `runs.unlike`


def check_drafter(drafter: Any, examples: int = 40, seed: int = 0) -> None:
    """Test that a drafter keeps its contract, and that the output is exact with it.

    `drafter`: as in `bass.load`, a `DraftMethod`, or a `Drafter` that needs no model. In a real
    engine, with lengths that vary by row and step and include 0, each call of `propose` must return
    a `Draft` with valid lengths, shapes and tokens, and with distributions that are finite, not
    negative, sum to 1 and give each drafted token a positive probability. Greedy decoding equals
    the recomputed truth on a table that hashes its whole memory and on a tiny Llama (only on
    Llamas, if the method runs the target's first layers). With sampling, where the rows of a batch
    have different options, a request's tokens are the same alone, in any row, and in a row that
    held another prompt before; for a batch-wide drafter (`batch_invariant = False`), only for the
    same requests in another run.

    With a vocabulary of 3, the joint distribution of the first four tokens is the target's: after a
    long prompt; at temperature 0.7 with top-p 0.8; in rows of five settings, with every sampling
    option, a greedy row and an end token; with block verification, where noise that is used in two
    steps shows. With a vocabulary of 24, where top-k or rounding change what is drawn or reported,
    and a draft model that knows only 22 of them, so are the distributions of the first token and of
    each of the next three together with the one before. A method with `obeys_stop_rules` is tested
    with a rule, too: greedy decoding, independence of other rows, and the first four of 3 tokens.

    Most rows have drafts of four tokens, which detects a drafter that reports another distribution
    than it drew from, even if only for its last tokens. The tests of distributions, at most six,
    use 768 samples per example and have a false-failure rate of 1e-6 each. With the default of 40
    examples they detect a bias in total variation of 0.045 with 3 tokens, of 0.088 in a row of one
    of the five settings, and with 24 tokens of 0.039 in the first and 0.089 in a pair. `seed`: of
    cases and samples.

    Raises `ExactnessError`; `OptionError` if `drafter` is no drafter.
    """
    made: DraftMethod = make("drafter", drafter)
    proof = Proof(type(made).__name__, examples, seed)
    layers = max(layers_of(made), max(features_of(made), default=-1) + 1)

    def by(rule: StopRule | None) -> By:
        return By(made, rule, lambda drafter, vocab: Watched(drafter, proof, vocab))

    setup = Setup(runs.greedy_world(layers), runs.CPU, policy=ByRow(4), drafter=by(None))
    ruled = setup.but(drafter=by(RULE))
    runs.prove_greedy(proof, setup, examples // 2)
    if not layers:
        runs.prove_greedy(proof, setup.but(world=runs.llama()), examples // 6)
    same = prove_mates if made.batch_invariant else prove_again
    same(proof, setup, examples // 4)
    prove_laws(proof, setup, layers)
    if made.obeys_stop_rules:
        runs.prove_greedy(proof, ruled, examples // 8, GREEDY_WITH_A_RULE)
        same(proof, ruled, examples // 8, WITH_A_RULE)
        narrow = ruled.but(world=runs.sampled_world(layers, runs.NARROW), policy=Mostly())
        runs.prove_law(proof, narrow, Sampling(), LAW_WITH_A_RULE, NEW)


def prove_mates(proof: Proof, setup: Setup, examples: int, case: str = "") -> None:
    """Test `MATES`."""
    law, sampling = case + MATES, setup.but(policy=OwnPast())

    def attempt(work: Work) -> None:
        together = runs.sampled(sampling, work)
        backwards = runs.sampled(sampling, work, backwards=True)
        proof.require(law, backwards == together, f"{together} in the other order too", backwards)
        single = runs.one_by_one(sampling, work)
        proof.require(law, single == together, f"{together} when each is alone too", single)

    runs.for_requests(proof, law, attempt, examples, setup.world.vocab)


def prove_again(proof: Proof, setup: Setup, examples: int, case: str = "") -> None:
    """Test `AGAIN`."""
    law, sampling = case + AGAIN, setup.but(policy=OwnPast())

    def attempt(work: Work) -> None:
        first, second = (runs.sampled(sampling, work) for _ in range(2))
        proof.require(law, first == second, f"{first} again", second)

    runs.for_requests(proof, law, attempt, examples, setup.world.vocab)


def prove_laws(proof: Proof, setup: Setup, layers: int) -> None:
    """Test the distributions of the first tokens without a stop rule."""
    narrow, large = (
        setup.but(world=runs.sampled_world(layers, vocab), policy=Mostly())
        for vocab in (runs.NARROW, runs.LARGE)
    )
    block = narrow.but(
        world=narrow.world if layers else runs.unlike(),
        policy=Fixed(BLOCK_LENGTH),
        verifier=Block(),
    )
    runs.prove_law(proof, large, Sampling(), LAW, NEW, parts=PAIRS)
    for options, prompt in OPTIONS:
        runs.prove_law(proof, narrow, options, LAW, NEW, prompt)
    runs.prove_law(proof, narrow, MIXED, LAW_OF_OPTIONS, NEW)
    runs.prove_law(proof, block, Sampling(), LAW_BY_BLOCK, NEW)


@final
@dataclass(frozen=True)
class Watched(ForwardingRowStore, Drafter):
    """Checks the proposals of `drafter`, and that it does not write to the rows of the run."""

    drafter: Drafter
    proof: Proof
    vocab: int
    received: list[Sequences] = field(default_factory=list)  # by the last `propose`

    @property
    def store(self) -> RowStore:
        return self.drafter

    @property
    def observes(self) -> bool:
        return self.drafter.observes

    def observe(
        self, window: Window, features: Features, accepted: Int[Tensor, " batch"] | None
    ) -> None:
        with self.rows_unchanged():
            self.drafter.observe(window, features, accepted)

    def reserve(self, assignment: RowAssignment) -> None:
        with self.rows_unchanged():
            self.drafter.reserve(assignment)

    def fill(self, window: Window) -> Features:
        with self.rows_unchanged():
            return self.drafter.fill(window)

    def copy_rows(self, assignment: RowAssignment) -> None:
        with self.rows_unchanged():
            self.drafter.copy_rows(assignment)

    def propose(
        self, sequences: Sequences, lengths: Int[Tensor, " batch"], k: int, noise: Noise, span: int
    ) -> Draft:
        requested = lengths.clone()
        self.received[:] = [sequences]
        with self.unchanged(LEAVES, sequences, lengths, noise):
            draft = self.drafter.propose(sequences, lengths, k, noise, span)
        law = self.proof.law
        self.look(draft, requested, k)
        self.proof.law = law
        return draft

    def rows_unchanged(self) -> AbstractContextManager[None]:
        """Check that what runs within does not write to the rows of the last `propose`."""
        return self.unchanged(LATER, *self.received)

    @contextmanager
    def unchanged(self, law: str, *given: Any) -> Iterator[None]:
        """Check that what runs within writes to none of these tensors and records of tensors."""
        parts = [vars(one).values() if is_dataclass(one) else (one,) for one in given]
        tensors = [tensor for part in parts for tensor in part]
        before, kept = [tensor.clone() for tensor in tensors], self.proof.law
        yield
        same = all(map(torch.equal, before, tensors))
        self.proof.require(law, same, "what was given, as before", "other values in it")
        self.proof.law = kept

    def look(self, draft: Draft, requested: Tensor, k: int) -> None:
        """Check all properties of a proposal."""
        require = self.proof.require
        require(DRAFT, isinstance(draft, Draft), "a Draft", type(draft).__name__)
        batch, ours = len(requested), draft.lengths
        whole = (
            isinstance(ours, Tensor)
            and not ours.is_floating_point()
            and ours.shape == requested.shape
        )
        require(SHAPES, whole, f"integer lengths of shape [{batch}]", ours)
        ours = ours.to(torch.int64)
        require(
            LENGTHS,
            bool(((ours >= 0) & (ours <= requested)).all()),
            f"at most {requested.tolist()[:16]}",
            ours[:16],
        )
        tokens, probs = draft.tokens, draft.probs
        integers = isinstance(tokens, Tensor) and not tokens.is_floating_point()
        require(
            SHAPES,
            integers,
            f"integer tokens of shape [{batch}, columns]",
            getattr(tokens, "dtype", type(tokens).__name__),
        )
        shape, longest = list(tokens.shape), int(ours.max())
        fits = tokens.ndim == 2 and shape[0] == batch and longest <= shape[1] <= k
        require(
            SHAPES,
            fits,
            f"integer tokens of shape [{batch}, {longest} to {k}]",
            f"{tokens.dtype} of shape {shape}",
        )
        counts = torch.arange(shape[1], device=ours.device) < ours[:, None]
        drafted = tokens[counts].to(torch.int64)
        require(
            TOKENS,
            bool(((drafted >= 0) & (drafted < self.vocab)).all()),
            f"tokens from 0 to {self.vocab - 1}",
            drafted[:16],
        )
        if probs is not None and longest:
            self.look_at_probs(probs, counts, drafted)

    def look_at_probs(self, probs: Tensor, counts: Tensor, drafted: Tensor) -> None:
        """Check the distributions of drafted tokens; values beyond a row's length are ignored."""
        require, wanted = self.proof.require, [*counts.shape, self.vocab]
        floats = isinstance(probs, Tensor) and probs.is_floating_point()
        require(
            SHAPES,
            floats,
            f"probabilities of shape {wanted}",
            getattr(probs, "dtype", type(probs).__name__),
        )
        require(
            SHAPES,
            list(probs.shape) == wanted,
            f"probabilities of shape {wanted}",
            f"shape {list(probs.shape)}",
        )
        of, drawn = probs[counts], drafted[:, None]
        for fair, expected in (
            (of.isfinite().all(1), "finite probabilities"),
            ((of >= 0).all(1), "probabilities of 0 or more"),
            (
                (of.double().sum(1) - 1).abs() <= NORMALISED,
                f"probabilities of sum 1, within {NORMALISED}",
            ),
        ):
            first = int((~fair).int().argmax())
            require(
                PROBS,
                bool(fair.all()),
                expected,
                f"{of[first].tolist()}, of sum {float(of[first].double().sum()):.4g}",
            )
        own = of.gather(1, drawn)[:, 0]
        least = int(own.argmin())
        require(
            PROBS,
            bool((own > 0).all()),
            "a positive probability",
            f"token {int(drafted[least])} with {of[least].tolist()}",
        )
