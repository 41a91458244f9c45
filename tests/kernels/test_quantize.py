"""Tier 3: rows quantized by the kernel are those of the decoder's own arithmetic, which a CPU
runs.
"""

import numpy as np
import pytest
import torch

from bass.kernels.triton.quantize import quantize_rows
from bass.kernels.triton.residual_norm import add_norm
from bass.kernels.values import Norm
from bass.ops.norms import RMSNorm
from bass.ops.quantize import E4M3, SMALLEST, quantized_rows

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
KINDS = [torch.int8, E4M3]
SHAPES = [(1, 1), (1, 64), (3, 70), (17, 130)]


def drawn(*shape: int, dtype: torch.dtype, device: torch.device, seed: int = 0) -> torch.Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(device, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rows_are_quantized_as_their_twin_does_it_bit_by_bit(
    kind: torch.dtype, dtype: torch.dtype, device: torch.device
) -> None:
    for shape in SHAPES:
        x = drawn(*shape, dtype=dtype, device=device) * 10.0 ** torch.arange(
            -2, 1, device=device
        ).repeat(6)[: shape[0], None].to(dtype)
        (q, scale), (expected, expected_scale) = quantize_rows(x, kind), quantized_rows(x, kind)
        assert torch.equal(scale, expected_scale)
        assert torch.equal(q.float(), expected.float())


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_number_of_the_type_is_found_again_and_halves_go_to_the_even_one(
    kind: torch.dtype, device: torch.device
) -> None:
    if kind == torch.int8:
        x = torch.arange(-254, 255, device=device, dtype=torch.float32)[None] / 2
        expected = x.round()
    else:
        every = torch.arange(256, dtype=torch.uint8, device=device).view(E4M3).float()
        numbers = every[every.isfinite()].sort().values
        x = torch.cat((numbers, (numbers[1:] + numbers[:-1]) / 2))[None]
        expected = x.to(E4M3).float()
    q, scale = quantize_rows(x, kind)
    assert scale.tolist() == [1.0]
    assert torch.equal(q.float(), expected)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_row_of_zeros_stays_zeros_and_one_that_is_no_number_is_not_hidden(
    kind: torch.dtype, device: torch.device
) -> None:
    x = torch.zeros(4, 5, device=device)
    x[1, 2], x[2, 3], x[3, 4] = torch.nan, torch.inf, 1e-38
    with np.errstate(all="ignore"):  # the interpreter's, which would warn
        q, scale = quantize_rows(x, kind)
    assert q[0].float().tolist() == q[3].float().tolist() == [0.0] * 5
    assert scale[0] == scale[3] > 0
    assert scale[0] <= SMALLEST
    assert scale[1].isnan()
    assert scale[2].isinf()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_norm_before_it_is_the_norm(
    kind: torch.dtype, dtype: torch.dtype, device: torch.device
) -> None:
    for rows, size in ((1, 48), (5, 130)):
        x, norm = (
            drawn(rows, size, dtype=dtype, device=device),
            RMSNorm(size, 1e-3, device, torch.float32).requires_grad_(False),
        )
        norm.weight.copy_(drawn(size, dtype=torch.float32, device=device, seed=1))
        expected = norm(x.float())
        _, q, scale = add_norm(x, None, Norm(norm.weight, 1e-3), kind)
        assert scale is not None
        torch.testing.assert_close(scale, quantized_rows(expected, kind)[1], rtol=1e-5, atol=0)
        step = scale[:, None] * (0.5001 if kind == torch.int8 else 0)
        error = (q.float() * scale[:, None] - expected).abs()
        assert (
            error
            <= torch.maximum(step, expected.abs() / (2**20 if kind == torch.int8 else 15.9))
            + scale[:, None] * 2**-10
        ).all()
