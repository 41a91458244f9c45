"""The properties of every drafter."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from bass.api.llm import load
from bass.api.resolve import make
from bass.drafters.validity import check_answer
from bass.engine.step import SpeculativeStep
from bass.interfaces import Drafter, DraftMethod, ForwardingRowStore, RowStore
from bass.policies import Fixed
from bass.records import Draft, Noise, Observation, Sequences
from bass.sampling_params import Sampling
from bass.testing import engine
from bass.testing.checking import Checker
from bass.testing.doubles import ByRow, OwnPast, Unsure
from bass.testing.engine import Setup
from bass.testing.inputs import MIXED
from bass.testing.small_models import DecoderPair, SmallLlama, SmallModel, tensors_of
from bass.verifiers.block import Block

LENGTHS = (
    "a row's draft is no longer than the requested length, and a row with requested length 0 has "
    "no draft."
)
LEAVES = "`propose` does not write to the sequences, the lengths or the noise."
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
GREEDY_WITH_A_RULE = WITH_A_RULE + engine.GREEDY
LAW_WITH_A_RULE = (
    f"{WITH_A_RULE}the first four tokens are distributed as the target's own: a draft ends after "
    "the token at which the rule fires, whichever that token is."
)
NEW = 4  # tokens whose joint distribution is tested: one of each slot of the first draft
# of these tokens, with a large vocabulary: the first, and each with the one before
PAIRS = ((0,), (0, 1), (1, 2), (2, 3))
OPTIONS = ((Sampling(), engine.LONG_PROMPT), (Sampling(temperature=0.7, top_p=0.8), engine.PROMPT))
RULE = Unsure()
MOSTLY_LONG = ByRow(4, every=4)
BLOCK_LENGTH = 3  # of drafts in `engine.UNLIKE`
Checkpoint = str | Path


def check_drafter(
    drafter: Any,
    examples: int = 40,
    seed: int = 0,
    *,
    target: Checkpoint | None = None,
    draft: Checkpoint | None = None,
) -> None:
    """Test that a drafter keeps its contract, and that the output is exact with it.

    `drafter`: as in `bass.load`, a `DraftMethod`, or a `Drafter` that needs no model. In a real
    engine, with lengths that vary by row and step and include 0, each call of `propose` must return
    a `Draft` with valid lengths, shapes and tokens, and with distributions that are finite, not
    negative, sum to 1 and give each drafted token a positive probability. Greedy decoding equals
    the recomputed reference. A request's tokens are the same alone, in any row, and in a row that
    held another prompt before; for a batch-wide drafter (`batch_invariant = False`), only for the
    same requests in another run.

    The joint distribution of the first tokens is the target's: of four with a vocabulary of 3,
    after a long prompt, with sampling options, with other options in each row, and with block
    verification; of pairs with a vocabulary of 24, of which the draft model knows 22. A method with
    `obeys_stop_rules` is tested with a rule, too. Each of these tests has a false-failure rate of
    1e-6; docs/correctness.md has the biases that they detect. `seed`: of cases and samples.

    With `target`, and `draft` if the method needs one (folders or hub ids), the drafter runs on
    that pair instead, on a CPU in float32, such as a head that was trained for one target: the
    contract, greedy decoding, independence of other rows, and the distribution of the first four
    tokens with top-k 2, where 40 examples detect a bias of 0.037. A wrong report shows there only
    if the drafts are often accepted: an untrained draft hides it.

    Raises `ExactnessError`; `OptionError` if `drafter` is no drafter.
    """
    made: DraftMethod = make("drafter", drafter)
    checker = Checker(type(made).__name__, examples, seed)

    def wrap(step: SpeculativeStep, _: Sequences) -> SpeculativeStep:
        return replace(step, drafter=CheckedDrafter(step.drafter, checker, step.vocab_size))

    setup = Setup(engine.WHOLE_MEMORY, engine.CPU, policy=ByRow(4), drafter=made, wrap=wrap)
    if target is not None:
        models = load(target, draft, drafter=made, device="cpu", dtype="float32").models
        roles = {"target": models.target, "draft": models.draft or models.target}
        require_on_pair(
            checker, setup.but(model=DecoderPair(models.target.shape.vocab_size, roles))
        )
        return
    states = [max(i, 0) + 1 for i in made.target_features]  # the final state needs a layer, too
    layers = max(made.target_layers, *states, 0)
    if layers:
        setup = setup.but(model=SmallLlama(layers=layers + 1))
    engine.require_greedy(checker, setup, examples // 2)
    if not layers:
        engine.require_greedy(checker, setup.but(model=SmallLlama()), examples // 6)
    require_same(checker, setup, examples // 4)
    if made.obeys_stop_rules:
        ruled = setup.but(stop_rule=RULE)
        engine.require_greedy(checker, ruled, examples // 8, GREEDY_WITH_A_RULE)
        require_same(checker, ruled, examples // 8, WITH_A_RULE)
    require_laws(checker, setup, layers)


def require_on_pair(checker: Checker, setup: Setup) -> None:
    """Check a drafter on a pair of checkpoints."""
    engine.require_greedy(checker, setup, checker.examples // 6)
    require_same(checker, setup, checker.examples // 4)
    prompt = np.random.default_rng(checker.seed).integers(0, setup.model.vocab, 8).tolist()
    setup = setup.but(policy=MOSTLY_LONG)
    engine.require_law(checker, setup, Sampling(top_k=2), LAW, NEW, prompt)


def require_same(checker: Checker, setup: Setup, examples: int, case: str = "") -> None:
    """Check `MATES`, or `AGAIN` for a batch-wide drafter."""
    own = setup.but(policy=OwnPast())
    if setup.drafter.batch_invariant:
        ways = engine.REVERSED | engine.ALONE
        engine.require_same(checker, own, examples, case + MATES, ways)
    else:
        engine.require_same(checker, own, examples, case + AGAIN, engine.REPEATED)


def require_laws(checker: Checker, setup: Setup, layers: int) -> None:
    """Check the distributions of the first tokens, without and with a stop rule: on tables, or on
    Llamas for a drafter that runs `layers` of the target.
    """
    large: SmallModel = engine.LARGE_TABLE
    narrow: SmallModel = engine.NARROW_TABLE
    unlike: SmallModel = engine.UNLIKE
    if layers:
        large = engine.sampled_llama(layers + 1, engine.LARGE)
        narrow = unlike = engine.sampled_llama(layers + 1, engine.NARROW)
    setup = setup.but(model=narrow, policy=MOSTLY_LONG)
    engine.require_law(checker, setup.but(model=large), Sampling(), LAW, NEW, subsets=PAIRS)
    for options, prompt in OPTIONS:
        engine.require_law(checker, setup, options, LAW, NEW, prompt)
    engine.require_law(checker, setup, MIXED, LAW_OF_OPTIONS, NEW)
    block = setup.but(model=unlike, policy=Fixed(BLOCK_LENGTH), verifier=Block())
    engine.require_law(checker, block, Sampling(), LAW_BY_BLOCK, NEW)
    if setup.drafter.obeys_stop_rules:
        ruled = setup.but(stop_rule=RULE)
        engine.require_law(checker, ruled, Sampling(), LAW_WITH_A_RULE, NEW)


@final
@dataclass(frozen=True)
class CheckedDrafter(ForwardingRowStore, Drafter):
    """Checks what the step does not: that a draft is no longer than requested, and that `propose`
    does not write to its arguments. The step itself checks shapes, tokens and distributions.
    """

    drafter: Drafter
    checker: Checker
    vocab: int

    @property
    def store(self) -> RowStore:
        return self.drafter

    @property
    def label(self) -> str:
        return self.drafter.label

    @property
    def observes(self) -> bool:
        return self.drafter.observes

    def observe(self, seen: Observation) -> None:
        self.drafter.observe(seen)

    def propose(
        self, sequences: Sequences, lengths: Int[Tensor, " batch"], k: int, noise: Noise, span: int
    ) -> Draft:
        requested = lengths.clone()
        own = () if self.drafter.writes_inputs else (lengths, noise)
        given = [*tensors_of((sequences, own))]
        before = [tensor.clone() for tensor in given]
        draft = self.drafter.propose(sequences, lengths, k, noise, span)
        same = all(map(torch.equal, before, given))
        self.checker.require(LEAVES, same, "what was given, as before", "other values in it")
        check_answer(self.drafter, draft, requested, k, self.vocab)
        fits = bool((draft.lengths <= requested).all())
        expected = f"at most {requested.tolist()[:16]}"
        self.checker.require(LENGTHS, fits, expected, draft.lengths[:16])
        return draft
