"""Tier 3: with every kernel in its place, the engine emits the tokens that it emits with torch."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from bass.attention import BACKENDS, ON_CUDA
from bass.caches import CACHES
from bass.engine.requests import Request
from bass.interfaces import Drafter, Verifier
from bass.kernels.triton import rejection_sampling, sampling
from bass.ops.noise import row_key
from bass.policies import Fixed
from bass.records import Draft, Noise, Sequences, Verdict
from bass.sampling_params import Sampling
from bass.testing.doubles import OwnPast
from bass.testing.small_models import SmallLlama, SmallTable
from bass.verifiers import VERIFIERS
from bass.verifiers.rejection import Rejection
from kernels.conftest import Choose
from support.engines import By, RunOutput, Setup, mixed_requests
from support.matrix import matrix

WARPS = {"greedy": Sampling(0), "plain": Sampling(1), "cut": Sampling(0.9, 9, 0.95, 0.01)}
PAIRINGS = {
    cache: (CACHES[cache], BACKENDS[backend])
    for cache in CACHES
    for backend in ON_CUDA
    if CACHES[cache].view_type is BACKENDS[backend].view_type  # type: ignore[attr-defined]
}
TABLE = SmallTable()


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """For vocabularies of a few tokens: rows of two chunks, found in few launches."""
    for module, name, value in (
        (sampling, "CHUNK", 4),
        (sampling, "PART", 2),
        (sampling, "TILE", 4),
        (sampling, "BITS", 8),
        (rejection_sampling, "CHUNK", 4),
    ):
        monkeypatch.setattr(module, name, value)


def assert_alike(ours: RunOutput, theirs: RunOutput) -> None:
    """All that a run tells but spans, which are of the layout; on a GPU more columns are drafted
    than rows use.
    """
    assert ours.tokens == theirs.tokens
    assert ours.done == theirs.done
    for mine, other in zip(ours.logprobs, theirs.logprobs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)
    for mine, other in zip(ours.steps, theirs.steps, strict=True):
        for name in ("k", "drafted", "accepted", "emitted"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(other, name))
        assert mine.draft_tokens is not None
        assert other.draft_tokens is not None
        for row, count in enumerate(mine.drafted):
            np.testing.assert_array_equal(
                mine.draft_tokens[row, :count], other.draft_tokens[row, :count]
            )
            np.testing.assert_allclose(
                mine.draft_probs[row, :count], other.draft_probs[row, :count], rtol=1e-4
            )  # type: ignore[index]


@matrix(
    strength=1,
    drafter=("model", "ngram", "ensemble", "model that stops", "replay"),
    verifier=VERIFIERS,
    warp=WARPS,
)
def test_a_step_by_kernels_emits_what_a_step_by_torch_does(
    drafter: str, verifier: str, warp: str, kernels: Choose, device: torch.device
) -> None:
    """Over tables, so that everything but the models' passes is a kernel: rows, noise, warp, draws,
    verdict, report.
    """
    setup = Setup(
        TABLE,
        device,
        policy=OwnPast(),
        drafter=drafter,
        verifier=VERIFIERS[verifier](),
        warp=WARPS[warp],
        eos=(3,),
    )
    outcomes = []
    for on in (True, False):
        kernels(on)
        outcomes.append(setup.outcome(mixed_requests(TABLE, count=3, longest=6)))
    assert_alike(*outcomes)
    assert outcomes[0].acceptance()[0] > 0


@pytest.mark.usefixtures("small_buckets")
@matrix(
    strength=1,
    cache=CACHES,
    drafter=("self", "model", "ngram"),
    verifier=("rejection", "typical", "block"),
    warp=("plain", "greedy"),
)
def test_a_pair_by_kernels_emits_what_it_does_by_torch(
    cache: str, drafter: str, verifier: str, warp: str, kernels: Choose, device: torch.device
) -> None:
    """Blocks, attention, cache, and the whole step; and two blocks of a row's cache, where it has
    blocks.
    """
    world = SmallLlama(layers=2 if drafter == "self" else 1)
    requests = [
        Request(prompt, len(prompt) + new, row_key(1, prompt, 0))
        for prompt, new in (([3, 1, 3], 2), ([9], 3))
    ]
    outcomes = []
    for on in (True, False):
        kernels(on)
        pairing = PAIRINGS[cache] if on else (CACHES["padded"], BACKENDS["sdpa"])
        setup = Setup(
            world, device, pairing, Fixed(2), drafter, VERIFIERS[verifier](), WARPS[warp], batch=2
        )
        outcomes.append(setup.outcome(requests))
    assert_alike(*outcomes)
    assert outcomes[0].acceptance()[0] > 0


@dataclass(frozen=True)
class Strided(Drafter):
    """Draws uniformly, and gives tensors of any kind that says so: narrow integers, columns,
    transposes, one value for all.
    """

    vocab: int
    alike: bool

    def propose(
        self, sequences: Sequences, lengths: torch.Tensor, k: int, noise: Noise, span: int
    ) -> Draft:
        tokens = (noise.draft[:, :k] * self.vocab).to(torch.int32).T.contiguous().T
        probs = torch.full(
            (1, 1, 1), 1 / self.vocab, device=tokens.device, dtype=torch.float64
        ).expand(*tokens.shape, self.vocab)
        columns = torch.stack((lengths, lengths + 90), 1).to(torch.int32)
        return Draft(
            tokens,
            probs,
            torch.full((1,), 2, device=tokens.device).expand(len(lengths))
            if self.alike
            else columns[:, 0],
        )


@dataclass(frozen=True)
class StridedVerdicts(Verifier):
    """Rejection's, in narrow integers, as columns and transposes."""

    lossless: ClassVar[bool] = True

    def __call__(self, draft: Draft, target_probs: torch.Tensor, noise: Noise) -> Verdict:
        verdict = Rejection()(
            draft, target_probs.transpose(0, 1).contiguous().transpose(0, 1), noise
        )
        counts = torch.stack((verdict.accepted, verdict.accepted + 90), 1).to(torch.int32)
        return Verdict(verdict.tokens.to(torch.int32).T.contiguous().T, counts[:, 0])


@pytest.mark.parametrize("alike", [True, False])
def test_what_a_drafter_and_a_verifier_give_may_have_any_strides_and_integers(
    alike: bool, kernels: Choose, device: torch.device
) -> None:
    setup = Setup(TABLE, device, policy=Fixed(2), verifier=StridedVerdicts(), warp=WARPS["plain"])
    setup = setup.but(drafter=By(Strided(TABLE.vocab, alike)))
    plain = setup.but(verifier=Rejection())
    kernels(False)
    expected = plain.outcome(mixed_requests(TABLE, count=5, longest=6))
    for on in (True, False):
        kernels(on)
        assert_alike(setup.outcome(mixed_requests(TABLE, count=5, longest=6)), expected)
    assert 0 < expected.acceptance()[1] < expected.acceptance()[0]
