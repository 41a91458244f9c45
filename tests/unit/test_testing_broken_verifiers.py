"""`check_verifier` finds verifiers that violate a property, in a verdict or over several steps."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from bass.errors import OptionError
from bass.interfaces import Verifier
from bass.ops.batch_state import leading
from bass.ops.noise import exponentials, step_noise
from bass.ops.sampling import draw
from bass.ops.verification import accept_probs, emit, next_probs, target_after
from bass.records import Draft, Noise, Verdict
from bass.testing import check_verifier
from bass.testing import properties_of_verifiers as verifiers
from bass.testing.checking import NO_ERROR
from bass.testing.enumeration import exact_match_cuts, rejection_cuts
from bass.verifiers.block import Block
from bass.verifiers.rejection import Rejection
from support.matrix import night
from unit.test_testing_broken_drafters import violation

pytestmark = pytest.mark.usefixtures("unchecked")


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


def spoilt(name: str, call: Any) -> type[Spoiled]:
    """A verifier that judges by `call(draft, target_probs, noise)`."""
    return type(name, (Spoiled,), {"__call__": lambda self, *given: call(*given)})


def by_uniforms(name: str, change: Any) -> type[Spoiled]:
    """Rejection with other uniforms [batch, window, stream]: draft, accept, residual, spare."""

    def call(draft: Any, probs: Any, noise: Any) -> Verdict:
        return Rejection()(draft, probs, replace(noise, uniforms=change(noise)))

    return spoilt(name, call)


def changed(name: str, change: Any) -> type[Spoiled]:
    """The verdict of rejection, then changed by `change(verdict, draft, target_probs, noise)`."""
    return spoilt(name, lambda *given: change(Rejection()(*given), *given))


ACCEPT = torch.arange(4) == 1  # the stream


def more_late(noise: Any) -> Tensor:
    late = torch.arange(noise.uniforms.shape[1]) >= 3
    return torch.where(late[:, None] & ACCEPT, noise.uniforms / 2, noise.uniforms)


def bonus_of_the_draft(verdict: Any, draft: Any, probs: Any, noise: Any) -> Verdict:
    """After a row's whole draft, the next token comes from the distribution of its last one."""
    after = target_after(probs, (verdict.accepted - 1).clamp(min=0))
    return emit(draft, verdict.accepted, after, noise)


def leaves_lengths_out(draft: Any, probs: Any, noise: Any) -> Verdict:
    full = torch.full_like(draft.lengths, draft.tokens.shape[1])
    return Rejection()(replace(draft, lengths=full), probs, noise)


def of_the_place(draft: Any, probs: Any, noise: Any) -> Verdict:
    """Rejects everything in every other row, and draws from the target there, which is lossless in
    itself.
    """
    lengths = draft.lengths * (torch.arange(len(draft.lengths)) % 2 == 0)
    return Rejection()(replace(draft, lengths=lengths), probs, noise)


DraftsUniform = by_uniforms("DraftsUniform", lambda noise: noise.uniforms[..., [0, 1, 0, 3]])
LateBias = by_uniforms("LateBias", more_late)
Random = by_uniforms("Random", lambda noise: torch.rand_like(noise.uniforms))
BonusOfTheDraft = changed("BonusOfTheDraft", bonus_of_the_draft)
AcceptsAll = spoilt(
    "AcceptsAll", lambda d, p, noise: emit(d, d.lengths, target_after(p, d.lengths), noise)
)
LeavesLengthsOut = spoilt("LeavesLengthsOut", leaves_lengths_out)
OfThePlace = spoilt("OfThePlace", of_the_place)
Narrow = changed("Narrow", lambda v, *_: replace(v, tokens=v.tokens[:, :-1]))
InPlace = spoilt("InPlace", lambda d, p, noise: Rejection()(d, p.div_(2), noise))


@dataclass(frozen=True)
class OwnNoise(Verifier):
    """Coupled by its own account, and draws with the noise of steps."""

    lossless = True
    coupled = True

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        tokens = draw(target_probs, noise.residual[:, : target_probs.shape[1]])
        return Verdict(tokens, leading(draft.tokens == tokens[:, :-1], draft.lengths))


@dataclass(frozen=True)
class OneNoise(Verifier):
    """Exact match with noise of the row's key: the same in every `period` steps."""

    lossless: ClassVar[bool] = True
    judges_jointly: ClassVar[bool] = False
    period: ClassVar[int] = 1

    def __call__(self, draft: Draft, target_probs: Any, noise: Noise) -> Verdict:
        turn, window = noise.first % self.period, target_probs.shape[1]
        own = step_noise(noise.keys, turn, noise.first, window - 1)
        tokens = draw(target_probs, own.residual[:, :window])
        return Verdict(tokens, leading(draft.tokens == tokens[:, :-1], draft.lengths))


@dataclass(frozen=True)
class ByPosition(Verifier):
    """Block, with noise of positions: the next step uses that of rejected tokens again."""

    lossless: ClassVar[bool] = True

    def __call__(self, draft: Draft, target_probs: Any, noise: Noise) -> Verdict:
        batch, window = target_probs.shape[:2]
        own = exponentials(noise.keys, noise.first, window, 1).neg().exp()
        uniforms = noise.uniforms.clone()
        uniforms[:, :window, 1] = own.reshape(batch, window)
        return Block()(draft, target_probs, Noise(noise.keys, noise.first, uniforms))


@dataclass(frozen=True)
class Remembers(Spoiled):
    """Keeps the noise of the step before, and takes it again in rows that went on."""

    kept: list[Noise] = field(default_factory=list)

    def __call__(self, draft: Draft, target_probs: Any, noise: Noise) -> Verdict:
        fits = self.kept and self.kept[0].uniforms.shape == noise.uniforms.shape
        old = self.kept[0] if fits else noise
        went_on = ((old.keys == noise.keys) & (old.first < noise.first))[:, None, None]
        uniforms = torch.where(went_on, old.uniforms, noise.uniforms)
        self.kept[:] = [Noise(noise.keys.clone(), noise.first.clone(), noise.uniforms.clone())]
        return super().__call__(draft, target_probs, Noise(noise.keys, noise.first, uniforms))


@pytest.mark.parametrize(
    ("verifier", "property"),
    [
        night(Boundary, verifiers.BEYOND),
        night(BonusOfTheDraft, verifiers.LAW),
        night(DraftsUniform, verifiers.LAW),
        night(AcceptsAll, verifiers.LAW),
        night(Random, verifiers.SAME),
        night(LeavesLengthsOut, verifiers.COUNTS),
        night(OfThePlace, verifiers.MATES),
        (Narrow, NO_ERROR),
        (InPlace, verifiers.LEAVES),
        night(OwnNoise, verifiers.SEED),
        night(OneNoise, verifiers.RUN_LAW),
        night(ByPosition, verifiers.RUN_LAW),
        night(Remembers, verifiers.RUN_MATES),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_the_check_names_the_property_that_a_verifier_violates(
    verifier: type, property: str
) -> None:
    broken = violation(check_verifier, verifier, examples=30)
    assert broken.property == property
    assert len(broken.case) < 700


@pytest.mark.nightly
def test_with_its_breakpoints_a_verifier_is_judged_without_chance() -> None:
    check_verifier(Spoiled, rejection_cuts, examples=4)
    broken = violation(check_verifier, AcceptsAll, rejection_cuts, examples=10)
    assert broken.property == verifiers.LAW
    assert "total variation" not in broken.found
    assert (
        violation(check_verifier, Spoiled, exact_match_cuts, examples=10).property
        == verifiers.BOXES
    )
    with pytest.raises(OptionError, match=r"examples=0` is out of range: give an integer in"):
        check_verifier(Spoiled, examples=0)


@pytest.mark.nightly
def test_with_its_breakpoints_a_bias_of_late_tokens_is_found() -> None:
    assert (
        violation(check_verifier, LateBias, rejection_cuts, examples=30).property == verifiers.LAW
    )


def lossy(name: str, change: Any) -> Any:
    """Accepts every drafted token that the target may emit, and says that it is not lossless."""

    def call(self: Any, draft: Any, probs: Any, noise: Any) -> Verdict:
        possible = probs[:, :-1].gather(2, draft.tokens[..., None])[..., 0] > 0
        accepted = leading(possible, draft.lengths)
        return change(emit(draft, accepted, target_after(probs, accepted), noise), draft)

    return type(name, (Spoiled,), {"__call__": call, "lossless": False})


def one_more(verdict: Any, draft: Any) -> Verdict:
    most = draft.tokens.shape[1]
    return replace(verdict, accepted=(verdict.accepted + 1).clamp(max=most))


def test_a_lossy_verifier_is_checked_for_all_but_its_distribution() -> None:
    check_verifier(lossy("Sound", lambda verdict, draft: verdict), examples=2)
    broken = violation(check_verifier, lossy("Broken", one_more), examples=6)
    assert broken.property == verifiers.COUNTS
