"""Products of a few rows with a quantized matrix whose scales belong to groups of inputs.

    y[m, n] = Σ_k x[m, k] (q[n, k] - zero[g, n]) scale[g, n] + b[n] ,  g = k // group

The matrix stays quantized in memory. A program reads a tile of BN rows, takes the zero points from
its codes (exact in x's type), multiplies it with x, and scales the sums of each group in float32.

    kind   w, as stored                                       scale          zero
    int4   uint8 [out, in / 2]: q[j] | q[in / 2 + j] << 4     float          uint8; None: 8
    e2m1   the same, of numbers of 4 bits with an exponent    uint8, e8m0    None
    int8   int8 [out, in]                                     float          int8; None: 0
    e4m3   e4m3 [out, in]                                     float          None

The two halves of a byte belong to the two halves of the inputs, so no code changes its place: a
tile is multiplied once with x's first half and once with its second.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Num
from torch import Tensor

from bass.kernels.support import shared_memory
from bass.kernels.triton.launch import INTERPRETED, dependent, operand, wait_for_inputs
from bass.kernels.triton.small_m_gemm import Tile, block_rows, tile_for

WIDEST_BLOCK, LEAST_BLOCK = 128, 16  # stored columns of a tile; `tl.dot` needs 16
QUEUE = 76_000  # bytes of the tiles in flight, so that three programs share a multiprocessor


def _four_bits(shift: int, high: int, one: int, kind: str) -> tl.constexpr:
    """Of four bytes: 4 codes behind the exponent of 2^7 (bfloat16) or 2^10 (float16), of which
    their distance is 1, and the sum of these numbers and $3, $4. Exact, in 6 instructions.
    """
    return tl.constexpr(
        f"""{{
        .reg .b32 t, a, b, one;
        mov.b32 one, {one:#x};
        shr.b32 t, $2, {shift};
        and.b32 t, t, 0x0F0F0F0F;
        prmt.b32 a, t, {high:#x}, 0x4140;
        prmt.b32 b, t, {high:#x}, 0x4342;
        fma.rn.{kind} a, a, one, $3;
        fma.rn.{kind} b, b, one, $4;
        mov.b32 $0, a;
        mov.b32 $1, b;
        }}"""
    )


BF16_LOW, BF16_HIGH = (_four_bits(shift, 0x43, 0x3F803F80, "bf16x2") for shift in (0, 4))
F16_LOW, F16_HIGH = (_four_bits(shift, 0x64, 0x3C003C00, "f16x2") for shift in (0, 4))


@triton.jit
@no_type_check  # Triton reads the source, not the function
def _widened(codes, zero, HIGH: tl.constexpr, PAIRS: tl.constexpr):
    """Codes of 4 bits without their zero points, by a GPU's instructions for two numbers.

    Converting them one by one takes longer than reading them.
    """
    if PAIRS == "bf16x2":
        value = tl.inline_asm_elementwise(
            BF16_HIGH if HIGH else BF16_LOW,
            "=r,=r,r,r,r",
            [codes, (-128 - zero).to(tl.bfloat16)[:, None]],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=4,
        )
    else:
        value = tl.inline_asm_elementwise(
            F16_HIGH if HIGH else F16_LOW,
            "=r,=r,r,r,r",
            [codes, (-1024 - zero).to(tl.float16)[:, None]],
            dtype=tl.float16,
            is_pure=True,
            pack=4,
        )
    return value


@triton.jit
@no_type_check
def _values(
    codes, zero,
    HIGH: tl.constexpr, KIND: tl.constexpr, PAIRS: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """The numbers of a tile [BN, BK] without their scales; of e2m1, twice the numbers.

    HIGH: those in the high halves of bytes.
    """
    if KIND == "e4m3":
        value = codes.to(OPERAND)
    elif KIND == "int8":
        value = (codes.to(tl.int16) - zero[:, None]).to(OPERAND)
    elif KIND == "int4" and PAIRS != "none":
        value = _widened(codes, zero, HIGH, PAIRS)
    else:
        codes = codes >> 4 if HIGH else codes & 15
        if KIND == "int4":
            value = (codes.to(tl.int16) - zero[:, None]).to(OPERAND)
        else:
            low = (codes & 7).to(tl.int32)
            shift = tl.maximum((low >> 1) - 1, 0)
            size = tl.where(low < 2, low, ((low & 1) | 2) << shift)
            value = tl.where(codes > 7, -size, size).to(OPERAND)
    return value


@triton.jit
@no_type_check
def _scales(scale, zero, places, inside, KIND: tl.constexpr, ZERO: tl.constexpr):
    """The scales and zero points of a group's rows [BN]."""
    s = tl.load(scale + places, mask=inside, other=0)
    if KIND == "e2m1":  # an exponent of 2, and half of it for `_values`
        s = (s.to(tl.int32) << 23).to(tl.float32, bitcast=True) * 0.5
    if ZERO:
        z = tl.load(zero + places, mask=inside, other=0).to(tl.int16)
    else:
        z = tl.full(places.shape, 8 if KIND == "int4" else 0, tl.int16)
    return s.to(tl.float32), z


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def _group_linear(
    x, w, scale, zero, bias, y, rows, n_size, width,
    GROUP: tl.constexpr, SIZE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    STAGES: tl.constexpr, EVEN: tl.constexpr, KIND: tl.constexpr, ZERO: tl.constexpr,
    BIAS: tl.constexpr, PAIRS: tl.constexpr, OPERAND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    HALVES: tl.constexpr = 2 if KIND == "int4" or KIND == "e2m1" else 1
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    split, m, k = tl.program_id(1), tl.arange(0, BM), tl.arange(0, BK)
    inside, live = n < n_size, (m < rows)[None, :]
    # Rows of w beyond the last read the last one again, and are not stored.
    w_rows = w + tl.minimum(n, n_size - 1).to(tl.int64)[:, None] * width
    x_rows = x + m[None, :] * (width * HALVES)
    first, stop = split * SIZE, tl.minimum(split * SIZE + SIZE, width)
    wait_for_inputs(PDL)
    total = tl.zeros((BN, BM), dtype=tl.float32)
    # Scales are read one tile ahead: no product waits for them.
    s, z = _scales(scale, zero, first // GROUP * n_size + n, inside, KIND, ZERO)
    if HALVES == 2:
        s_high, z_high = _scales(
            scale, zero, (width + first) // GROUP * n_size + n, inside, KIND, ZERO
        )
    for step in tl.range(0, SIZE, BK, num_stages=STAGES):
        at = first + step
        # a tile is whole or, in the last split, beyond the end
        codes = tl.load(
            w_rows + (at + k)[None, :],
            mask=None if EVEN else (at + k < stop)[None, :],
            other=None if EVEN else 0.0,
        )
        known = live if EVEN else live & (at + k < stop)[:, None]
        after = tl.minimum(at + BK, stop - BK)
        s_next, z_next = _scales(scale, zero, after // GROUP * n_size + n, inside, KIND, ZERO)
        value = tl.load(x_rows + (at + k)[:, None], mask=known, other=0.0).to(OPERAND)
        part = tl.dot(_values(codes, z, False, KIND, PAIRS, OPERAND), value, input_precision="ieee")
        total += part * s[:, None]
        s, z = s_next, z_next
        if HALVES == 2:
            s_next, z_next = _scales(
                scale, zero, (width + after) // GROUP * n_size + n, inside, KIND, ZERO
            )
            value = tl.load(x_rows + (width + at + k)[:, None], mask=known, other=0.0).to(OPERAND)
            part = tl.dot(
                _values(codes, z_high, True, KIND, PAIRS, OPERAND), value, input_precision="ieee"
            )
            total += part * s_high[:, None]
            s_high, z_high = s_next, z_next
    if BIAS:
        total += tl.where(split == 0, tl.load(bias + n, mask=inside, other=0.0).to(tl.float32), 0)[
            :, None
        ]
    places = y + split.to(tl.int64) * rows * n_size + m[None, :] * n_size + n[:, None]
    tl.store(places, total.to(y.dtype.element_ty), mask=inside[:, None] & live)


def linear(
    x: Float[Tensor, "rows in"],
    w: Num[Tensor, "out width"],
    scale: Num[Tensor, "groups out"],
    zero: Num[Tensor, "groups out"] | None,
    group: int,
    kind: str,
    bias: Float[Tensor, " out"] | None = None,
    dtype: torch.dtype | None = None,
    tile: Tile | None = None,
) -> Float[Tensor, "splits rows out"]:
    """The partial sums of x wᵀ + b for up to `small_m_gemm.MOST_ROWS` rows, as its `linear`
    returns them. kind: as above.
    """
    x, rows, (n, width) = x.contiguous(), len(x), w.shape
    tile = tile or _tile(n, width, rows, x.element_size(), group, shared_memory(x.device))
    blocks = -(-width // tile.bk)
    share = -(-blocks // tile.splits)
    splits = -(-blocks // share)
    out = (dtype or x.dtype) if splits == 1 else torch.float32
    y = torch.empty((splits, rows, n), device=x.device, dtype=out)
    launch: Any = _group_linear[(-(-n // tile.bn), splits)]
    with torch.cuda.device_of(x):
        launch(
            x, w, scale, zero, bias, y, rows, n, width,
            GROUP=group, SIZE=share * tile.bk, BM=block_rows(rows), BN=tile.bn, BK=tile.bk,
            STAGES=tile.stages, EVEN=splits * share * tile.bk == width, KIND=kind,
            ZERO=zero is not None, BIAS=bias is not None,
            PAIRS=_pairs(x.dtype), OPERAND=operand(x.dtype),
            num_warps=tile.warps, **dependent(x),
        )  # fmt: skip
    return y


def _pairs(dtype: torch.dtype) -> str:
    """The instructions for two numbers of the type: `_widened`; the interpreter has none."""
    found = {torch.bfloat16: "bf16x2", torch.float16: "f16x2"}.get(dtype, "none")
    return "none" if INTERPRETED else found


def block(width: int, group: int) -> int:
    """Stored columns of a tile: the largest power of two that divides the width and the group, so
    that a tile has one scale for each row.
    """
    both = width | group
    return min(WIDEST_BLOCK, both & -both)


def supports(w: Num[Tensor, "out width"], group: int) -> bool:
    """Whether the kernel computes the product with such a matrix."""
    return block(w.shape[1], group) >= LEAST_BLOCK


def _tile(n: int, width: int, rows: int, x_size: int, group: int, room: int) -> Tile:
    """How to cut it: `small_m_gemm.tile_for` for the same bytes, with tiles of one group."""
    like = tile_for(n, width, rows, x_size, 1, False, room)
    bk = block(width, group)
    stage = (like.bn + 2 * block_rows(rows) * x_size) * bk
    values = 2 * like.bn * bk * x_size  # if the product reads them from shared memory
    stages = max(2, min(8, (min(QUEUE, room) - values) // stage))
    return Tile(like.bn, bk, stages, like.warps, like.splits)
