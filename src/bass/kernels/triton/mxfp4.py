"""Products with rows of a matrix in MXFP4, whose tiles are widened in registers.

    w[n, k] = e2m1(code[n, k]) 2^(scale[k // 32, n] - 127)

    codes    uint8 [rows, in / 2]: code[j] | code[in / 2 + j] << 4, as `group_quantized_gemm`
    scales   uint8 [in / 32, rows], e8m0

In bfloat16, a code whose sign is the first bit and whose other bits are the last of the exponent
and the first of the mantissa is its number times 2^-126, a subnormal one for 0.5. One product with
2^(126 - SHIFT) 2^(scale - 127) makes w 2^-SHIFT, and the finished sum is multiplied with 2^SHIFT.
With a SHIFT of 32 all of this is exact for scales from 2^-93 to 2^33. A larger scale counts as
2^33; with a smaller one, w is rounded to a multiple of 2^-101.
"""

from typing import no_type_check

import triton
import triton.language as tl

from bass.kernels.triton.group_quantized_gemm import values

GROUP = tl.constexpr(32)  # inputs of a scale
SHIFT = tl.constexpr(32)
UNSHIFT = tl.constexpr(2.0**32)
LARGEST = tl.constexpr(128 + 32)  # code of a scale, whose factor is the largest power of 2
# Of four bytes: their low codes and their high ones, as numbers times 2^-126, in 16 instructions.
# The bytes become the upper halves of words of 16 bits; 0xEA is (a & b) | c.
WIDEN = tl.constexpr(
    "{ .reg .b32 a, b, s; prmt.b32 a, $4, 0, 0x1404; prmt.b32 b, $4, 0, 0x3424;"
    + "".join(
        f"{first} shr.b32 s, {word}, 6; and.b32 s, s, 0x01C001C0;"
        f"lop3.b32 ${out}, {word}, 0x80008000, s, 0xEA;"
        for out, word, first in (
            (2, "a", ""),
            (3, "b", ""),
            (0, "a", "shl.b32 a, a, 4;"),
            (1, "b", "shl.b32 b, b, 4;"),
        )
    )
    + "}"
)


@triton.jit
@no_type_check  # Triton reads the source, not the function
def _factors(scales, group, lines, last, FAST: tl.constexpr):
    """What the codes of groups are multiplied with [BN, groups]; `scales`: pointers to the scale of
    each row's first group.
    """
    s = tl.load(scales[:, None] + (tl.minimum(group, last) * lines)[None, :])
    if FAST:
        exponent = tl.minimum(s.to(tl.int32), LARGEST) + (126 - SHIFT)
        s = (exponent << 7).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:  # half of them, for `values`
        s = (s.to(tl.int32) << 23).to(tl.float32, bitcast=True) * 0.5
    return s


@triton.jit
@no_type_check
def _of_inputs(s, BK: tl.constexpr):
    """Factors of groups [BN, BK / GROUP] as those of inputs [BN, BK]."""
    bn: tl.constexpr = s.shape[0]
    return tl.reshape(tl.broadcast_to(s[:, :, None], (bn, BK // GROUP, GROUP)), (bn, BK))


@triton.jit
@no_type_check
def gathered(
    x, w, scale, row, live, w_row, lines, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    OPERAND: tl.constexpr,
):  # fmt: skip
    """Σ_k w[w_row, k] x[row, k] in float32 [BN, BM]; `lines`: all rows of w.

    BK: bytes of a row in a tile, of two inputs each.
    """
    HALF: tl.constexpr = K // 2
    EVEN: tl.constexpr = HALF % BK == 0
    FAST: tl.constexpr = tl.bfloat16 == OPERAND  # never in the interpreter
    k, g = tl.arange(0, BK), tl.arange(0, BK // GROUP)
    w_rows = w + w_row.to(tl.int64)[:, None] * HALF
    x_rows = x + row.to(tl.int64)[None, :] * K
    low_scales, last = scale + w_row, HALF // GROUP - 1
    high_scales = low_scales + HALF // GROUP * lines
    total = tl.zeros((BN, BM), dtype=tl.float32)
    # Scales are read one tile ahead: no product waits for them.
    low_factors = _factors(low_scales, g, lines, last, FAST)
    high_factors = _factors(high_scales, g, lines, last, FAST)
    for first in tl.range(0, HALF, BK, num_stages=STAGES):
        at = first + k
        codes = tl.load(
            w_rows + at[None, :],
            mask=None if EVEN else (at < HALF)[None, :],
            other=None if EVEN else 0,
        )
        known = live[None, :] if EVEN else live[None, :] & (at < HALF)[:, None]
        x_low = tl.load(x_rows + at[:, None], mask=known, other=0.0).to(OPERAND)
        x_high = tl.load(x_rows + (HALF + at)[:, None], mask=known, other=0.0).to(OPERAND)
        after = (first + BK) // GROUP + g
        low_next = _factors(low_scales, after, lines, last, FAST)
        high_next = _factors(high_scales, after, lines, last, FAST)
        if FAST:
            low, high = tl.inline_asm_elementwise(
                WIDEN, "=r,=r,=r,=r,r", [codes],
                dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4,
            )  # fmt: skip
        else:
            low = values(codes, False, "e2m1", "none", tl.float32)
            high = values(codes, True, "e2m1", "none", tl.float32)
        low = (low * _of_inputs(low_factors, BK)).to(OPERAND)
        high = (high * _of_inputs(high_factors, BK)).to(OPERAND)
        total = tl.dot(low, x_low, total, input_precision="ieee")
        total = tl.dot(high, x_high, total, input_precision="ieee")
        low_factors, high_factors = low_next, high_next
    return total * UNSHIFT if FAST else total
