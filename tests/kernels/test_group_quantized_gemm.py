"""Tier 3: products with quantized matrices of groups equal those of what the codes stand for."""

from typing import Any

import pytest
import torch

from bass.kernels.triton import group_quantized_gemm
from bass.kernels.triton.small_m_gemm import Tile
from bass.ops.linear import GroupQuantizedLinear
from bass.ops.quantize import dequantized, kind_of, packed, unpacked
from support.matrix import matrix

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
KINDS = ["int4", "int4 with zeros", "int8", "int8 with zeros", "e2m1", "e4m3"]
SHAPES = [(1, 24, 64, 32), (3, 70, 192, 32), (17, 33, 256, 64), (5, 40, 512, 512), (2, 16, 96, 32)]


def made(
    kind: str, out: int, inner: int, group: int, device: torch.device
) -> tuple[dict[str, Any], torch.Tensor]:
    """A layer's tensors, and the matrix that they stand for, in float64."""
    seeded = torch.Generator().manual_seed(0)
    groups = -(-inner // group)

    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=seeded)

    scale = 2.0 ** integers(-8, -3, groups, out)
    zero = None
    if kind == "e2m1":
        codes = integers(0, 16, out, inner)
        values, stored = torch.tensor(E2M1, dtype=torch.float64)[codes], packed(codes)
        written = (scale.log2() + 127).to(torch.uint8)
    elif kind == "e4m3":
        stored = torch.randn(out, inner, generator=seeded).to(torch.float8_e4m3fn)
        values, written = stored.double(), scale
    else:
        low, high, kept = (0, 16, torch.uint8) if "int4" in kind else (-128, 128, torch.int8)
        codes = integers(low, high, out, inner)
        stored, written = packed(codes) if "int4" in kind else codes.to(torch.int8), scale
        centre = torch.full((groups, out), 8 if "int4" in kind else 0)
        if "zeros" in kind:
            centre = integers(low, high, groups, out)
            zero = centre.to(kept).to(device)
        values = codes.double() - centre.T.repeat_interleave(group, 1)[:, :inner]
    meant = values * scale.double().T.repeat_interleave(group, 1)[:, :inner]
    tensors = {"weight": stored.to(device), "scale": written.to(device), "zero": zero}
    return tensors | {"group": group}, meant.to(device)


@matrix(strength=1, kind=KINDS, dtype=TOLERANCE)
def test_a_product_equals_that_of_what_the_codes_stand_for(
    kind: str, dtype: torch.dtype, device: torch.device
) -> None:
    for rows, out, inner, group in SHAPES:
        t, meant = made(kind, out, inner, group, device)
        x = torch.randn(rows, inner, generator=torch.Generator().manual_seed(1)).to(device, dtype)
        bias = torch.randn(out, generator=torch.Generator().manual_seed(2)).to(device, dtype)
        expected = x.double() @ meant.T
        bk = group_quantized_gemm.block(t["weight"].shape[1], group)
        for tile, b in ((None, bias), (Tile(32, bk, 2, 4, 2), None), (Tile(16, 16, 2, 4, 3), bias)):
            y = group_quantized_gemm.linear(
                x, t["weight"], t["scale"], t["zero"], group,
                kind_of(t["weight"], t["scale"]), b, None, tile,
            )  # fmt: skip
            assert y.dtype == (dtype if len(y) == 1 else torch.float32)
            error = y.sum(0).to(dtype).double() - expected - (0 if b is None else b.double())
            assert error.norm() <= TOLERANCE[dtype] * expected.norm(), (rows, out, tile)


@pytest.mark.parametrize("kind", KINDS)
def test_a_matrix_is_dequantized_exactly_and_the_layer_multiplies_by_it(kind: str) -> None:
    for rows, out, inner, group in (*SHAPES, (2, 5, 80, 32)):  # whose last group is not full
        t, meant = made(kind, out, inner, group, torch.device("cpu"))
        assert torch.equal(dequantized(*t.values(), torch.float64), meant)
        x = torch.randn(rows, inner, generator=torch.Generator().manual_seed(1)).double()
        order = torch.randperm(inner, generator=torch.Generator().manual_seed(2))
        y = GroupQuantizedLinear(**t, order=order.to(torch.int32))(x)
        torch.testing.assert_close(y, x[:, order] @ meant.T)


def test_packing_is_inverted() -> None:
    codes = torch.randint(0, 16, (5, 12), generator=torch.Generator().manual_seed(0))
    assert torch.equal(unpacked(packed(codes)), codes.to(torch.uint8))


def test_tiles_have_one_group_and_fit_in_shared_memory() -> None:
    for n, width in ((4096, 2048), (11008, 2048), (4096, 5504), (896, 448), (22016, 1024)):
        for group in (32, 64, 128, 4096):
            for rows in (1, 17, 64):
                for room in (227 * 1024, 99 * 1024):
                    tile = group_quantized_gemm._tile(n, width, rows, 2, group, room)
                    assert group % tile.bk == 0
                    assert width % tile.bk == 0
                    stage = (tile.bn + 4 * max(16, rows)) * tile.bk
                    assert (tile.stages - 1) * stage + 4 * tile.bn * tile.bk <= room
