"""Trims by the survival of drafted tokens, one class for each method.

The survival of a slot is the estimated probability that its token and all before it are accepted: a
running product, which never increases along a row. So the best slots of all rows are those that a
search finds which includes the best next slot of some row, again and again, and knows of no slot
more than a drafter that has drawn nothing from it on.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.interfaces import DraftTrim
from bass.option import within
from bass.records import Drafted

WEIGHT = 2.0  # of the prior of a slot, in tokens
Estimate = Literal["past", "confidence"]


def estimates(drafted: Drafted, estimate: Estimate, prior: float) -> Float[Tensor, "batch k"]:
    """The estimated acceptance of each slot.

    past: its share of accepted tokens in the row's earlier steps, with a prior. confidence: the
    largest probability of the draft model's own distribution; 1 for a drafter without one.
    """
    if estimate == "past":
        return (drafted.accepted + WEIGHT * prior) / (drafted.tried + WEIGHT)
    if drafted.probs is None:
        return torch.ones_like(drafted.tried)
    return drafted.probs.amax(2).clamp(max=1.0)  # a sum of rounded probabilities may exceed 1


def survival(drafted: Drafted, each: Float[Tensor, "batch k"]) -> Float[Tensor, "batch k"]:
    """The running product of each row's estimates, 0 beyond its draft."""
    slots = torch.arange(each.shape[1], device=each.device)
    own = torch.where(slots < drafted.lengths[:, None], each, 0)
    # A parallel product may round up from one slot to the next, which the minimum takes back.
    return own.cumprod(1).cummin(1).values


def best(
    drafted: Drafted, scores: Float[Tensor, "batch k"], tokens_per_row: float
) -> Int[Tensor, " batch"]:
    """The lengths that keep the slots with the highest scores, `tokens_per_row` times the number of
    rows with a draft, rounded up.

    Scores never increase along a row. Of equal ones the earlier slot comes first: were it the later
    one, its token, which the score may depend on, would decide whether it is drafted.
    """
    ordered = scores.T.flatten().argsort(descending=True, stable=True)
    ranks = torch.empty_like(ordered)
    ranks[ordered] = torch.arange(len(ordered), device=ordered.device)
    budget = (drafted.lengths > 0).sum().double() * tokens_per_row
    chosen = (ranks < budget).unflatten(0, scores.T.shape)
    return torch.minimum(chosen.sum(0), drafted.lengths)


@final
@dataclass(frozen=True)
class Threshold(DraftTrim):
    """Keep the slots of a row whose survival is at least `threshold`."""

    paper: ClassVar[str] = "this project, after SpecDec++ (Huang et al., 2024)"

    threshold: float = within("(0, 1]", 0.3)
    estimate: Estimate = "past"
    prior: float = within("[0, 1]", 0.7)

    @property
    def reads_probs(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.estimate == "confidence"

    def __call__(self, drafted: Drafted) -> Int[Tensor, " batch"]:
        each = estimates(drafted, self.estimate, self.prior)
        return (survival(drafted, each) >= self.threshold).sum(1)


@final
@dataclass(frozen=True)
class Survival(DraftTrim):
    """Keep the slots of all rows with the highest survival, `tokens_per_row` for each row on
    average.

    vLLM's adaptive verification and DSpark rank so by the output of a confidence head, and take the
    budget from measured step times.
    """

    paper: ClassVar[str] = "vLLM, adaptive verification (without a cost model)"
    batch_invariant: ClassVar[bool] = False

    tokens_per_row: float = within("[0, inf)", 2.0)
    estimate: Estimate = "past"
    prior: float = within("[0, 1]", 0.7)

    @property
    def reads_probs(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.estimate == "confidence"

    def most(self, rows: int, k: int) -> int:
        return min(rows * k, math.ceil(rows * self.tokens_per_row))

    def __call__(self, drafted: Drafted) -> Int[Tensor, " batch"]:
        each = estimates(drafted, self.estimate, self.prior)
        return best(drafted, survival(drafted, each), self.tokens_per_row)


@final
@dataclass(frozen=True)
class Tetris(DraftTrim):
    """Keep the slots of all rows whose tokens up to there are the most probable. NOT lossless.

    The draft model's own probability of a token decides whether it is verified, so improbable
    tokens are taken back: with `rejection` and `block` the output is biased at every temperature
    but 0. With `exact-match` and `coupled` it has the target's distribution. `tokens_per_row`: as
    in `Survival`.
    """

    paper: ClassVar[str] = "Wu et al., 2025 (TETRIS)"
    lossless: ClassVar[bool] = False
    batch_invariant: ClassVar[bool] = False
    reads_probs: ClassVar[bool] = True
    reads_tokens: ClassVar[bool] = True

    tokens_per_row: float = within("[0, inf)", 2.0)

    def most(self, rows: int, k: int) -> int:
        return min(rows * k, math.ceil(rows * self.tokens_per_row))

    def __call__(self, drafted: Drafted) -> Int[Tensor, " batch"]:
        each = torch.ones_like(drafted.tried)
        if drafted.probs is not None and drafted.tokens is not None:
            each = drafted.probs.gather(2, drafted.tokens[..., None])[..., 0].clamp(max=1.0)
        return best(drafted, survival(drafted, each), self.tokens_per_row)
