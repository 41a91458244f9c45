"""The properties of every stop rule."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from hypothesis import strategies as st
from jaxtyping import Bool, Float
from torch import Tensor

from bass.api.resolve import make
from bass.drafters import ModelDraft
from bass.interfaces import StopRule
from bass.sampling import Sampling
from bass.testing import runs
from bass.testing.engine import By, Setup
from bass.testing.policies import ByRow
from bass.testing.proof import Proof, shown
from bass.testing.strategies import Draw, distributions
from bass.testing.worlds import TableWorld

ANSWER = "the answer is a tensor of booleans of shape [batch]."
PURE = "a rule is a function: the same distributions get the same answer, and are not written to."
OWN = (
    "a row's answer depends on its own distribution alone, neither on its place nor on the other "
    "rows."
)
GIVEN = (
    "what a rule is given in an engine is a distribution, and the number of tokens drafted before "
    "it."
)
OPTIONS = (Sampling(), Sampling(temperature=0.7), Sampling(top_p=0.8))
# tokens at least, in all of the check: rules may look at several of the most probable ones
VOCAB = 8
ROWS = 8
CALLS = 8  # calls with the same input, to detect a rule that counts its calls
GREEDY_WORLD, LAW_WORLD = (
    TableWorld(VOCAB),
    TableWorld(VOCAB, order=2, seed=1, sharpness=1.5, likeness=0.5),
)


def check_stop_rule(rule: Any, examples: int = 40, seed: int = 0) -> None:
    """Test that a stop rule keeps its contract, and that the output is exact with it.

    `rule`: as in `bass.load(stop_rule=...)`. For drawn distributions, 1 to 8 rows over 8 to 10
    tokens: one boolean per row; the same result for repeated calls; no writes to arguments; a row's
    result is independent of its index and of the other rows. Then in a real engine, with a draft
    model on small tables of 8 tokens: greedy decoding equals the recomputed truth; the rule
    receives distributions; the joint distribution of the first two tokens is the target's at
    temperatures 1 and 0.7 and with top-p 0.8. These three tests use 768 samples per example and
    have a false-failure rate of 1e-6 each, 3e-6 in all; with the default of 40 examples they detect
    a bias of 0.041 in total variation. `seed`: of cases and samples.

    Not tested: host reads in the rule, which only a run with CUDA graphs shows.

    Raises `ExactnessError`; `OptionError` if `rule` is no stop rule.
    """
    made = make("stop_rule", rule)
    proof = Proof(type(made).__name__, examples, seed)
    proof.for_all(ANSWER, seen_rows(), lambda seen: answers(proof, made, seen))
    setup = Setup(
        GREEDY_WORLD, runs.CPU, policy=ByRow(4), drafter=By(ModelDraft(), Watched(made, proof))
    )
    runs.prove_greedy(proof, setup, examples // 2)
    for options in OPTIONS:
        runs.prove_law(proof, setup.but(world=LAW_WORLD, policy=ByRow(3)), options)


@dataclass(frozen=True)
class Seen:
    """The input of a rule.

    `probs` float32 [batch, vocab], `others` of the same shape, `order` a permutation of the rows.
    """

    probs: np.ndarray
    others: np.ndarray
    order: tuple
    so_far: int

    def __str__(self) -> str:
        return (
            f"distributions {shown(self.probs)}, {self.so_far} token(s) before; other mates "
            f"{shown(self.others)}, order {list(self.order)}"
        )


@st.composite
def seen_rows(draw: Draw) -> Seen:
    """One to eight rows of eight to ten tokens."""
    batch, vocab = draw(st.integers(1, ROWS)), draw(st.integers(VOCAB, VOCAB + 2))
    # A few distributions for all rows, some of few tokens: in a row of many, no mode is clear.
    few = [np.pad(draw(distributions(width)), (0, vocab - width)) for width in (2, 3, vocab)]
    rows = st.lists(st.sampled_from(few), min_size=batch, max_size=batch)
    probs, others = (np.array(draw(rows), dtype=np.float32) for _ in range(2))
    return Seen(probs, others, tuple(draw(st.permutations(range(batch)))), draw(st.integers(0, 5)))


def answers(proof: Proof, rule: StopRule, seen: Seen) -> None:
    """Check all properties outside of an engine, for one case."""
    probs, others, order = (
        torch.as_tensor(seen.probs),
        torch.as_tensor(seen.others),
        list(seen.order),
    )
    shape = (len(probs),)

    def call(rows: Tensor) -> Tensor:
        given = rows.clone()
        answer = rule(given, seen.so_far)
        proof.require(
            PURE, torch.equal(given, rows), f"distributions {shown(rows)}, as before", given
        )
        proof.require(
            ANSWER,
            isinstance(answer, Tensor),
            f"booleans of shape {list(shape)}",
            f"{type(answer).__name__}: {answer}",
        )
        right = answer.dtype == torch.bool and tuple(answer.shape) == shape
        proof.require(
            ANSWER,
            right,
            f"booleans of shape {list(shape)}",
            f"{answer.dtype} of shape {list(answer.shape)}: {shown(answer)}",
        )
        return answer.clone()

    answer = call(probs)
    for _ in range(CALLS - 1):
        again = call(probs)
        proof.require(PURE, torch.equal(again, answer), f"{shown(answer)} when called again", again)
    placed = call(probs[order])
    proof.require(
        OWN,
        torch.equal(placed, answer[order]),
        f"{shown(answer[order])} for the rows in the order {order}",
        placed,
    )
    for row in range(len(probs)):
        mixed = others.clone()
        mixed[row] = probs[row]
        got = call(mixed)[row]
        proof.require(
            OWN,
            bool(got == answer[row]),
            f"{bool(answer[row])} for row {row} among other mates too",
            bool(got),
        )
    again = call(probs)
    proof.require(PURE, torch.equal(again, answer), f"{shown(answer)} when called again", again)


@final
@dataclass(frozen=True)
class Watched(StopRule):
    """Checks the input and the result of `rule`."""

    rule: StopRule
    proof: Proof

    def __call__(
        self, draft_probs: Float[Tensor, "batch vocab"], so_far: int
    ) -> Bool[Tensor, " batch"]:
        sums = draft_probs.sum(1)
        fair = (
            bool((draft_probs >= 0).all()) and bool(((sums - 1).abs() < 1e-4).all()) and so_far >= 0
        )
        law = self.proof.law
        self.proof.require(
            GIVEN, fair, "distributions", f"{shown(draft_probs)} after {so_far} tokens"
        )
        answer = self.rule(draft_probs, so_far)
        right = (
            isinstance(answer, Tensor) and answer.dtype == torch.bool and answer.shape == sums.shape
        )
        self.proof.require(ANSWER, right, f"booleans of shape {list(sums.shape)}", answer)
        self.proof.law = law
        return answer
