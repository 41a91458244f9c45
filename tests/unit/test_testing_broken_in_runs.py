"""The public kit finds out verifiers whose every verdict is right by itself, and whose output over
several steps is not.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch

from bass.interfaces import Verifier
from bass.ops.batch_state import leading
from bass.ops.noise import exponentials, step_noise
from bass.ops.sampling import draw
from bass.records import Draft, Noise, Verdict
from bass.testing import check_verifier, laws_of_verified_runs, proof
from bass.testing.enumeration import rejection_cuts
from bass.verifiers.block import Block
from bass.verifiers.rejection import Rejection
from support.matrix import night
from unit.test_testing_broken_drafters import laws_broken

pytestmark = pytest.mark.usefixtures("unchecked")


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


class EveryThird(OneNoise):
    """The noise of three steps before."""

    period = 3


@dataclass(frozen=True)
class Correct(Verifier):
    """Rejection, to be spoilt."""

    lossless: ClassVar[bool] = True

    def __call__(self, draft: Draft, target_probs: Any, noise: Noise) -> Verdict:
        return Rejection()(draft, target_probs, noise)


class Doubtful(Correct):
    """Rejection with noise of the row's key: the same in every step."""

    def __call__(self, draft: Draft, target_probs: Any, noise: Noise) -> Verdict:
        own = step_noise(noise.keys, 0 * noise.first, noise.first, target_probs.shape[1] - 1)
        return super().__call__(draft, target_probs, own)


class DoubtfulOfTheCertain(Doubtful):
    """The same, with deterministic drafts alone."""

    def __call__(self, draft: Draft, target_probs: Any, noise: Noise) -> Verdict:
        if draft.probs is None and draft.tokens.shape[1]:
            return super().__call__(draft, target_probs, noise)
        return Rejection()(draft, target_probs, noise)


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
class Remembers(Correct):
    """Keeps the noise of the step before, and takes it again in rows that went on."""

    kept: list[Noise] = field(default_factory=list)

    def __call__(self, draft: Draft, target_probs: Any, noise: Noise) -> Verdict:
        fits = self.kept and self.kept[0].uniforms.shape == noise.uniforms.shape
        old = self.kept[0] if fits else noise
        went_on = ((old.keys == noise.keys) & (old.first < noise.first))[:, None, None]
        uniforms = torch.where(went_on, old.uniforms, noise.uniforms)
        self.kept[:] = [Noise(noise.keys.clone(), noise.first.clone(), noise.uniforms.clone())]
        return super().__call__(draft, target_probs, Noise(noise.keys, noise.first, uniforms))


class InFloat64(Correct):
    """Works in the precision of the kit's own problems alone."""

    def __call__(self, draft: Draft, target_probs: Any, noise: Noise) -> Verdict:
        assert target_probs.dtype == torch.float64
        return super().__call__(draft, target_probs, noise)


@dataclass(frozen=True)
class EveryFourth(Verifier):
    """Coupled, and every fourth position has the same noise: plain decoding has it too."""

    lossless: ClassVar[bool] = True
    coupled: ClassVar[bool] = True

    def __call__(self, draft: Draft, target_probs: Any, noise: Noise) -> Verdict:
        window, vocab = target_probs.shape[1:]
        raced = exponentials(noise.keys, 0 * noise.first, 4, vocab)
        places = (noise.first[:, None] + torch.arange(window)) % 4
        own = raced.gather(1, places[..., None].expand(-1, -1, vocab))
        tokens = (own / target_probs).argmin(2)
        return Verdict(tokens, leading(draft.tokens == tokens[:, :-1], draft.lengths))


@pytest.mark.parametrize(
    ("verifier", "law"),
    [
        night(OneNoise, laws_of_verified_runs.LAW),
        night(EveryThird, laws_of_verified_runs.LAW),
        night(Doubtful, laws_of_verified_runs.LAW),
        night(DoubtfulOfTheCertain, laws_of_verified_runs.LAW),
        night(ByPosition, laws_of_verified_runs.LAW),
        night(Remembers, laws_of_verified_runs.MATES),
        night(InFloat64, proof.NO_ERROR),
        night(EveryFourth, laws_of_verified_runs.LAW),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_verifier_that_is_right_in_each_step_alone_is_found_out_in_a_run(
    verifier: type, law: str
) -> None:
    assert laws_broken(check_verifier, verifier, examples=12).law == law


@pytest.mark.nightly
def test_breakpoints_do_not_spare_a_verifier_the_run() -> None:
    broken = laws_broken(check_verifier, InFloat64, rejection_cuts, examples=4)
    assert broken.law == proof.NO_ERROR
    check_verifier(Correct, rejection_cuts, examples=4)
