"""Quantizes rows to 8 bits for a product.

    top = max(max |x|, SMALLEST) ;  q = round(x · (L / top)) ;  scale = top / L

L is the largest number of q's type, 127 (int8) or 448 (e4m3); rounding is half to even. One program
for each row. The scale of a row with NaN is NaN. Triton's interpreter truncates e4m3, so there the
kernel rounds itself.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Num
from torch import Tensor

from bass.kernels.triton.launch import INTERPRETED, dependent, wait_for_inputs

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
SMALLEST = 1e-30  # a row of zeros is divided by it
# 1.5 · 2²³: what is added to it has no place for a fraction, and is rounded half to even
ROUNDING = tl.constexpr(12582912.0)


@triton.jit
@no_type_check  # Triton reads the source, not the function
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
@no_type_check
def in_8_bits(
    value,
    LARGEST: tl.constexpr,
    SMALLEST: tl.constexpr,
    INTEGER: tl.constexpr,
    BY_HAND: tl.constexpr,
):
    """A row in float32, scaled and rounded to the narrow type, and the scale."""
    top = _larger(tl.reduce(tl.abs(value), 0, _larger), SMALLEST)
    value *= tl.div_rn(tl.full((), LARGEST, tl.float32), top)
    if INTEGER:
        value = (value + ROUNDING) - ROUNDING
    if BY_HAND:
        power = (value.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
        # three bits below the first; of subnormal numbers 2⁻⁹
        step = tl.maximum(power * 0.125, 0.001953125)
        value = ((value / step + ROUNDING) - ROUNDING) * step
    return value, tl.div_rn(top, tl.full((), LARGEST, tl.float32))


@triton.jit
@no_type_check
def _quantize(
    x, q, scale, size,
    LARGEST: tl.constexpr, SMALLEST: tl.constexpr, INTEGER: tl.constexpr, BY_HAND: tl.constexpr,
    WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    live = i < size
    wait_for_inputs(PDL)
    value = tl.load(x + row * size + i, mask=live, other=0.0).to(tl.float32)
    value, own_scale = in_8_bits(value, LARGEST, SMALLEST, INTEGER, BY_HAND)
    tl.store(q + row * size + i, value.to(q.dtype.element_ty), mask=live)
    tl.store(scale + row, own_scale)


def options(kind: torch.dtype) -> dict[str, Any]:
    """The constants of `in_8_bits` for a type."""
    return {
        "LARGEST": LARGEST[kind],
        "SMALLEST": SMALLEST,
        "INTEGER": kind == torch.int8,
        "BY_HAND": INTERPRETED and kind != torch.int8,
        "enable_fp_fusion": False,
    }


def quantize_rows(
    x: Float[Tensor, "rows size"], kind: torch.dtype
) -> tuple[Num[Tensor, "rows size"], Float[Tensor, " rows"]]:
    """The rows in `kind`, int8 or e4m3, and their scales, float32.

    After a norm, `residual_norm.add_norm` does it in the same pass.
    """
    rows, size = x.shape
    x = x.contiguous()
    q, scale = torch.empty_like(x, dtype=kind), x.new_empty(rows, dtype=torch.float32)
    width = 1 << (size - 1).bit_length()
    launch: Any = _quantize[(rows,)]
    with torch.cuda.device_of(x):
        launch(
            x,
            q,
            scale,
            size,
            WIDTH=width,
            num_warps=8 if width > 2048 else 4,
            **options(kind),
            **dependent(x),
        )
    return q, scale
