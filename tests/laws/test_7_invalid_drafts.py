"""A draft that is no distribution ends the run, for every drafter and verifier, step by step and in
graphs.

What stands beyond a row's own length is no part of its draft, whatever it is.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from bass.drafters import Ensemble, ModelDraft, Ngram
from bass.engine.requests import Emission
from bass.errors import StrategyError
from bass.interfaces import (
    Drafter,
    DrafterContext,
    DraftMethod,
    ForwardingRowStore,
    RowStore,
    Scorer,
)
from bass.policies import Fixed
from bass.records import Draft, Noise, Scored, Sequences, Window
from bass.sampling_params import Sampling
from bass.testing.doubles import ByRow
from bass.testing.small_models import SmallTable
from support.doubles import Cycle
from support.engines import EVERY_VERIFIER, By, Setup, mixed_requests, watched

TABLE = SmallTable()

BAD_ROW, BAD_STEP = 1, 2


def at(x: Tensor, *place: int) -> Tensor:
    """Where `x` is at this place, made on its device: a graph holds no copy from the host."""
    axes = [torch.arange(size, device=x.device) for size in x.shape]
    grids = torch.meshgrid(*axes, indexing="ij")
    return torch.stack([grid == i for grid, i in zip(grids, place, strict=True)]).all(0)


def first_place(draft: Draft, value: float) -> Draft:
    probs = torch.where(at(draft.probs, BAD_ROW, 0, 1), value, draft.probs)
    return Draft(draft.tokens, probs, draft.lengths)


def scaled(draft: Draft, factor: float) -> Draft:
    probs = draft.probs.clone()
    probs[BAD_ROW, 0] *= factor
    return Draft(draft.tokens, probs, draft.lengths)


def negative(draft: Draft) -> Draft:
    """Its sum is 1."""
    probs = draft.probs.clone()
    probs[BAD_ROW, 0, 1] += 0.1 + 2 * probs[BAD_ROW, 0, 2]
    probs[BAD_ROW, 0, 2] = -probs[BAD_ROW, 0, 2] - 0.1
    return Draft(draft.tokens, probs, draft.lengths)


def impossible(draft: Draft) -> Draft:
    """The drafted token has none of the mass that it is said to be drawn from."""
    own = draft.tokens[BAD_ROW, 0]
    law = draft.probs[BAD_ROW, 0].scatter(0, own[None], 0.0)
    law = torch.where(law.sum() > 0, law, 1.0).scatter(0, own[None], 0.0)
    probs = torch.where(at(draft.tokens, BAD_ROW, 0)[..., None], law / law.sum(), draft.probs)
    return Draft(draft.tokens, probs, draft.lengths)


def token(draft: Draft, index: int) -> Draft:
    tokens = torch.where(at(draft.tokens, BAD_ROW, 0), index, draft.tokens)
    return Draft(tokens, draft.probs, draft.lengths)


BROKEN: dict[str, tuple[Callable[[Draft], Draft], str]] = {
    "NaN": (lambda draft: first_place(draft, math.nan), "not finite"),
    "infinity": (lambda draft: first_place(draft, math.inf), "not finite"),
    "minus infinity": (lambda draft: first_place(draft, -math.inf), "not finite"),
    "negative": (negative, "negative"),
    "sum too large": (lambda draft: scaled(draft, 1.002), "do not sum to 1"),
    "sum too small": (lambda draft: scaled(draft, 0.998), "do not sum to 1"),
    "nothing": (lambda draft: scaled(draft, 0.0), "do not sum to 1"),
    "token after the last": (lambda draft: token(draft, TABLE.vocab), "outside of the vocabulary"),
    "token before the first": (lambda draft: token(draft, -1), "outside of the vocabulary"),
    "token far away": (lambda draft: token(draft, 2**40), "outside of the vocabulary"),
    "token of probability zero": (impossible, "reported with the probability 0"),
    "no length": (
        lambda draft: Draft(draft.tokens, draft.probs, draft.lengths - 1 - draft.lengths.max()),
        "negative length",
    ),
}


@dataclass(frozen=True)
class Spoiled(ForwardingRowStore, Drafter):
    """As `inner`, but in step `BAD_STEP` of the rows, where its draft is what `spoil` makes of
    it.
    """

    inner: Drafter
    spoil: Callable[[Draft], Draft]
    always: bool = False

    @property
    def store(self) -> RowStore:
        return self.inner

    def propose(
        self, sequences: Sequences, lengths: Tensor, k: int, noise: Noise, span: int
    ) -> Draft:
        draft = self.inner.propose(sequences, lengths, k, noise, span)
        spoiled = self.spoil(draft)
        now = torch.ones_like(sequences.steps[0], dtype=torch.bool)
        if not self.always:
            now = sequences.steps[BAD_ROW] == BAD_STEP
        return Draft(
            torch.where(now, spoiled.tokens, draft.tokens),
            None if draft.probs is None else torch.where(now, spoiled.probs, draft.probs),
            torch.where(now, spoiled.lengths, draft.lengths),
        )


@dataclass(frozen=True)
class SpoiledMethod(DraftMethod):
    """As `inner`, spoiled."""

    inner: DraftMethod
    spoil: Callable[[Draft], Draft]
    always: bool = True

    @property
    def needs_draft(self) -> bool:
        return self.inner.needs_draft

    def build(self, context: DrafterContext) -> Drafter:
        return Spoiled(self.inner.build(context), self.spoil, self.always)


def spoiled(spoil: Callable[[Draft], Draft], always: bool = False) -> By:
    """Drafts by a model, spoiled."""
    return By(SpoiledMethod(ModelDraft(), spoil, always))


def requests() -> list[Any]:
    return mixed_requests(TABLE, seed=5, count=3)


def expect_error(setup: Setup, reason: str, name: str) -> list[Emission]:
    """What was emitted before the error, which gives the reason and names the drafter."""
    emissions: list[Emission] = []
    with pytest.raises(StrategyError, match=re.escape(reason)) as caught:
        emissions.extend(setup.engine(requests()))
    assert name in str(caught.value)
    assert str(caught.value).count("\n") == 0
    return emissions


@pytest.mark.parametrize("verifier", EVERY_VERIFIER)
@pytest.mark.parametrize("broken", BROKEN)
def test_nothing_of_a_step_with_an_invalid_draft_is_emitted(
    broken: str, verifier: str, device: torch.device
) -> None:
    spoil, reason = BROKEN[broken]
    sampling = Sampling(temperature=0.8)
    setup = Setup(TABLE, device, policy=Fixed(3), verifier=EVERY_VERIFIER[verifier], warp=sampling)
    sound = setup.but(drafter="model").outcome(requests())
    emissions = expect_error(setup.but(drafter=spoiled(spoil)), reason, "`Spoiled`")
    tokens: dict[int, list[int]] = {i: [] for i in range(3)}
    for emission in emissions:
        tokens[emission.request] += emission.tokens
    before = sum(emitted for *_, emitted in sound.history(BAD_ROW)[:BAD_STEP])
    assert len(tokens[BAD_ROW]) == before
    assert all(sound.tokens[i][: len(tokens[i])] == tokens[i] for i in tokens)


@pytest.mark.parametrize("broken", BROKEN)
def test_an_invalid_draft_of_a_part_of_an_ensemble_ends_the_run(
    broken: str, device: torch.device
) -> None:
    spoil, reason = BROKEN[broken]
    ensembles: list[tuple[DraftMethod, ...]] = [
        (Ngram(longest=4, shortest=4), SpoiledMethod(ModelDraft(), spoil))
    ]
    if "vocabulary" in reason:  # an n-gram draft has no distributions
        ensembles.append((SpoiledMethod(Ngram(), spoil), ModelDraft()))
    for parts in ensembles:
        setup = Setup(TABLE, device, policy=Fixed(3), drafter=By(Ensemble(parts)))
        expect_error(setup, reason, "`Spoiled`")


@dataclass(frozen=True)
class OverflowingScorer(ForwardingRowStore, Scorer):
    """A draft model of which one row overflows."""

    inner: Scorer
    value: float

    @property
    def store(self) -> RowStore:
        return self.inner

    def __call__(self, window: Window) -> Scored:
        logits = self.inner(window).logits.clone()
        bad = (window.positions[BAD_ROW, -1] > 8)[None, None]
        logits[BAD_ROW, :, 2:3] = torch.where(bad, self.value, logits[BAD_ROW, :, 2:3])
        return Scored(logits)


@pytest.mark.parametrize(
    "warp",
    [
        Sampling(temperature=0),
        Sampling(temperature=0.7),
        Sampling(temperature=0.7, top_p=0.9),
        Sampling(temperature=1.0, top_k=3),
        Sampling(temperature=1.0, min_p=0.1),
        Sampling(temperature=1.0, top_k=4, top_p=0.9, min_p=0.01, repetition_penalty=1.2),
        Sampling(temperature=0, repetition_penalty=1.2),
    ],
    ids=str,
)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_draft_model_that_is_not_finite_is_named(
    value: float, warp: Sampling, device: torch.device
) -> None:
    """At every temperature: a one-hot of NaN is no distribution either."""
    setup = Setup(
        TABLE,
        device,
        policy=Fixed(2),
        warp=warp,
        wrap=watched(lambda s, _, is_target: s if is_target else OverflowingScorer(s, value)),
    )
    expect_error(setup, "not finite (NaN or infinity)", "The draft model")


@pytest.mark.parametrize("verifier", EVERY_VERIFIER)
@pytest.mark.parametrize("policy", [Fixed(3), ByRow(), Cycle()], ids=str)
def test_what_stands_beyond_a_rows_length_changes_nothing(
    policy: Any, verifier: str, device: torch.device
) -> None:
    def littered(draft: Draft) -> Draft:
        k = draft.tokens.shape[1]
        beyond = torch.arange(k, device=draft.lengths.device) >= draft.lengths[:, None]
        litter = torch.where(beyond, -7 - draft.tokens, draft.tokens)
        probs = torch.where(beyond[..., None], torch.nan, draft.probs)
        return Draft(litter, probs, draft.lengths)

    warp = Sampling(temperature=0.8)
    setup = Setup(TABLE, device, policy=policy, verifier=EVERY_VERIFIER[verifier], warp=warp)
    sound = setup.but(drafter="model").outcome(mixed_requests(TABLE))
    found = setup.but(drafter=spoiled(littered, always=True)).outcome(mixed_requests(TABLE))
    assert found.tokens == sound.tokens
