"""What is no distribution of the target, or of a warp, is named or changes nothing; a target may
exclude tokens.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bass.engine.requests import EXCLUDED
from bass.engine.step import SpeculativeStep
from bass.errors import CheckpointError, StrategyError
from bass.interfaces import ForwardingRowStore, RowStore, Scorer, Verifier, Warp
from bass.policies import Fixed
from bass.records import Draft, History, Noise, Scored, Verdict, Window
from bass.sampling_params import Sampling
from bass.testing.engine import same_prompt
from bass.testing.small_models import SmallTable
from bass.verifiers.block import Block
from laws.test_7_invalid_drafts import at, expect_error
from support.doubles import warped
from support.engines import EVERY_VERIFIER, Setup
from support.matrix import matrix

TABLE = SmallTable()
END = 1  # the end of sequence of the tests of targets
BAD_ROW, BAD_STEP = 1, 2


@dataclass(frozen=True)
class LostAfterTheEnd(ForwardingRowStore, Scorer):
    """Logits of NaN in the place of every prediction that follows an end of sequence."""

    inner: Scorer

    @property
    def store(self) -> RowStore:
        return self.inner

    def __call__(self, window: Window) -> Scored:
        logits = self.inner(window).logits
        return Scored(torch.where((window.tokens == END)[..., None], torch.nan, logits))


class Own(Verifier):
    """Block verification by another name, which says nothing of what it looks at."""

    lossless: ClassVar[bool] = True

    def __call__(self, draft: Draft, target_probs: Tensor, noise: Noise) -> Verdict:
        return Block()(draft, target_probs, noise)


def scored_by(wrap: Callable[[Scorer], Scorer]) -> Callable[..., SpeculativeStep]:
    """For `Setup.wrap`: wraps the target's scorer."""
    return lambda step, _: replace(step, target=wrap(step.target))


LOSSLESS = {name: each for name, each in EVERY_VERIFIER.items() if each.lossless} | {"own": Own()}


@dataclass(frozen=True)
class LostByTheWarp(Warp):
    """As `Sampling`, but NaN in the place of every distribution that follows a drafted end of
    sequence.
    """

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        probs = warped(Sampling(1.0), logits, history)
        after = F.pad(history.drafted == END, (1, 0))[:, -probs.shape[1] :]
        return torch.where(after[..., None], torch.nan, probs)


@pytest.mark.parametrize("lost_by", ["model", "warp"])
@pytest.mark.parametrize("name", LOSSLESS)
def test_a_distribution_of_the_target_that_is_none_changes_no_law(
    name: str, lost_by: str, device: torch.device
) -> None:
    """A verifier that judges a draft as a whole ends the run; the others do not need it."""
    verifier = LOSSLESS[name]
    requests = same_prompt([0, 2], 4, 600, 0)
    setup = Setup(
        TABLE, device, policy=Fixed(3), verifier=verifier, warp=Sampling(1.0), eos=(END,), batch=200
    )
    lost, kind, reason = {
        "model": (
            setup.but(wrap=scored_by(LostAfterTheEnd)),
            CheckpointError,
            "The target's logits are not finite",
        ),
        "warp": (
            setup.but(wrap=lambda step, _: replace(step, warp=LostByTheWarp())),
            StrategyError,
            "`LostByTheWarp` must return finite",
        ),
    }[lost_by]
    if verifier.judges_jointly:
        with pytest.raises(kind, match=reason):
            lost.outcome(requests)
    else:
        assert lost.outcome(requests).tokens == setup.outcome(requests).tokens


@dataclass(frozen=True)
class SpoiledWarp(Warp):
    """As `Sampling`, but for the first distribution of one row, late in its text."""

    spoil: Callable[[Tensor], Tensor]

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        probs = warped(Sampling(temperature=0.8), logits, history).clone()
        own = probs[BAD_ROW, 0]
        probs[BAD_ROW, 0] = torch.where(history.lens[BAD_ROW] > 8, self.spoil(own), own)
        return probs


SPOILED_LAWS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "all NaN": (lambda law: law * math.nan, "not finite"),
    "one NaN": (lambda law: torch.where(at(law, 0), math.nan, law), "not finite"),
    "one infinity": (lambda law: torch.where(at(law, 2), math.inf, law), "not finite"),
    "negative": (
        lambda law: torch.where(at(law, 0), -law - 0.1, law) + at(law, 1) * (2 * law[0] + 0.1),
        "negative",
    ),
    "not normalised": (lambda law: law * 0.9, "do not sum to 1"),
}


@pytest.mark.parametrize("verifier", EVERY_VERIFIER)
@pytest.mark.parametrize("spoiled_law", SPOILED_LAWS)
@pytest.mark.parametrize("length", [0, 3])
def test_a_warp_that_makes_no_distribution_of_finite_logits_is_named(
    length: int, spoiled_law: str, verifier: str, device: torch.device
) -> None:
    spoil, reason = SPOILED_LAWS[spoiled_law]
    setup = Setup(
        TABLE,
        device,
        policy=Fixed(length),
        verifier=EVERY_VERIFIER[verifier],
        warp=Sampling(0.8),
        wrap=lambda step, _: replace(step, warp=SpoiledWarp(spoil)),
    )
    expect_error(setup, reason, "`SpoiledWarp`")


@dataclass(frozen=True)
class Masking(ForwardingRowStore, Scorer):
    """A target that excludes tokens: their logits are -inf."""

    inner: Scorer
    excluded: tuple[int, ...]

    @property
    def store(self) -> RowStore:
        return self.inner

    def __call__(self, window: Window) -> Scored:
        logits = self.inner(window).logits
        out = torch.zeros_like(logits, dtype=torch.bool)
        for token in self.excluded:
            out[..., token] = True
        return Scored(logits.masked_fill(out, -math.inf))


@matrix(strength=1, name=EVERY_VERIFIER, temperature=(0.0, 1.0))
def test_a_target_may_exclude_tokens(temperature: float, name: str, device: torch.device) -> None:
    """Also where a verifier keeps such a token by decree, and next to what nobody judges: its
    log-probability is a number.
    """
    verifier = EVERY_VERIFIER[name]

    def wrapped(scorer: Scorer) -> Scorer:
        masking = Masking(scorer, (0, 2, 3))
        return masking if verifier.judges_jointly else LostAfterTheEnd(masking)

    setup = Setup(
        TABLE,
        device,
        policy=Fixed(3),
        verifier=verifier,
        warp=Sampling(temperature),
        eos=(END,),
        wrap=scored_by(wrapped),
    )
    prompts = [[first, last] for first in range(7) for last in (0, 2, 3, 4)]
    found = setup.outcome([one for prompt in prompts for one in same_prompt(prompt, 12, 3, 0)])
    assert all(found.done)
    emitted = {token for tokens in found.tokens for token in tokens}
    logprobs = [one for each in found.logprobs for one in each]
    assert all(map(math.isfinite, logprobs))
    if verifier.lossless:
        assert not emitted & {0, 2, 3}
        assert min(logprobs) > EXCLUDED
    if name == "synthetic":
        assert min(logprobs) == EXCLUDED


@dataclass(frozen=True)
class Overwrites(Verifier):
    """Judges as `Block`, then writes to the distributions of the target."""

    lossless: ClassVar[bool] = True

    def __call__(self, draft: Draft, target_probs: Tensor, noise: Noise) -> Verdict:
        verdict = Block()(draft, target_probs, noise)
        target_probs.mul_(0.5)
        return verdict


def test_a_verifier_that_writes_to_the_distributions_of_the_target_is_named(
    device: torch.device,
) -> None:
    setup = Setup(TABLE, device, policy=Fixed(2), verifier=Overwrites(), warp=Sampling())
    words = "do not sum to 1: .* `Overwrites` must not write to `target_probs`"
    with pytest.raises(StrategyError, match=words):
        setup.outcome(same_prompt([1, 2], 6, 2))
