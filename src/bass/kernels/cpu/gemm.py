"""Products of a few rows with a matrix that is read once, in float32 or bfloat16.

    y = x Wᵀ + b ;  gated: y = act(x W₁ᵀ + b₁) · (x W₂ᵀ + b₂)

Each thread computes a range of the columns of y, `BLOCK` at a time: the block of W stays in its
first cache for all rows of x. x and the sums are float32.
"""

import math
from typing import no_type_check

import torch
from numba import njit
from torch import Tensor

from bass.kernels.cpu.runtime import compiled, empty, floats, own_share, unpacked
from bass.kernels.cpu.tiles import FEATURES, LANES, MOST, WIDTHS, tile

BLOCK = 12  # rows of W: a multiple of each of `WIDTHS`
MOST_ROWS = 256  # of x, for which W is read once; more of them may leave the caches
# rows of bfloat16 from which torch is faster, where the processor multiplies bfloat16 itself
LEAST_HALF_ROWS = 5 if FEATURES.get("avx512bf16", False) else 1 << 62
ACTIVATIONS = ("silu", "gelu", "relu", "gelu_tanh", "relu2")


@njit(cache=True, error_model="numpy")
@no_type_check
def _columns(w, x, y, rows, size, count, stride, half):
    """Columns [0, count) of y, whose rows are `stride` numbers apart."""
    itemsize = 2 if half else 4
    done = 0
    while done < rows:
        left = rows - done
        # 5 or 6 rows need one pass over W, 7 and more passes of 4
        share = left if left <= MOST else 4
        width = WIDTHS[share - 1]
        kind = (half * (MOST + 1) + share) * 2
        at = 0
        while at < count:
            full = at + width <= count
            weights, to = w + at * size * itemsize, y + (done * stride + at) * 4
            tile(kind + full, weights, x + done * size * 4, to, size, stride)
            at += width if full else 1
        done += share


@njit(cache=True, error_model="numpy")
@no_type_check
def _share(count, threads):
    """The range of a thread's columns, in whole blocks."""
    own = own_share((count + BLOCK - 1) // BLOCK, threads)
    return own.start * BLOCK, min(own.stop * BLOCK, count)


@njit(cache=True, error_model="numpy")
@no_type_check
def _activated(gate, act):
    if act == 0:
        return gate / (1 + math.exp(-gate))
    if act == 1:
        return 0.5 * gate * (1 + math.erf(gate * 0.7071067811865476))
    if act == 2:
        return max(gate, 0.0)
    if act == 4:
        return max(gate, 0.0) ** 2
    inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
    return 0.5 * gate * (1 + math.tanh(inner))


@compiled
@no_type_check
def _linear(argument):
    w, x, sums, bias, y, rows, columns, size, half, act, threads = unpacked(argument, "iiiiFiiiiii")
    itemsize, halves = 2 if half else 4, 1 if act < 0 else 2
    own = columns // halves
    totals, add = floats(sums), floats(bias)
    first, last = _share(own, threads)
    for at in range(first, last, BLOCK):
        count = min(BLOCK, last - at)
        for begin in range(at, columns, own):
            weights, to = w + begin * size * itemsize, sums + begin * 4
            _columns(weights, x, to, rows, size, count, columns, half)
            if bias:
                for row in range(rows):
                    for i in range(begin, begin + count):
                        totals[row * columns + i] += add[i]
        if halves == 2:
            for row in range(rows):
                for i in range(at, at + count):
                    gate, up = totals[row * columns + i], totals[row * columns + own + i]
                    y[row * own + i] = _activated(gate, act) * up


def supports(x: Tensor, w: Tensor) -> bool:
    """Whether the kernel computes these rows with the matrix.

    Where the processor multiplies bfloat16 itself, torch is faster from `LEAST_HALF_ROWS` rows on.
    """
    size = w.shape[1]
    return (
        w.dtype in (torch.float32, torch.bfloat16)
        and x.dtype == w.dtype
        and w.is_contiguous()
        and size % LANES == 0
        and 0 < size <= x.numel()
        and (w.dtype == torch.float32 or x.numel() < size * LEAST_HALF_ROWS)
    )


def product(x: Tensor, w: Tensor, bias: Tensor | None, act: str | None = None) -> Tensor:
    """x Wᵀ + b in x's type, which is W's; with `act`, a gated product."""
    (rows, size), columns, half = x.shape, w.shape[0], x.dtype == torch.bfloat16
    wide, add = x.float().contiguous(), None if bias is None else bias.float().contiguous()
    code = -1 if act is None else ACTIVATIONS.index(act)
    y = empty(rows, columns if act is None else columns // 2)
    both = None if act is None else empty(min(rows, MOST_ROWS), columns)
    for x_part, y_part in zip(wide.split(MOST_ROWS), y.split(MOST_ROWS), strict=True):
        own, sums = len(x_part), y_part if both is None else both
        _linear(own * columns * size, w, x_part, sums, add, y_part, own, columns, size, half, code)
    return y.bfloat16() if half else y
