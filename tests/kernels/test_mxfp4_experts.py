"""Tier 3: experts in MXFP4 compute what their dequantized copies compute."""

from typing import no_type_check

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from bass.kernels.triton import experts as grouped
from bass.kernels.triton import mxfp4
from bass.kernels.triton.launch import operand
from bass.ops import experts as mixtures
from bass.ops.activation import ACTIVATIONS
from bass.ops.linear import Linear
from bass.ops.quantize import dequantized, packed
from bass.quantization.apply import unfilled
from kernels.conftest import Choose
from support.matrix import matrix, night

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
# rows, experts, chosen, hidden, inner
SHAPES = [(1, 8, 4, 128, 64), (5, 6, 3, 64, 192), (40, 4, 2, 64, 64), (90, 3, 2, 192, 64)]


def drawn(rows: int, size: int, scales: tuple[int, int], device: torch.device) -> list[Tensor]:
    """Codes and scales of a matrix."""
    codes = packed(torch.randint(0, 16, (rows, size)))
    found = torch.randint(*scales, (size // 32, rows))
    return [codes.to(device), found.to(torch.uint8).to(device)]


def layers(
    shape: tuple[int, ...], dtype: torch.dtype, act: str, device: torch.device
) -> tuple[mixtures.Experts, mixtures.Experts]:
    """In MXFP4, and dequantized in float64; with biases."""
    _, count, chosen, hidden, inner = shape
    torch.manual_seed(0)
    one, wide = (
        mixtures.Experts(
            count, chosen, hidden, inner, ACTIVATIONS[act], True, device, kind, True
        ).requires_grad_(False)
        for kind in (dtype, torch.float64)
    )
    for name in ("gate_up", "down"):
        codes, scale = drawn(*getattr(wide, name).shape, (122, 126), device)
        setattr(one, name, torch.nn.Parameter(codes, requires_grad=False))
        setattr(one, f"{name}_scale", torch.nn.Parameter(scale, requires_grad=False))
        getattr(wide, name).copy_(dequantized(codes, scale, None, 32, torch.float64))
        getattr(one, f"{name}_bias").normal_()
        getattr(wide, f"{name}_bias").copy_(getattr(one, f"{name}_bias"))
    return one, wide


def outputs(layer: mixtures.Experts, x: Tensor, choice: grouped.Choice, act: str) -> Tensor:
    """The partial sums of a layer in MXFP4, by the kernels."""
    return grouped.experts(
        x, choice, layer.gate_up, layer.down, layer.count, act, layer.gate_up_bias,
        layer.down_bias, layer.gate_up_scale, layer.down_scale,
    )  # fmt: skip


@matrix(dtype=TOLERANCE, shape=SHAPES, tiles=[(True, "clamped_silu"), (False, "silu")])
def test_experts_in_four_bits_equal_their_dequantized_copies(
    shape: tuple[int, ...], dtype: torch.dtype, tiles: tuple[bool, str], device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    few, act = tiles
    tile = grouped.Tile(32, 32, 2, 4) if few else grouped.Tile(64, 64, 2, 2)
    monkeypatch.setattr(grouped, "tiles_for", lambda *_: (tile, tile))
    monkeypatch.setattr(grouped, "FEW", 64 if few else 0)
    experts, wide = layers(shape, dtype, act, device)
    x = (torch.randn(shape[0], shape[3], device=device) / 8).to(dtype)
    logits = torch.randn(shape[0], shape[1], device=device)
    squares = torch.rand(2, shape[0], device=device)
    norm = 1 / (squares.sum(0) / shape[3] + 0.5).sqrt()  # that the kernel finishes
    choice = grouped.route(logits[None], shape[2], True, torch.float32, squares, shape[3], 0.5)
    found = outputs(experts, x, choice, act)
    expected = mixtures.weighted_sum(x.double() * norm.double()[:, None], logits.double(), wide)
    assert (found.sum(0).double() - expected).norm() <= TOLERANCE[dtype] * expected.norm()


@pytest.mark.parametrize("rows", [1, 40, pytest.param(150, marks=pytest.mark.gpu)])
def test_the_tiles_of_decoding_and_of_prefill_compute_the_same(
    rows: int, device: torch.device
) -> None:
    """As they are chosen, over widths that no tile divides."""
    shape = (rows, 4, 2, 320, 192) if device.type == "cpu" else (rows, 32, 4, 2880, 2880)
    experts, wide = layers(shape, torch.bfloat16, "clamped_silu", device)
    x = (torch.randn(rows, shape[3], device=device) / 8).bfloat16()
    logits = torch.randn(rows, shape[1], device=device)
    choice = grouped.route(logits[None], shape[2], True, torch.float32)
    found = outputs(experts, x, choice, "clamped_silu")
    expected = mixtures.weighted_sum(x.double(), logits.double(), wide)
    assert found.isfinite().all()
    assert (found.sum(0).double() - expected).norm() <= 2e-2 * expected.norm()


def test_without_kernels_an_expert_is_dequantized_to_the_last_bit() -> None:
    experts, wide = layers((5, 6, 2, 64, 128), torch.float32, "silu", torch.device("cpu"))
    x, logits = torch.randn(5, 64).double(), torch.randn(5, 6).double()
    experts.gate_up_bias, experts.down_bias = wide.gate_up_bias, wide.down_bias
    found = mixtures.weighted_sum(x, logits, experts)
    assert torch.equal(found, mixtures.weighted_sum(x, logits, wide))


def test_a_mixture_of_experts_in_four_bits_runs_by_kernels(
    kernels: Choose, device: torch.device
) -> None:
    experts, _ = layers((5, 6, 2, 64, 128), torch.float32, "silu", device)
    router = Linear(64, 6, device, torch.float32).requires_grad_(False)
    router.weight.normal_()
    x, found = torch.randn(1, 5, 64, device=device), []
    for on in (False, True):
        kernels(on)
        mixture = mixtures.Mixture(x, router, experts)
        assert mixture.by_kernel == on
        found.append(mixture.tensor())
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_while_a_checkpoint_is_loaded_experts_take_no_memory() -> None:
    with unfilled():
        made = mixtures.Experts(
            2, 1, 64, 64, ACTIVATIONS["silu"], True, torch.device("cpu"), torch.float32
        )
    assert all(p.is_meta for p in made.parameters())


@triton.jit
@no_type_check
def _product(
    x, w, scale, y, rows, lines, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    found = mxfp4.gathered(x, w, scale, m, m < rows, n, lines, K, BM, BN, BK, 2, OPERAND)
    tl.store(y + m[None, :] * lines + n[:, None], found, mask=(m < rows)[None, :])


@pytest.mark.parametrize(
    ("size", "width"), [(64, 32), night(64, 64), night(192, 32), (192, 64), night(256, 128)]
)
@pytest.mark.parametrize(
    ("dtype", "scales"),
    [(torch.float32, (1, 250)), (torch.float16, (117, 132)), (torch.bfloat16, (34, 161))],
    ids=str,
)
def test_numbers_are_widened_to_the_last_bit(
    size: int, width: int, dtype: torch.dtype, scales: tuple[int, int], device: torch.device
) -> None:
    """In bfloat16, for scales from 2^-93 to 2^33."""
    torch.manual_seed(size)
    codes, scale = drawn(128, size, scales, device)
    ones = torch.eye(size, device=device, dtype=dtype)
    y = torch.empty(size, 128, device=device)
    _product[(4, size // 16)](
        ones, codes, scale, y, size, 128, K=size, BM=16, BN=32, BK=width, OPERAND=operand(dtype),
        num_warps=2,
    )  # fmt: skip
    assert torch.equal(y.T, dequantized(codes, scale, None, 32, torch.float32))
