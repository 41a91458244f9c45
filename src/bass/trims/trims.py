"""Trims by the survival of drafted tokens, one class for each method.

The survival of a slot is the estimated probability that its token and all before it are accepted: a
running product, which never increases along a row.
"""

import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bass.errors import OptionError
from bass.interfaces import DraftTrim
from bass.option import within
from bass.records import Drafted

WEIGHT = 2.0  # of the prior of a slot, in tokens
Estimate = Literal["past", "confidence"]


def survival(drafted: Drafted, estimate: Estimate, prior: float) -> Float[Tensor, "batch k"]:
    """The running product of the estimates of a row's slots."""
    if estimate == "past":
        return product(drafted, (drafted.accepted + WEIGHT * prior) / (drafted.tried + WEIGHT))
    return product(drafted, None if drafted.probs is None else drafted.probs.amax(2))


def drawn(drafted: Drafted) -> Bool[Tensor, "batch k"]:
    """The slots of the rows' own drafts."""
    slots = torch.arange(drafted.tried.shape[1], device=drafted.lengths.device)
    return slots < drafted.lengths[:, None]


def product(drafted: Drafted, each: Float[Tensor, "batch k"] | None) -> Float[Tensor, "batch k"]:
    """The running product of each row, 0 beyond its draft. each: None for ones."""
    slots = drawn(drafted)
    own = slots.float() if each is None else torch.where(slots, each.clamp(max=1.0), 0)
    # A parallel product may round up from one slot to the next, which the minimum takes back.
    return own.cumprod(1).cummin(1).values


def best(
    drafted: Drafted,
    scores: Float[Tensor, "batch k"],
    tokens_per_row: float,
    cost: float | Float[Tensor, ""] = 0.0,
) -> Int[Tensor, " batch"]:
    """The lengths that keep the slots with the highest scores, `tokens_per_row` times the number of
    rows with a draft, rounded up, or fewer by `cost`, as of `Budget`. Scores never increase along a
    row.

    Of equal ones the earlier slot comes first: else its token could decide whether it is verified.
    """
    ordered = scores.T.flatten().argsort(descending=True, stable=True)
    values = scores.T.flatten().double()[ordered]
    rows, n = (drafted.lengths > 0).sum().double(), torch.arange(len(values), device=values.device)
    tokens = rows + values.cumsum(0) - values  # expected of a step that keeps the n best slots
    # Whether one more raises the rate, tokens / (rows + cost n); what comes after it is not read.
    pays = (values * (rows + cost * n) >= cost * tokens).long().cumprod(0)
    budget = torch.minimum(rows * tokens_per_row, pays.sum())
    if drafted.places is not None:
        budget = torch.minimum(budget, drafted.places)
    chosen = (ordered.argsort() < budget).unflatten(0, scores.T.shape)  # by the rank of each
    return torch.minimum(chosen.sum(0), drafted.lengths)


@final
@dataclass(frozen=True)
class Threshold(DraftTrim):
    """Keep the slots of a row whose survival is at least `threshold`.

    The acceptance of a slot is estimated by its share of accepted tokens in the row's earlier steps
    (`estimate=past`, with a `prior`), or by the largest probability of the draft model's own
    distribution (`confidence`; 1 without one).
    """

    paper: ClassVar[str] = "this project, after SpecDec++ (Huang et al., 2024)"

    threshold: float = within("(0, 1]", 0.3)
    estimate: Estimate = "past"
    prior: float = within("(0, 1]", 0.7)
    reads_probs = property(lambda self: self.estimate == "confidence")  # pyright: ignore

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.estimate == "past" and self.threshold > self.prior:
            raise OptionError(
                f"`Threshold(threshold={self.threshold})` is above `prior={self.prior}`, so that "
                "no drafted token is ever verified: give a lower threshold, or a higher prior."
            )

    def __call__(self, drafted: Drafted) -> Int[Tensor, " batch"]:
        return (survival(drafted, self.estimate, self.prior) >= self.threshold).sum(1)


@final
@dataclass(frozen=True)
class AdaEdl(DraftTrim):
    """Keep the slots of a row before the first with 1 - sqrt(gamma H) < t, where H is the entropy
    of the draft's distribution in nats, and t moves with the row's recent acceptance:

        t = threshold + gain (target - a),   a = (accepted + 2 target) / (tried + 2)

    with the sums of the row's counts over the slots up to this one: a sum over its whole draft
    would tell of later tokens, by which a stop rule may end it. The paper ends the draft itself,
    and updates t after each step; a trim keeps no state, so here t is a function of the acceptance.
    Without distributions, as of `ngram`, all slots are kept. The stop rule `entropy` is the same
    with a fixed t, and saves passes of the draft model too.
    """

    paper: ClassVar[str] = "after Agrawal et al., 2024 (AdaEDL)"
    reads_probs: ClassVar[bool] = True

    threshold: float = within("(-inf, 1)", 0.5)
    gamma: float = within("(0, inf)", 0.2)
    target: float = within("[0, 1]", 0.9)
    gain: float = within("[0, inf)", 0.5)

    def __call__(self, drafted: Drafted) -> Int[Tensor, " batch"]:
        if drafted.probs is None:
            return drafted.lengths
        tried, accepted = drafted.tried.cumsum(1), drafted.accepted.cumsum(1)
        missing = self.target - (accepted + WEIGHT * self.target) / (tried + WEIGHT)
        entropy = torch.special.entr(drafted.probs).sum(2)
        sure = 1 - (self.gamma * entropy).sqrt() >= self.threshold + self.gain * missing
        return torch.minimum(sure.long().cumprod(1).sum(1), drafted.lengths)


@dataclass(frozen=True)
class Budget(DraftTrim):
    """The base of trims that keep the best slots of all rows: `tokens_per_row` of a row on average,
    if it is given, and no slot that lowers the expected tokens a second.

    `cost`: what a step takes longer if it verifies one more token of each row, as a share of its
    time without any: (b / a - 1) / 4 by steps of a and b seconds that draft 4 and keep 0 and 4. The
    budget is that of DSpark (2026), algorithm 1, at linear costs. 0: each slot pays. None: as the
    engine measures it, or 0 if `tokens_per_row` is given.
    """

    batch_invariant: ClassVar[bool] = False
    reads_places: ClassVar[bool] = True

    tokens_per_row: float | None = within("[0, inf)", None)
    _: KW_ONLY
    cost: float | None = within("[0, inf)", None)

    @property
    def reads_cost(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.cost is None and self.tokens_per_row is None

    def most(self, rows: int, k: int) -> int:
        return min(rows * k, math.ceil(rows * self.per_row(k)))

    def per_row(self, k: int) -> float:
        """The most tokens of a row, on average, of drafts of up to k."""
        return k if self.tokens_per_row is None else self.tokens_per_row

    def chosen(self, drafted: Drafted, scores: Float[Tensor, "batch k"]) -> Int[Tensor, " batch"]:
        """The lengths that keep the slots with the highest scores, which never increase along a
        row.
        """
        cost = drafted.cost if self.reads_cost else self.cost
        per_row = self.per_row(scores.shape[1])
        return best(drafted, scores, per_row, 0.0 if cost is None else cost)


@final
@dataclass(frozen=True)
class Survival(Budget):
    """Keep the slots of all rows with the highest survival, as long as one more slot raises the
    expected tokens a second by measured step times, or `tokens_per_row` on average.

    `cost`: what a step takes longer if it verifies one more token of each row, as a share of its
    time without any, in place of the measured one (`bass.trims.Budget`). vLLM takes the estimates
    from a confidence head. `estimate`, `prior`: as of `threshold`.
    """

    paper: ClassVar[str] = "vLLM, adaptive verification"

    estimate: Estimate = "past"
    prior: float = within("(0, 1]", 0.7)
    reads_probs = property(lambda self: self.estimate == "confidence")  # pyright: ignore

    def __call__(self, drafted: Drafted) -> Int[Tensor, " batch"]:
        return self.chosen(drafted, survival(drafted, self.estimate, self.prior))


@final
@dataclass(frozen=True)
class Tetris(Budget):
    """Keep the slots of all rows whose tokens up to there are the most probable. NOT lossless.

    The draft model's own probability of a token decides whether it is verified, so improbable
    tokens are taken back: with `rejection` and `block` the output is biased at every temperature
    but 0. With `exact-match` and `coupled` it has the target's distribution.
    """

    paper: ClassVar[str] = "Wu et al., 2025 (TETRIS)"
    lossless: ClassVar[bool] = False
    reads_probs: ClassVar[bool] = True
    reads_tokens: ClassVar[bool] = True

    def __call__(self, drafted: Drafted) -> Int[Tensor, " batch"]:
        each = None
        if drafted.probs is not None and drafted.tokens is not None:
            each = drafted.probs.gather(2, drafted.tokens[..., None])[..., 0]
        return self.chosen(drafted, product(drafted, each))
