"""The public kit finds out verifiers that break a law, names it, and shows a small case."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from bass.errors import OptionError
from bass.interfaces import Drafter, Verifier
from bass.ops.batch_state import leading
from bass.ops.noise import exponential_race
from bass.ops.sampling import draw
from bass.ops.verification import accept_probs, emit, next_probs, target_after
from bass.records import Draft, Verdict
from bass.testing import check_drafter, check_verifier
from bass.testing import laws_of_verifiers as verifiers
from bass.testing.enumeration import exact_match_cuts, rejection_cuts
from bass.verifiers.rejection import Rejection
from support.matrix import night
from unit.test_testing_broken_drafters import BatchWide, Model, laws_broken

pytestmark = pytest.mark.usefixtures("unchecked")
MOST = 16  # tokens of a vocabulary of the kit, at most


class Boundary(Verifier):
    """The residual at a row's own length too, where nothing was refused."""

    lossless = True

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        k = draft.tokens.shape[1]
        if not k:
            return emit(draft, torch.zeros_like(draft.lengths), target_probs[:, 0], noise)
        accepted = leading(noise.accept[:, :k] < accept_probs(draft, target_probs), draft.lengths)
        longer = replace(draft, lengths=torch.where(draft.lengths > 0, k, 0))
        return emit(draft, accepted, next_probs(longer, target_probs, accepted), noise)


@dataclass(frozen=True)
class Spoiled(Verifier):
    """Correct: rejection, to be spoilt."""

    lossless = True

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        return Rejection()(draft, target_probs, noise)


class BonusOfTheDraft(Spoiled):
    """After a row's whole draft, the next token comes from the distribution of its last one."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        verdict = super().__call__(draft, target_probs, noise)
        return emit(
            draft,
            verdict.accepted,
            target_after(target_probs, (verdict.accepted - 1).clamp(min=0)),
            noise,
        )


class DraftsUniform(Spoiled):
    """Replaces a refused token with the uniform that drew it."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        return super().__call__(
            draft, target_probs, replace(noise, uniforms=noise.uniforms[..., [0, 1, 0, 3]])
        )


class SeesBeyond(Spoiled):
    """Weighs all places of a window, with zero those beyond a row's own: right, unless they hold
    what is not finite.
    """

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        places = torch.arange(target_probs.shape[1])
        own = (places <= draft.lengths[:, None])[..., None]
        return super().__call__(
            draft,
            target_probs + (1e-30 * (1 - own * 1.0) * target_probs).sum(1, keepdim=True),
            noise,
        )


class LateBias(Spoiled):
    """Accepts too much from the fourth drafted token on."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        late = torch.arange(noise.uniforms.shape[1]) >= 3
        uniforms = torch.where(
            late[:, None] & (torch.arange(4) == 1), noise.uniforms / 2, noise.uniforms
        )
        return super().__call__(draft, target_probs, replace(noise, uniforms=uniforms))


class FarBias(Spoiled):
    """Accepts too much where a row is long."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        far = (noise.first > 20)[:, None, None] & (torch.arange(4) == 1)
        return super().__call__(
            draft,
            target_probs,
            replace(noise, uniforms=torch.where(far, noise.uniforms * 0.3, noise.uniforms)),
        )


class Random(Spoiled):
    """Draws noise of its own."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        return super().__call__(
            draft, target_probs, replace(noise, uniforms=torch.rand_like(noise.uniforms))
        )


class Crowded(Spoiled):
    """Replaces a rejected token with one of the eight most probable ones of the residual."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        verdict = super().__call__(draft, target_probs, noise)
        residual = (
            next_probs(draft, target_probs, verdict.accepted)
            if draft.tokens.shape[1]
            else target_probs[:, 0]
        )
        least = residual.topk(min(8, residual.shape[1]), -1).values[:, -1:]
        return emit(draft, verdict.accepted, torch.where(residual < least, 0, residual), noise)


class AcceptsAll(Spoiled):
    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        return emit(draft, draft.lengths, target_after(target_probs, draft.lengths), noise)


class LeavesLengthsOut(Spoiled):
    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        return super().__call__(
            replace(draft, lengths=torch.full_like(draft.lengths, draft.tokens.shape[1])),
            target_probs,
            noise,
        )


class ByTheMinimum(Spoiled):
    """Every row accepts as many as the worst."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        verdict = super().__call__(draft, target_probs, noise)
        return replace(
            verdict, accepted=verdict.accepted.amin().expand(len(verdict.accepted)).clone()
        )


class OfThePlace(Spoiled):
    """Refuses everything in every other row, and draws from the target there, which is lossless in
    itself.
    """

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        nothing = replace(
            draft, lengths=draft.lengths * (torch.arange(len(draft.lengths)) % 2 == 0)
        )
        return super().__call__(nothing, target_probs, noise)


class Narrow(Spoiled):
    """Without the token after the accepted ones."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        verdict = super().__call__(draft, target_probs, noise)
        return replace(verdict, tokens=verdict.tokens[:, :-1])


class Shifted(Spoiled):
    """Emits the draft one token late."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        verdict = super().__call__(draft, target_probs, noise)
        return replace(verdict, tokens=verdict.tokens.roll(1, 1))


class InPlace(Spoiled):
    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        target_probs /= 2
        return super().__call__(draft, target_probs, noise)


class Cleans(Spoiled):
    """Replaces what is not finite where it stands."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        return super().__call__(draft, target_probs.nan_to_num_(), noise)


class MarksDraft(Spoiled):
    """Writes zero for what was rejected."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        verdict = super().__call__(draft, target_probs, noise)
        if draft.probs is not None and draft.tokens.shape[1]:
            rejected = torch.arange(draft.tokens.shape[1]) >= verdict.accepted[:, None]
            draft.probs.masked_fill_(rejected[..., None], 0)
        return verdict


class MovesOn(Spoiled):
    """Counts the positions of the noise on."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        verdict = super().__call__(draft, target_probs, noise)
        noise.first.add_(verdict.accepted + 1)
        return verdict


@dataclass(frozen=True)
class StepsRace(Verifier):
    """Coupled by its own account, but its noise begins again in every step."""

    lossless = True
    coupled = True

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        tokens = exponential_race(
            target_probs, noise.keys, torch.zeros_like(noise.first) + noise.first % 2
        )
        return Verdict(tokens, leading(draft.tokens == tokens[:, :-1], draft.lengths))


@dataclass(frozen=True)
class OwnNoise(Verifier):
    """Coupled by its own account, and draws with the noise of steps."""

    lossless = True
    coupled = True

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        tokens = draw(target_probs, noise.residual[:, : target_probs.shape[1]])
        return Verdict(tokens, leading(draft.tokens == tokens[:, :-1], draft.lengths))


@pytest.mark.parametrize(
    ("verifier", "law"),
    [
        night(Boundary, verifiers.BEYOND),
        night(SeesBeyond, verifiers.BEYOND),
        night(BonusOfTheDraft, verifiers.LAW),
        night(DraftsUniform, verifiers.LAW),
        night(AcceptsAll, verifiers.LAW),
        night(Crowded, verifiers.LAW),
        night(FarBias, verifiers.LAW),
        night(Random, verifiers.SAME),
        night(LeavesLengthsOut, verifiers.COUNTS),
        night(ByTheMinimum, verifiers.MATES),
        night(OfThePlace, verifiers.MATES),
        (Narrow, verifiers.SHAPES),
        night(Shifted, verifiers.PREFIX),
        (InPlace, verifiers.LEAVES),
        night(Cleans, verifiers.LEAVES),
        night(MarksDraft, verifiers.LEAVES),
        (MovesOn, verifiers.LEAVES),
        night(OwnNoise, verifiers.SEED),
        night(StepsRace, verifiers.SEED),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_verifier_that_breaks_a_law_is_told_which_and_where(verifier: type, law: str) -> None:
    broken = laws_broken(check_verifier, verifier, examples=30)
    assert broken.law == law
    assert len(broken.case) < 700


@pytest.mark.nightly
def test_with_its_breakpoints_a_verifier_is_judged_without_chance() -> None:
    check_verifier(Spoiled, rejection_cuts, examples=4)
    broken = laws_broken(check_verifier, AcceptsAll, rejection_cuts, examples=10)
    assert broken.law == verifiers.LAW
    assert "total variation" not in broken.found
    assert (
        laws_broken(check_verifier, Spoiled, exact_match_cuts, examples=10).law == verifiers.BOXES
    )
    with pytest.raises(OptionError, match="leave it out"):
        check_verifier("coupled", rejection_cuts)
    with pytest.raises(OptionError, match="`examples=0` must be an integer of 1 or more"):
        check_verifier(Spoiled, examples=0)


@pytest.mark.nightly
def test_with_its_breakpoints_a_bias_of_late_tokens_is_found() -> None:
    assert laws_broken(check_verifier, LateBias, rejection_cuts, examples=30).law == verifiers.LAW


class InEightBits(Drafter):
    """Token 1, in eight bits."""

    def propose(self, sequences: Any, lengths: Any, k: int, noise: Any, span: int) -> Draft:
        tokens = torch.ones(len(lengths), k, dtype=torch.int8, device=lengths.device)
        return Draft(tokens, None, lengths.to(torch.int16))


@pytest.mark.nightly
def test_what_the_broken_ones_were_made_from_breaks_no_law() -> None:
    check_drafter(InEightBits, examples=2)
    check_drafter(Model, examples=2)
    check_drafter(BatchWide, examples=2)
    check_verifier(Spoiled, examples=2)
