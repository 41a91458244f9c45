"""Products of a few rows with a matrix that is read once, in float32 or bfloat16.

    y = x Wᵀ + b ;  gated: y = act(x W₁ᵀ + b₁) · (x W₂ᵀ + b₂)

Each thread computes a range of the columns of y, `BLOCK` at a time: the block of W stays in its
first cache for all rows of x. x and the sums are float32.
"""

import math
from typing import Any, no_type_check

import torch
from jaxtyping import Float
from numba import njit
from torch import Tensor

from bass.kernels.cpu.runtime import compiled, empty, floats, integers, own_share
from bass.kernels.cpu.tiles import LANES, MOST, WIDTHS, tile

BLOCK = 12  # rows of W: a multiple of each of `WIDTHS`
MOST_ROWS = 256  # of x, for which W is read once; more of them may leave the caches
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
            tile(
                kind + full,
                w + at * size * itemsize,
                x + done * size * 4,
                y + (done * stride + at) * 4,
                size,
                stride,
            )
            at += width if full else 1
        done += share


@njit(cache=True, error_model="numpy")
@no_type_check
def _share(count, threads):
    """The range of a thread's columns, in whole blocks."""
    own = own_share((count + BLOCK - 1) // BLOCK, threads)
    return own.start * BLOCK, min(own.stop * BLOCK, count)


@compiled
@no_type_check
def _linear(argument):
    a = integers(argument)
    w, x, y, bias, rows, columns, size, half, threads = (
        a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]
    )  # fmt: skip
    itemsize = 2 if half else 4
    first, last = _share(columns, threads)
    for at in range(first, last, BLOCK):
        count = min(BLOCK, last - at)
        _columns(w + at * size * itemsize, x, y + at * 4, rows, size, count, columns, half)
        if bias:
            out, add = floats(y), floats(bias)
            for row in range(rows):
                for i in range(at, at + count):
                    out[row * columns + i] += add[i]


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
def _gated(argument):
    a = integers(argument)
    w, x, both, y, bias, rows, inner, size, half, act, threads = (
        a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10]
    )  # fmt: skip
    itemsize, columns = 2 if half else 4, 2 * inner
    first, last = _share(inner, threads)
    for at in range(first, last, BLOCK):
        count = min(BLOCK, last - at)
        for begin in (at, inner + at):
            _columns(
                w + begin * size * itemsize, x, both + begin * 4, rows, size, count, columns, half
            )
        parts, out, add = floats(both), floats(y), floats(bias)
        for row in range(rows):
            for i in range(at, at + count):
                gate, up = parts[row * columns + i], parts[row * columns + inner + i]
                if bias:
                    gate, up = gate + add[i], up + add[inner + i]
                out[row * inner + i] = _activated(gate, act) * up


def supports(w: Tensor) -> bool:
    """Whether the kernels support the matrix."""
    return (
        w.dtype in (torch.float32, torch.bfloat16)
        and w.is_contiguous()
        and w.shape[1] % LANES == 0
        and w.shape[1] > 0
    )


def linear(
    x: Float[Tensor, "rows in"], w: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
) -> Float[Tensor, "rows out"]:
    """x Wᵀ + b in x's type, which is W's."""
    (rows, size), columns, half = x.shape, w.shape[0], x.dtype == torch.bfloat16
    wide, add = _floats(x), _floats(bias)
    y = empty(rows, columns)
    for x_part, y_part in zip(wide.split(MOST_ROWS), y.split(MOST_ROWS), strict=True):
        own = len(x_part)
        _linear(own * columns * size, w, x_part, y_part, add, own, columns, size, half)
    return y.bfloat16() if half else y


def gated(
    x: Float[Tensor, "rows in"],
    w: Float[Tensor, "twice in"],
    bias: Float[Tensor, " twice"] | None,
    act: str,
) -> Float[Tensor, "rows inner"]:
    """act(gate) · up in x's type; the first half of W's rows give the gates."""
    (rows, size), inner, half = x.shape, w.shape[0] // 2, x.dtype == torch.bfloat16
    wide, add = _floats(x), _floats(bias)
    both, y = empty(2 * min(rows, MOST_ROWS) * inner), empty(rows, inner)
    for x_part, y_part in zip(wide.split(MOST_ROWS), y.split(MOST_ROWS), strict=True):
        own = len(x_part)
        _gated(
            2 * own * inner * size, w, x_part, both, y_part, add, own, inner, size, half,
            ACTIVATIONS.index(act),
        )  # fmt: skip
    return y.bfloat16() if half else y


def _floats(values: Tensor | None) -> Any:
    """The numbers in float32, without gaps; None for None."""
    if values is None or (values.dtype == torch.float32 and values.is_contiguous()):
        return values
    return values.float().contiguous()
