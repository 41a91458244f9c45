"""A strategy that breaks its contract while it runs is told so in one sentence, before anything made with it is handed over."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from bass.drafters import ModelDrafter
from bass.engine.bench import OwnDraw
from bass.errors import StrategyError
from bass.interfaces import Drafter, StopRule, Verifier
from bass.policies import Fixed
from bass.records import Draft, Noise, Sequences, Verdict
from bass.testing.worlds import TableWorld
from bass.verifiers.rejection import Rejection
from support.engines import Setup, mixed_requests

TABLE = TableWorld()


def unchecked(kind: type, **fields: object) -> Any:
    """As outside the tests, where the shapes of a record are not looked at when it is made."""
    made = object.__new__(kind)
    vars(made).update(fields)
    return made


@dataclass(frozen=True)
class Off(Verifier):
    """Counts `by` tokens more than were accepted."""

    lossless: ClassVar[bool] = False
    by: int = 1

    def __call__(self, draft: Draft, target_probs: Tensor, noise: Noise) -> Verdict:
        verdict = Rejection()(draft, target_probs, noise)
        return Verdict(verdict.tokens, verdict.accepted + self.by)


@dataclass(frozen=True)
class Odd(Drafter):
    """Proposes zeros of another shape than it was asked for, with other distributions, or with other lengths."""

    columns: int = 0
    vocab: int | None = None
    token: int = 0
    told: int | None = None

    def propose(self, sequences: Sequences, lengths: Tensor, k: int, noise: Noise, span: int) -> Draft:
        tokens = torch.full((len(lengths), k + self.columns), self.token, device=lengths.device)
        probs = None if self.vocab is None else torch.full((*tokens.shape, self.vocab), 1 / self.vocab, device=lengths.device)
        return unchecked(Draft, tokens=tokens, probs=probs, lengths=lengths[: self.told])


@dataclass(frozen=True)
class Few(Verifier):
    """Counts accepted tokens for some rows alone."""

    lossless: ClassVar[bool] = False

    def __call__(self, draft: Draft, target_probs: Tensor, noise: Noise) -> Verdict:
        verdict = Rejection()(draft, target_probs, noise)
        return unchecked(Verdict, tokens=verdict.tokens, accepted=verdict.accepted[:1])


@dataclass(frozen=True)
class Whole(StopRule):
    """Answers in whole numbers."""

    def __call__(self, draft_probs: Tensor, so_far: int) -> Tensor:
        return draft_probs.argmax(-1)


def run(setup: Setup) -> None:
    setup.outcome(mixed_requests(TABLE))


@pytest.mark.parametrize("by", [-5, 3])
def test_a_verdict_of_fewer_than_none_or_more_than_all_drafted_tokens(by: int, device: torch.device) -> None:
    with pytest.raises(StrategyError, match=r"`Off` kept -?\d+ of \d drafted tokens: a verdict accepts between 0 and as many"):
        run(Setup(TABLE, device, policy=Fixed(2), verifier=Off(by)))


def test_a_verdict_that_counts_for_other_rows(device: torch.device) -> None:
    with pytest.raises(
        StrategyError, match=r"`Few` counts accepted tokens in the shape \[1\], and there are 3 rows: give one count for each"
    ):
        run(Setup(TABLE, device, policy=Fixed(2), verifier=Few()))


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (Odd(columns=1), r"up to \d tokens for 3 rows and gave tokens \[3, \d\]"),
        (Odd(vocab=3), "distributions over 3 tokens, and the target has 7"),
        (Odd(token=-1), "a negative token"),
        (Odd(told=2), r"gave tokens \[3, \d\] of lengths \[2\] with probabilities None: give .* lengths \[3\]"),
        (Odd(columns=-1), "gave 1 columns of tokens, and says that a row has 2"),
    ],
)
def test_a_draft_of_another_shape(odd: Odd, message: str, device: torch.device) -> None:
    if device.type == "cuda" and (odd.token < 0 or odd.columns < 0):
        pytest.skip("what is in tensors is looked at on a CPU only")
    with pytest.raises(StrategyError, match=message):
        run(replace(Setup(TABLE, device, policy=Fixed(2)), drafter=lambda *_: odd))


def test_a_stop_rule_that_answers_in_numbers(device: torch.device) -> None:
    setup = Setup(TABLE, device, policy=Fixed(2))
    made = replace(setup, drafter=lambda setup, _, scorers: ModelDrafter(scorers("draft"), setup.warp, OwnDraw(), Whole()))
    with pytest.raises(StrategyError, match=r"`Whole` answered with int64 of shape \[3\]: give one truth value for each row"):
        run(made)
