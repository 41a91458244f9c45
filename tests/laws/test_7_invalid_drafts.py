"""What is no distribution ends the run, a draft's or the target's: for every drafter and verifier,
step by step and in graphs.

What stands beyond a row's own length is no part of its draft, whatever it is.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bass.drafters import Ensemble, ModelDraft, Ngram
from bass.engine.requests import EXCLUDED, Emission
from bass.errors import CheckpointError, StrategyError
from bass.interfaces import (
    Drafter,
    DrafterContext,
    DraftMethod,
    ForwardingRowStore,
    RowStore,
    Scorer,
    Verifier,
    Warp,
)
from bass.policies import Fixed
from bass.records import Draft, History, Noise, Scored, Sequences, Verdict, Window
from bass.sampling import Sampling
from bass.testing.engine import By, Scorers, same_prompt
from bass.testing.policies import ByRow, Cycle
from bass.testing.worlds import TableWorld
from bass.verifiers.block import Block
from support.engines import EVERY_VERIFIER, Setup, mixed_requests

TABLE = TableWorld()
END = 1  # the end of sequence of the tests of targets
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

    @property
    def needs_draft(self) -> bool:
        return self.inner.needs_draft

    def build(self, context: DrafterContext) -> Drafter:
        return Spoiled(self.inner.build(context), self.spoil, always=True)


def spoiled(spoil: Callable[[Draft], Draft], always: bool = False) -> Callable[..., Drafter]:
    """Makes a drafter by a model, spoiled."""

    def make(setup: Setup, requests: list[Any], scorers: Scorers) -> Drafter:
        return Spoiled(By(ModelDraft())(setup, requests, scorers), spoil, always)

    return make


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


@pytest.mark.parametrize("verifier", EVERY_VERIFIER)
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
    value: float, warp: Sampling, verifier: str, device: torch.device
) -> None:
    """At every temperature: a one-hot of NaN is no distribution either."""
    setup = Setup(
        TABLE,
        device,
        policy=Fixed(2),
        verifier=EVERY_VERIFIER[verifier],
        warp=warp,
        wrap_draft=lambda scorer, _: OverflowingScorer(scorer, value),
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


LOSSLESS = {name: each for name, each in EVERY_VERIFIER.items() if each.lossless} | {"own": Own()}


def soundly_drafted_at(temperature: float) -> Callable[..., Drafter]:
    """Makes a drafter by a model whose own warp is a sound one."""

    def make(setup: Setup, requests: list[Any], scorers: Scorers) -> Drafter:
        return By(ModelDraft())(setup.but(warp=Sampling(temperature)), requests, scorers)

    return make


@dataclass(frozen=True)
class LostByTheWarp(Warp):
    """As `Sampling`, but NaN in the place of every distribution that follows a drafted end of
    sequence.
    """

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        probs = Sampling(1.0)(logits, history)
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
            setup.but(wrap_target=lambda scorer, _: LostAfterTheEnd(scorer)),
            CheckpointError,
            "The target's logits are not finite",
        ),
        "warp": (
            setup.but(warp=LostByTheWarp(), drafter=soundly_drafted_at(1.0)),
            StrategyError,
            "`LostByTheWarp` returned",
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
        probs = Sampling(temperature=0.8)(logits, history).clone()
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
        warp=SpoiledWarp(spoil),
        drafter=soundly_drafted_at(0.8),
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


@pytest.mark.parametrize("name", EVERY_VERIFIER)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_target_may_exclude_tokens(temperature: float, name: str, device: torch.device) -> None:
    """Also where a verifier keeps such a token by decree, and next to what nobody judges: its
    log-probability is a number.
    """
    verifier = EVERY_VERIFIER[name]

    def wrapped(scorer: Scorer, _: Sequences) -> Scorer:
        masking = Masking(scorer, (0, 2, 3))
        return masking if verifier.judges_jointly else LostAfterTheEnd(masking)

    setup = Setup(
        TABLE,
        device,
        policy=Fixed(3),
        verifier=verifier,
        warp=Sampling(temperature),
        eos=(END,),
        wrap_target=wrapped,
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
