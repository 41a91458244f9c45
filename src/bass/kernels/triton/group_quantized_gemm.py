"""Products of a few rows with a quantized matrix whose scales belong to groups of inputs.

    y[m, n] = Σ_k x[m, k] (q[n, k] - zero[g, n]) scale[g, n] + b[n] ,  g = k // group

The matrix stays quantized in memory. A program reads a tile of BN rows, widens the codes to x's
type, multiplies it with x, and corrects and scales the sums of each group in float32:

    Σ_k (q - zero) scale x = scale (Σ_k (q + c) x - (zero + c) Σ_k x)    with c that is easy to add

    kind   w, as stored                                       scale          zero
    int4   uint8 [out, in / 2]: q[j] | q[in / 2 + j] << 4     float          uint8; None: 8
    e2m1   the same, of numbers of 4 bits with an exponent    uint8, e8m0    None
    int8   int8 [out, in]                                     float          int8; None: 0
    e4m3   e4m3 [out, in], read as bytes                      float          None

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
from bass.kernels.triton.small_m_gemm import MULTIPROCESSORS, Tile, block_rows

WIDEST_BLOCK, LEAST_BLOCK = 128, 16  # stored columns of a tile; `tl.dot` needs 16


def _four_bits(move: str, mask: int, high: int) -> tl.constexpr:
    """Of two bytes: 2 codes behind an exponent with which their distance is 1."""
    return tl.constexpr(
        f"""{{
        .reg .b32 t;
        {move}
        and.b32 t, t, {mask:#x};
        prmt.b32 $0, t, {high:#x}, 0x4140;
        }}"""
    )


def _eight_bits(shift: int, mask: int, factor: int, kind: str) -> tl.constexpr:
    """Of two bytes, numbers of 8 bits: their exponents and fractions where the wider type has its
    own, then times 2^120 (bfloat16) or 2^8 (float16). Exact, subnormal numbers too; NaN is 480.
    """
    return tl.constexpr(
        f"""{{
        .reg .b32 t, a, factor, zero;
        mov.b32 factor, {factor:#x};
        mov.b32 zero, 0x80008000;
        prmt.b32 a, $1, 0, 0x1404;
        shr.b32 t, a, {shift};
        and.b32 t, t, {mask:#x};
        lop3.b32 a, a, 0x80008000, t, 0xEA;
        fma.rn.{kind} $0, a, factor, zero;
        }}"""
    )


BF16_E4M3 = _eight_bits(4, 0x07F007F0, 0x7B807B80, "bf16x2")
F16_E4M3 = _eight_bits(1, 0x3F803F80, 0x5C005C00, "f16x2")
BF16_LOW = _four_bits("mov.b32 t, $1;", 0x0F0F0F0F, 0x43)
BF16_HIGH = _four_bits("shr.b32 t, $1, 4;", 0x0F0F0F0F, 0x43)
F16_LOW = _four_bits("shl.b32 t, $1, 4;", 0xF0F0F0F0, 0x54)
F16_HIGH = _four_bits("mov.b32 t, $1;", 0xF0F0F0F0, 0x54)
OFFSETS = {"bf16x2": 128.0, "f16x2": 64.0, "none": 0.0}  # what is added to codes of 4 bits


@triton.jit
@no_type_check  # Triton reads the source, not the function
def _widened(codes, KIND: tl.constexpr, HIGH: tl.constexpr, PAIRS: tl.constexpr):
    """Codes of 4 bits, with an offset, or numbers of 8 bits, by a GPU's instructions for two.

    Converting them one by one takes longer than reading them.
    """
    if KIND == "e4m3":
        asm: tl.constexpr = BF16_E4M3 if PAIRS == "bf16x2" else F16_E4M3
    elif PAIRS == "bf16x2":
        asm: tl.constexpr = BF16_HIGH if HIGH else BF16_LOW
    else:
        asm: tl.constexpr = F16_HIGH if HIGH else F16_LOW
    return tl.inline_asm_elementwise(
        asm,
        "=r,r",
        [codes],
        dtype=tl.bfloat16 if PAIRS == "bf16x2" else tl.float16,
        is_pure=True,
        pack=2,
    )


@triton.jit
@no_type_check
def values(
    codes, HIGH: tl.constexpr, KIND: tl.constexpr, PAIRS: tl.constexpr, OPERAND: tl.constexpr
):
    """The numbers of a tile [BN, BK] without zero points and scales; of e2m1, twice the numbers.

    HIGH: those in the high halves of bytes.
    """
    if PAIRS != "none" and (KIND == "int4" or KIND == "e4m3"):
        value = _widened(codes, KIND, HIGH, PAIRS)
    elif KIND == "e4m3":
        bits = ((codes & 127).to(tl.int32) << 20) | ((codes & 128).to(tl.int32) << 24)
        value = (bits.to(tl.float32, bitcast=True) * 1.329227995784916e36).to(OPERAND)  # 2^120
    elif KIND == "int8":
        value = codes.to(OPERAND)
    else:
        codes = codes >> 4 if HIGH else codes & 15
        if KIND == "int4":
            value = codes.to(OPERAND)
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
    if KIND == "e2m1":  # an exponent of 2, and half of it for `values`
        s = (s.to(tl.int32) << 23).to(tl.float32, bitcast=True) * 0.5
    if ZERO:
        z = tl.load(zero + places, mask=inside, other=0).to(tl.float32)
    else:
        z = tl.full(places.shape, 8.0 if KIND == "int4" else 0.0, tl.float32)
    return s.to(tl.float32), z


@triton.jit
@no_type_check
def _products(
    codes, x, s, z, HIGH: tl.constexpr, KIND: tl.constexpr, PAIRS: tl.constexpr,
    ZEROS: tl.constexpr, OFFSET: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """Σ_k (q[n, k] - z[n]) s[n] x[k, m] of a tile within one group."""
    part = tl.dot(values(codes, HIGH, KIND, PAIRS, OPERAND), x, input_precision="ieee")
    if ZEROS:  # the sum of x for all n, by the tensor cores
        ones = tl.full(codes.shape, 1.0, OPERAND)
        part -= (z + OFFSET)[:, None] * tl.dot(ones, x, input_precision="ieee")
    return part * s[:, None]


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def _group_linear(
    x, w, scale, zero, bias, y, rows, n_size, width,
    GROUP: tl.constexpr, SIZE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    STAGES: tl.constexpr, EVEN: tl.constexpr, KIND: tl.constexpr, ZERO: tl.constexpr,
    BIAS: tl.constexpr, PAIRS: tl.constexpr, OFFSET: tl.constexpr, OPERAND: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    HALVES: tl.constexpr = 2 if KIND == "int4" or KIND == "e2m1" else 1
    ZEROS: tl.constexpr = ZERO or KIND == "int4"
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
        total += _products(codes, value, s, z, False, KIND, PAIRS, ZEROS, OFFSET, OPERAND)
        s, z = s_next, z_next
        if HALVES == 2:
            s_next, z_next = _scales(
                scale, zero, (width + after) // GROUP * n_size + n, inside, KIND, ZERO
            )
            value = tl.load(x_rows + (width + at + k)[:, None], mask=known, other=0.0).to(OPERAND)
            total += _products(
                codes, value, s_high, z_high, True, KIND, PAIRS, ZEROS, OFFSET, OPERAND
            )
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
            x, w.view(torch.uint8) if kind == "e4m3" else w, scale, zero, bias, y, rows, n, width,
            GROUP=group, SIZE=share * tile.bk, BM=block_rows(rows),
            EVEN=splits * share * tile.bk == width, KIND=kind,
            ZERO=zero is not None, BIAS=bias is not None,
            PAIRS=_pairs(x.dtype), OFFSET=OFFSETS[_pairs(x.dtype)] if kind == "int4" else 0.0,
            OPERAND=operand(x.dtype), **tile.options, **dependent(x),
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
    """How to cut it, as measured: tiles of 128 rows where they and their splits are one for each
    multiprocessor, or where x has many rows; else narrower ones, several for each.
    """
    bk, bm, wide = block(width, group), block_rows(rows), -(-n // 128)
    most = -(-width // bk)
    # the fewest splits with which there is a program for nearly each
    splits = next((s for s in (1, 2, 4) if wide * s >= 0.9 * MULTIPROCESSORS), 4)
    one_each = 0.9 * MULTIPROCESSORS <= wide * splits <= MULTIPROCESSORS
    if one_each or bm > 16:
        bn, warps, stages = 128, 8, 3
    else:
        bn, warps, stages, splits = 64, 4, 4, 4 if -(-n // 64) <= MULTIPROCESSORS else 2
    if (3 * bn + 2 * bm) * bk * x_size > room:
        bn, warps = 64, 4
    stage, values = (bn + 2 * bm * x_size) * bk, 2 * bn * bk * x_size  # widened, if they are stored
    stages = stages if bk == WIDEST_BLOCK else 2 * stages  # of half the bytes, or less
    stages = max(2, min(stages, 1 + (room - values) // stage))
    return Tile(bn, bk, stages, warps, min(splits, most))
