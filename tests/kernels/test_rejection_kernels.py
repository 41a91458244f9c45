"""Tier 3: draws, verdicts and log-probabilities by kernels equal their twins in torch, and keep the
laws of these.
"""

import itertools

import numpy as np
import pytest
import torch

from bass.interfaces import Verifier
from bass.kernels.triton import rejection_sampling
from bass.kernels.triton import sampling as kernels
from bass.ops import dispatch
from bass.ops.sampling import draw, token_logprobs
from bass.records import Draft, Noise, Verdict
from bass.testing.enumeration import Problem, output_laws, rejection_cuts
from bass.verifiers.rejection import Rejection
from kernels.test_sampling_kernels import generator, rows_of_logits

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.fixture(autouse=True)
def twins(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU too, the functions that choose between kernels and torch are the twins here."""
    monkeypatch.setattr(dispatch, "use_kernels", lambda x: False)


def uniforms(*shape: int, seed: int) -> torch.Tensor:
    return torch.rand(shape, generator=generator(seed), dtype=torch.float64)


@pytest.mark.usefixtures("cut")
def test_log_probabilities_equal_their_twin(device: torch.device) -> None:
    for dtype, vocab in zip(DTYPES, (131, 3, 70), strict=True):
        logits = rows_of_logits(vocab, dtype, device).repeat(1, 2, 1)
        tokens = torch.randint(vocab, (5, 2), generator=generator(2)).to(device)
        tokens[3] = vocab // 2
        torch.testing.assert_close(
            kernels.token_logprobs(logits, tokens),
            token_logprobs(logits, tokens),
            rtol=2e-6,
            atol=2e-6,
        )


def test_what_is_not_a_number_has_no_log_probability(device: torch.device) -> None:
    """The engine refuses such logits by it."""
    logits = torch.zeros(4, 1, 100, device=device)
    logits[0, 0, 70], logits[1], logits[2, 0, 3] = torch.nan, -torch.inf, torch.inf
    tokens = torch.tensor([[5], [5], [5], [100]], device=device)
    with np.errstate(all="ignore"):  # the interpreter's, which would warn
        assert kernels.token_logprobs(logits, tokens).isnan().all()


def assert_drawn(
    tokens: torch.Tensor, probs: torch.Tensor, uniform: torch.Tensor, tolerance: float = 1e-12
) -> None:
    """The token's own part of the running sum holds the threshold."""
    upto = probs.double().cumsum(-1)
    own, total = probs.double().gather(-1, tokens[..., None])[..., 0], upto[..., -1]
    upto, threshold = upto.gather(-1, tokens[..., None])[..., 0], uniform * total
    assert (own > 0).all()
    assert (threshold <= upto + tolerance * total).all()
    assert (threshold >= upto - own - tolerance * total).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.usefixtures("cut")
def test_a_draw_is_the_inverse_of_the_distribution_function(
    dtype: torch.dtype, device: torch.device
) -> None:
    """At the outermost uniforms too, with zeros at both ends, and whole chunks of them."""
    for vocab in (1, 3, 131):
        probs = torch.rand(6, vocab, generator=generator(3), dtype=torch.float64) + 1e-3
        probs[1:, ::2] = 0 if vocab > 1 else 1
        probs[2, : vocab - 2] = 0
        probs[3, 40:] = 0
        uniform = torch.cat(
            (uniforms(4, seed=4), torch.tensor([0.5 / 2**32, 1 - 0.5 / 2**32], dtype=torch.float64))
        )
        probs, uniform = (probs * 7).to(device, dtype), uniform.to(device)
        tokens = rejection_sampling.draw(probs, uniform)
        assert_drawn(tokens, probs, uniform)
        assert torch.equal(tokens, draw(probs, uniform))


def test_a_draw_at_the_edge_of_a_cell_belongs_to_the_cell_above(device: torch.device) -> None:
    probs = torch.tensor([[1.0, 0.0, 1.0, 2.0]], device=device).expand(5, 4)
    uniform = torch.tensor([0.0, 0.25, 0.5, 0.75, 0.24], dtype=torch.float64, device=device)
    assert rejection_sampling.draw(probs, uniform).tolist() == [0, 2, 3, 3, 0]
    assert rejection_sampling.draw(torch.zeros(5, 4, device=device), uniform).tolist() == [3] * 5


@pytest.mark.parametrize(
    "deterministic", [False, True], ids=["sampled drafts", "deterministic drafts"]
)
@pytest.mark.parametrize("k", [0, 1, 5])
@pytest.mark.usefixtures("cut")
def test_a_verdict_equals_its_twin(k: int, deterministic: bool, device: torch.device) -> None:
    """Every length in one batch, likely drafts beyond it too, probabilities of zero, a target that
    is the draft.
    """
    batch, vocab = 8, 70
    target, probs = (
        torch.rand(batch, n, vocab, generator=generator(n)).pow(40) for n in (k + 1, k)
    )
    target[1::3, :, ::2], probs[1::3, :, 5:] = 0, 0
    target[::2, :k] += probs[::2]
    target[3, :k] = probs[3]
    target, probs = (x / x.sum(2, keepdim=True) for x in (target, probs))
    lengths = torch.arange(batch) % (k + 1)
    # Likely drafts, so that verdicts end everywhere.
    best = (target[:, :k] if deterministic else torch.minimum(target[:, :k], probs)).argmax(2)
    tokens = torch.where(
        uniforms(batch, k, seed=6) < 0.8,
        best,
        torch.randint(vocab, (batch, k), generator=generator(7)),
    )
    noise = Noise(torch.arange(batch), torch.arange(batch), uniforms(batch, k + 1, 4, seed=8))
    noise.uniforms[::2, :, 1] *= 0.2
    noise = Noise(*(x.to(device) for x in (noise.keys, noise.first, noise.uniforms)))
    draft = Draft(
        tokens.to(device), None if deterministic else probs.to(device), lengths.to(device)
    )
    expected = Rejection()(draft, target.to(device), noise)
    found = ByKernel()(draft, target.to(device), noise)
    assert torch.equal(found.accepted, expected.accepted)
    own = torch.arange(k + 1, device=device) <= expected.accepted[:, None]
    assert torch.equal(found.tokens * own, expected.tokens * own)
    assert len(expected.accepted.unique()) > min(k, 2)


def test_where_target_and_draft_agree_the_next_token_is_the_targets(device: torch.device) -> None:
    """A uniform of 1 refuses a sure token, and leaves a residual of nothing."""
    probs = torch.rand(3, 1, 40, generator=generator(9)).to(device)
    tokens, accept = (
        torch.full((3, 1), 7, device=device),
        torch.ones(3, 1, dtype=torch.float64, device=device),
    )
    residual = uniforms(3, 2, seed=10).to(device)
    found, accepted = rejection_sampling.verdict(
        tokens, probs, tokens[:, 0] * 0 + 1, probs.repeat(1, 2, 1), accept, residual
    )
    assert accepted.tolist() == [0, 0, 0]
    assert_drawn(found[:, 0], probs[:, 0], residual[:, 0])


class ByKernel(Verifier):
    """`Rejection`, by its kernel on every device."""

    lossless = True

    def __call__(self, draft: Draft, target_probs: torch.Tensor, noise: Noise) -> Verdict:
        k = draft.tokens.shape[1]
        return Verdict(
            *rejection_sampling.verdict(
                draft.tokens,
                draft.probs,
                draft.lengths,
                target_probs,
                noise.accept[:, :k],
                noise.residual,
            )
        )


@pytest.mark.parametrize(
    "deterministic", [False, True], ids=["sampled drafts", "deterministic drafts"]
)
def test_the_output_law_of_the_kernel_is_the_targets(
    deterministic: bool, device: torch.device
) -> None:
    """Tier 0, in float64, where the kernel is exact: lengths 0, 1 and 2 in a batch, with
    probabilities of zero.
    """
    random = np.random.default_rng(11)

    def drawn(length: int) -> Problem:
        prefixes = [p for n in range(length + 1) for p in itertools.product(range(2), repeat=n)]
        target, draft = ({p: random.dirichlet((1, 1)) for p in prefixes} for _ in range(2))
        draft[()], target[0,] = np.array([0.3, 0.7]), np.array([0.0, 1.0])
        return Problem(
            2,
            length,
            target,
            draft,
            tuple(random.integers(0, 2, length).tolist()) if deterministic else None,
        )

    rows = [drawn(length) for length in (0, 1, 2)]
    for problem, law in zip(
        rows, output_laws(ByKernel(), rows, 2, device, rejection_cuts), strict=True
    ):
        np.testing.assert_allclose(law, problem.target_law(), rtol=0, atol=1e-12)
