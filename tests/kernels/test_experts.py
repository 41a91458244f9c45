"""Tier 3: kernels of a mixture of experts equal torch, one expert after the other."""

import pytest
import torch

from bass.kernels.triton import experts as grouped
from bass.ops import experts as mixtures
from bass.ops.activation import ACTIVATIONS
from bass.ops.linear import Linear
from bass.ops.norms import RMSNorm
from bass.ops.residual import Residual
from kernels.conftest import Choose
from support.matrix import matrix

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
# rows, experts, chosen, hidden, inner
SHAPES = [
    (1, 8, 2, 64, 96),
    (5, 6, 3, 40, 24),
    (4, 16, 3, 40, 24),
    (3, 1, 1, 32, 16),
    (20, 3, 2, 32, 16),
    (37, 50, 2, 32, 16),
    (40, 4, 4, 64, 70),
    (90, 3, 2, 48, 32),
]


def layer(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, act: str = "silu"
) -> mixtures.Experts:
    """With biases where the ups are limited, too, as in gpt-oss."""
    _, count, chosen, hidden, inner = shape
    made = mixtures.Experts(
        count, chosen, hidden, inner, ACTIVATIONS[act], True, device, dtype, act != "silu"
    ).requires_grad_(False)
    torch.manual_seed(0)
    for parameter in made.parameters():
        parameter.copy_(torch.randn(parameter.shape) * 0.2)
    return made


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("parts", [1, 3])
def test_each_row_chooses_its_largest_logits(
    normalised: bool, parts: int, device: torch.device
) -> None:
    torch.manual_seed(0)
    logits = torch.randn(parts, 9, 13, device=device)
    logits[:, 1] = 0.0  # all equal: the first ones
    logits[:, 2, 7] = float("nan")  # a row that is nobody's
    found = grouped.route(logits, 4, normalised, torch.float32)
    experts, weights = mixtures.choose(logits.sum(0), 4, normalised)
    sound = [0, 1, *range(3, 9)]
    assert torch.equal(found.experts[sound].long(), experts[sound])
    assert torch.allclose(found.weights[sound], weights[sound], atol=1e-6)
    assert found.experts[1].tolist() == [0, 1, 2, 3]
    assert found.experts.min() >= 0
    assert found.experts.max() < 13
    total = found.weights[sound].sum(1)
    assert torch.allclose(total, torch.ones_like(total), atol=1e-5) == normalised


@pytest.mark.parametrize("pairs", [1, 2, 33, 200])
@pytest.mark.parametrize("size", [4, 16])
def test_a_block_has_pairs_of_one_expert_and_every_pair_is_in_one(
    pairs: int, size: int, device: torch.device
) -> None:
    torch.manual_seed(pairs)
    chosen = torch.randint(0, 7, (pairs, 1), device=device, dtype=torch.int32)
    chosen[chosen == 3] = 2  # nobody's expert
    blocks = grouped.align(chosen, 7, size)
    assert sorted(blocks.pairs[blocks.pairs >= 0].tolist()) == list(range(pairs))
    for expert, block in zip(blocks.experts.tolist(), blocks.pairs.tolist(), strict=True):
        inside = [pair for pair in block if pair >= 0]
        assert (expert < 0) == (not inside)
        assert all(chosen[pair] == expert for pair in inside)


@matrix(
    dtype=TOLERANCE, shape=SHAPES, tiles=[(True, "silu"), (False, "silu"), (True, "clamped_silu")]
)
def test_the_experts_outputs_equal_those_of_torch(
    shape: tuple[int, ...], dtype: torch.dtype, tiles: tuple[bool, str], device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    few, act = tiles
    tile = grouped.Tile(32, 32, 2, 4) if few else grouped.Tile(64, 32, 2, 4)
    monkeypatch.setattr(grouped, "tiles_for", lambda *_: (tile, tile))
    monkeypatch.setattr(grouped, "FEW", 64 if few else 0)
    experts = layer(shape, dtype, device, act)
    x = 3 * torch.randn(shape[0], shape[3], device=device).to(dtype)
    logits = torch.randn(shape[0], shape[1], device=device)
    logits[:, 0] += 4  # nearly all rows choose it
    choice = grouped.route(logits[None], shape[2], True, torch.float32)
    biases = experts.gate_up_bias, experts.down_bias
    found = grouped.experts(x, choice, experts.gate_up, experts.down, shape[1], act, *biases)
    assert found.shape == (shape[2], *x.shape)
    wide = layer(shape, torch.float64, device, act)
    for ours, theirs in zip(wide.parameters(), experts.parameters(), strict=True):
        ours.copy_(theirs)
    expected = mixtures.weighted_sum(x.double(), logits.double(), wide)
    assert (found.sum(0).double() - expected).norm() <= TOLERANCE[dtype] * expected.norm()


def test_a_rows_output_does_not_depend_on_the_other_rows(device: torch.device) -> None:
    experts = layer((1, 6, 2, 64, 32), torch.float32, device)
    x, logits = torch.randn(7, 64, device=device), torch.randn(1, 7, 6, device=device)

    def outputs(rows: slice) -> torch.Tensor:
        choice = grouped.route(logits[:, rows].contiguous(), 2, True, torch.float32)
        return grouped.experts(x[rows], choice, experts.gate_up, experts.down, 6, "silu")

    assert torch.equal(outputs(slice(0, 7))[:, 3:4], outputs(slice(3, 4)))


def test_a_mixture_is_partial_sums_that_the_residual_stream_adds(
    kernels: Choose, device: torch.device
) -> None:
    experts = layer((5, 6, 2, 64, 32), torch.float32, device)
    router = Linear(64, 6, device, torch.float32).requires_grad_(False)
    norm = RMSNorm(64, 1e-6, device, torch.float32).requires_grad_(False)
    for parameter in (router.weight, norm.weight):
        parameter.copy_(torch.randn(parameter.shape))
    x = torch.randn(1, 5, 64, device=device)
    found = []
    for on in (False, True):
        kernels(on)
        added = mixtures.Mixture(Residual(x).normed(norm), router, experts)
        assert added.by_kernel == on
        assert len(added.partial_sums()) == (2 if on else 1)
        assert torch.allclose(added.partial_sums().sum(0).view_as(x), added.tensor(), atol=1e-5)
        found.append(Residual(x).plus(added).normed(norm).tensor())
    assert torch.allclose(*found, atol=1e-5)


def test_the_experts_finish_the_norm_of_their_input(device: torch.device) -> None:
    experts = layer((5, 6, 2, 64, 32), torch.float32, device)
    x, logits = torch.randn(5, 64, device=device), torch.randn(1, 5, 6, device=device)
    squares = x.view(5, 4, 16).square().sum(2).T.contiguous()
    finished = x * torch.rsqrt(x.square().mean(1, keepdim=True) + 0.5)
    found = []
    for rows, norm in ((finished, ()), (x, (squares, 64, 0.5))):
        choice = grouped.route(logits, 2, True, torch.float32, *norm)
        weights = experts.gate_up, experts.down
        found.append(grouped.experts(rows, choice, *weights, 6, "silu"))
    assert torch.allclose(*found, atol=1e-5)
