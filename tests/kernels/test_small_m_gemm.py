"""Tier 3: products of few rows, and norms, equal their twins."""

import itertools

import pytest
import torch

from bass.kernels.triton import residual_norm, small_m_gemm
from bass.kernels.triton.small_m_gemm import Tile
from bass.kernels.values import Norm
from bass.ops.quantize import quantized_rows
from support import twins

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
SHAPES = [(1, 64, 64), (3, 70, 40), (5, 24, 1100), (17, 130, 96), (64, 66, 72)]  # rows, out, in


def drawn(*shape: int, dtype: torch.dtype, device: torch.device, seed: int = 0) -> torch.Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(device, dtype)


def assert_near(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """Relative to the whole: single sums may cancel."""
    assert found.isfinite().all()
    assert (found.double() - expected).norm() <= TOLERANCE[dtype] * expected.norm()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_of_few_rows_equals_its_twin_however_it_is_divided(
    shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> None:
    rows, out, inner = shape
    x, w = (
        drawn(rows, inner, dtype=dtype, device=device),
        drawn(out, inner, dtype=dtype, device=device, seed=1),
    )
    bias = drawn(out, dtype=dtype, device=device, seed=2)
    for tile in (
        None,
        *(Tile(64, 64, 2, 4, splits) for splits in (1, 2, 4)),
        Tile(32, 128, 2, 4, 3),
    ):
        for b in (None, bias):
            y = small_m_gemm.linear(x, w, b, tile=tile)
            assert y.dtype == (dtype if len(y) == 1 else torch.float32)
            assert_near(y.sum(0).to(dtype), twins.linear(x, w, b), dtype)


def test_the_tiles_of_every_product_fit_in_shared_memory() -> None:
    """Of an H100, an A100, an L40: the tiles in flight but one, and what is made of w for a product
    of other numbers.
    """
    for n, k in itertools.product(
        (100, 1024, 2048, 3072, 4096, 6144, 12288, 22016, 51200, 128256),
        (64, 512, 2048, 4096, 11008),
    ):
        for rows, sizes, gated in itertools.product(
            (1, 17, 33, 64), ((1, 1), (2, 1), (4, 1), (2, 2), (4, 4)), (False, True)
        ):
            for room in (227 * 1024, 163 * 1024, 99 * 1024):
                tile = small_m_gemm.tile_for(n, k, rows, *sizes, gated, room)
                stage = (tile.bn * sizes[1] + small_m_gemm.block_rows(rows) * sizes[0]) * tile.bk
                widened = tile.bn * tile.bk * sizes[0] if sizes[0] != sizes[1] else 0
                assert (tile.stages - 1) * stage + widened <= room, (n, k, rows, sizes, gated, tile)
                assert tile.bk >= 32
                assert tile.stages >= 2


@pytest.mark.parametrize(
    "kinds",
    [(torch.int8, torch.int8), (torch.float8_e4m3fn,) * 2, (torch.bfloat16, torch.int8)],
    ids=str,
)
def test_a_product_of_quantized_numbers_equals_that_of_what_they_stand_for(
    kinds: tuple[torch.dtype, torch.dtype], device: torch.device
) -> None:
    """Integers exactly: the scales are powers of 2 here.

    A GPU adds products of e4m3 up with fewer bits than float32 has.
    """
    close = (
        torch.float16
        if kinds[0] == torch.float8_e4m3fn and device.type == "cuda"
        else torch.float32
    )
    for rows, out, inner in SHAPES:
        x, w = (
            drawn(n, inner, dtype=torch.float32, device=device, seed=seed)
            for seed, n in enumerate((rows, out))
        )
        x, w = (
            (40 * x).round().clamp(-127, 127).to(kind)
            for x, kind in zip((x, w), kinds, strict=True)
        )
        x_scale = (
            None
            if kinds[0].is_floating_point and kinds[0].itemsize == 2
            else 2.0 ** -torch.arange(rows, device=device).float()
        )
        w_scale = 2.0 ** -(torch.arange(out, device=device) % 5).float()
        meant_x = x.double() * (1 if x_scale is None else x_scale.double()[:, None])
        meant_w = w.double() * w_scale.double()[:, None]
        for tile in (None, Tile(32, 64, 2, 4, 2)):
            y = small_m_gemm.linear(x, w, None, x_scale, w_scale, torch.float32, tile).sum(0)
            assert_near(y, twins.linear(meant_x, meant_w, None), close)
            if kinds[0] == torch.int8:
                assert torch.equal(y.double(), twins.linear(meant_x, meant_w, None))
        if out % 2 == 0:
            small = w_scale / 512  # so that the activation has something to bend
            y = small_m_gemm.gated(x, w, "silu", x_scale, small, torch.float32)
            assert_near(y, twins.gated(meant_x, meant_w / 512, "silu"), close)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_tanh", "relu2"])
def test_a_gated_product_equals_its_twin(
    act: str, dtype: torch.dtype, device: torch.device
) -> None:
    for rows, twice, inner in ((1, 64, 64), (3, 70, 40), (17, 260, 96)):
        x, w = (
            drawn(rows, inner, dtype=dtype, device=device),
            drawn(twice, inner, dtype=dtype, device=device, seed=1),
        )
        assert_near(small_m_gemm.gated(x, w, act), twins.gated(x, w, act), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("splits", [0, 1, 3])
def test_the_sum_and_norm_of_the_stream_equal_their_twin(
    splits: int, dtype: torch.dtype, device: torch.device
) -> None:
    for rows, size in ((1, 48), (5, 130)):
        base, weight = (
            drawn(rows, size, dtype=dtype, device=device),
            drawn(size, dtype=dtype, device=device, seed=1),
        )
        parts = (
            drawn(splits, rows, size, dtype=torch.float32, device=device, seed=2)
            if splits
            else None
        )
        found, expected = (
            residual_norm.add_norm(base, parts, Norm(weight, 1e-3)),
            twins.add_norm(base, parts, weight, 1e-3),
        )
        for ours, theirs in zip(found[:2], expected, strict=True):
            assert_near(ours, theirs.double(), dtype)
        assert (found[0] is base) == (splits == 0)
        assert found[2] is None


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_the_norm_in_8_bits_is_the_norm_then_quantized(
    kind: torch.dtype, device: torch.device
) -> None:
    base, weight = (
        drawn(5, 130, dtype=torch.float32, device=device),
        drawn(130, dtype=torch.float32, device=device, seed=1),
    )
    parts = drawn(2, 5, 130, dtype=torch.float32, device=device, seed=2)
    summed, normed, _ = residual_norm.add_norm(base, parts, Norm(weight, 1e-3))
    q, scale = quantized_rows(normed, kind)
    found = residual_norm.add_norm(base, parts, Norm(weight, 1e-3), kind)
    assert torch.equal(found[0], summed)
    torch.testing.assert_close(found[2], scale, rtol=1e-6, atol=0)
    assert found[1].dtype == kind
    assert_near(
        found[1].double() * found[2].double()[:, None],
        q.double() * scale.double()[:, None],
        torch.float32,
    )


@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_tanh", "relu2"])
def test_the_gate_after_a_librarys_product_equals_its_twin(act: str, device: torch.device) -> None:
    x, w = (
        drawn(3, 40, dtype=torch.float32, device=device),
        drawn(2200, 40, dtype=torch.float32, device=device, seed=1),
    )
    summands = torch.stack([x[:, :15] @ w[:, :15].T, x[:, 15:] @ w[:, 15:].T])
    for parts in ((x @ w.T)[None], summands):
        found = small_m_gemm.gate(parts, act, x.dtype)
        assert_near(found, twins.gated(x, w, act), torch.float32)
