"""The residual stream: embedded tokens; the sum, and the norm after it if there is one.

    s' = s + scale · through(Σ_i partial_sums_i) [+ scale · Σ_i others_i] ;  n = norm(s')

Kinds of norms: `values.Norm`. n is in 8 bits with a scale if the next product is quantized.
`through` is such a norm, or the identity. Sums are in float32; the partial sums come from products
with a divided K.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from bass.kernels.triton.launch import dependent, wait_for_all, wait_for_inputs
from bass.kernels.triton.quantize import in_8_bits, options
from bass.kernels.values import Norm

EMBEDDED_WIDTH = 1024  # numbers of one program of `embedded`


@triton.jit
@no_type_check  # Triton reads the source, not the function
def _loaded(weight, bias, i, live, KIND: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr):
    """The weight and the bias of a norm."""
    scale = tl.full(i.shape, 1.0, tl.float32)
    shift = tl.zeros(i.shape, dtype=tl.float32)
    if WEIGHT:
        scale = tl.load(weight + i, mask=live, other=0.0).to(tl.float32)
        if KIND == "offset_rms":
            scale += 1.0
    if BIAS:
        shift = tl.load(bias + i, mask=live, other=0.0).to(tl.float32)
    return scale, shift


@triton.jit
@no_type_check
def _unit(x, live, size, eps, KIND: tl.constexpr):
    """The row scaled to mean square 1, for `layer` after subtracting its mean."""
    if KIND == "layer":
        x = tl.where(live, x - tl.sum(x, 0) / size, 0.0)
    return x * tl.rsqrt(tl.sum(x * x, 0) / size + eps)


@triton.jit
@no_type_check
def _sum(parts, row, rows, size, i, live, SPLITS: tl.constexpr):
    total = tl.zeros(i.shape, dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + (split * rows + row) * size + i, mask=live, other=0.0).to(
            tl.float32
        )
    return total


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def _add_norm(
    stream, parts, others, weight, bias, through_weight, summed, normed, scales, rows, size, eps,
    scale, through_eps,
    SPLITS: tl.constexpr, OTHERS: tl.constexpr, KIND: tl.constexpr, WEIGHT: tl.constexpr,
    BIAS: tl.constexpr, THROUGH: tl.constexpr, WIDTH: tl.constexpr, IN_8_BITS: tl.constexpr,
    LARGEST: tl.constexpr, SMALLEST: tl.constexpr, INTEGER: tl.constexpr, BY_HAND: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    live = i < size
    by, shift = _loaded(weight, bias, i, live, KIND, WEIGHT, BIAS)
    if THROUGH != "":
        through_by, _ = _loaded(through_weight, bias, i, live, THROUGH, True, False)
    wait_for_inputs(PDL)
    x = tl.load(stream + row * size + i, mask=live, other=0.0).to(tl.float32)
    if SPLITS > 0:
        y = _sum(parts, row, rows, size, i, live, SPLITS)
        if THROUGH != "":
            y = _unit(y, live, size, through_eps, THROUGH) * through_by
        x += y * scale
    if OTHERS > 0:
        x += _sum(others, row, rows, size, i, live, OTHERS) * scale
    rounded = x.to(summed.dtype.element_ty)
    if SPLITS > 0:
        tl.store(summed + row * size + i, rounded, mask=live)
    if KIND != "":
        value = _unit(rounded.to(tl.float32), live, size, eps, KIND) * by + shift
        if IN_8_BITS:
            value, own_scale = in_8_bits(value, LARGEST, SMALLEST, INTEGER, BY_HAND)
            tl.store(scales + row, own_scale)
        tl.store(normed + row * size + i, value.to(normed.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["token_stride"])
@no_type_check
def _embedded(
    table, tokens, out, vocab, size, stride, token_stride, WIDTH: tl.constexpr, PDL: tl.constexpr
):
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    wait_for_all(PDL)  # a pass begins here, and its kernels prefetch old keys before they wait
    token = tl.load(tokens + row * token_stride).to(tl.int64)
    value = tl.load(
        table + token * stride + i,
        mask=(i < size) & (token >= 0) & (token < vocab),
        other=float("nan"),
    )
    tl.store(out + row * size + i, value, mask=i < size)


def embedded(
    table: Float[Tensor, "vocab size"], tokens: Int[Tensor, "*rows"]
) -> Float[Tensor, "*rows size"]:
    """The rows of the table for the tokens; NaN for an invalid token."""
    out, flat, size = (
        table.new_empty(*tokens.shape, table.shape[1]),
        tokens.reshape(-1),
        table.shape[1],
    )
    launch: Any = _embedded[(len(flat), -(-size // EMBEDDED_WIDTH))]
    with torch.cuda.device_of(table):
        launch(
            table, flat, out, *table.shape, table.stride(0), flat.stride(0), WIDTH=EMBEDDED_WIDTH,
            num_warps=4, **dependent(table),
        )  # fmt: skip
    return out


def add_norm(
    stream: Float[Tensor, "rows size"],
    parts: Float[Tensor, "splits rows size"] | None,
    norm: Norm | None = None,
    kind: torch.dtype | None = None,
    others: Float[Tensor, "others rows size"] | None = None,
    scale: float = 1.0,
    through: Norm | None = None,
) -> tuple[Float[Tensor, "rows size"], Any, Float[Tensor, " rows"] | None]:
    """The stream with `parts`, and `others` if there are two, added, and its norm, in `kind` (int8
    or e4m3) with a scale for each row if that is given.

    Without parts the stream is returned unchanged; without a norm there is None in its place.
    `through`: an rms or offset_rms.
    """
    stream, (rows, size) = stream.contiguous(), stream.shape
    summed = stream if parts is None else torch.empty_like(stream)
    normed = None if norm is None else torch.empty_like(stream, dtype=kind)
    scales = None if kind is None else stream.new_empty(rows, dtype=torch.float32)
    own = norm or Norm(None, 0.0, "")
    launch: Any = _add_norm[(rows,)]
    with torch.cuda.device_of(stream):
        launch(
            stream, parts, others, own.weight, own.bias,
            None if through is None else through.weight, summed, normed, scales, rows, size,
            own.eps, scale, 0.0 if through is None else through.eps,
            SPLITS=0 if parts is None else len(parts), OTHERS=0 if others is None else len(others),
            KIND=own.kind, WEIGHT=own.weight is not None, BIAS=own.bias is not None,
            THROUGH="" if through is None else through.kind, WIDTH=1 << (size - 1).bit_length(),
            IN_8_BITS=kind is not None, num_warps=8 if size > 2048 else 4,
            **options(kind or torch.int8), **dependent(stream),
        )  # fmt: skip
    return summed, normed, scales
