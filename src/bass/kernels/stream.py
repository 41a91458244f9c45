"""What stands between a decoder's products: residual sum and norm, rotary turn.

    add_norm   s' = s + Σ_i parts_i ;  n = s' / sqrt(mean(s'²) + eps) · weight
    turn       y = Σ_i parts_i ;  the heads of q and k turned: y cos + (y with its halves swapped) · signed sin

Sums are made in float32; the summands come from products whose K was divided.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from bass.kernels.launch import dependent, wait_for_inputs


@triton.jit(do_not_specialize=["rows"])
@no_type_check  # Triton reads the source, not the function
def _add_norm(
    stream, parts, weight, summed, normed, rows, size, eps,
    SPLITS: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    live = i < size
    scale = tl.load(weight + i, mask=live, other=0.0).to(tl.float32)
    wait_for_inputs(PDL)
    x = tl.load(stream + row * size + i, mask=live, other=0.0).to(tl.float32)
    for split in tl.static_range(SPLITS):
        x += tl.load(parts + (split * rows + row) * size + i, mask=live, other=0.0).to(tl.float32)
    rounded = x.to(summed.dtype.element_ty)
    if SPLITS > 0:
        tl.store(summed + row * size + i, rounded, mask=live)
    x = rounded.to(tl.float32)
    unit = x * tl.rsqrt(tl.sum(x * x, 0) / size + eps)
    tl.store(normed + row * size + i, (unit * scale).to(normed.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def _turn(
    y, out, cos, sin, rows, heads, turning,
    DIM: tl.constexpr, SPLITS: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, WIDTH)
    live = i < DIM
    wait_for_inputs(PDL)
    other = tl.where(i < DIM // 2, i + DIM // 2, i - DIM // 2)
    at = (row * heads + head) * DIM
    x, swapped = tl.zeros((WIDTH,), dtype=tl.float32), tl.zeros((WIDTH,), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        begin = y + tl.cast(split * rows, tl.int64) * heads * DIM + at
        x += tl.load(begin + i, mask=live, other=0.0).to(tl.float32)
        swapped += tl.load(begin + other, mask=live, other=0.0).to(tl.float32)
    if head < turning:
        c = tl.load(cos + row * DIM + i, mask=live, other=0.0).to(tl.float32)
        s = tl.load(sin + row * DIM + i, mask=live, other=0.0).to(tl.float32)
        x = x * c + swapped * s
    tl.store(out + at + i, x.to(out.dtype.element_ty), mask=live)


def add_norm(
    stream: Float[Tensor, "rows size"],
    parts: Float[Tensor, "splits rows size"] | None,
    weight: Float[Tensor, " size"],
    eps: float,
) -> tuple[Float[Tensor, "rows size"], Float[Tensor, "rows size"]]:
    """The stream with `parts` added, and its norm times weight. Without parts the stream is given back as it is."""
    rows, size = stream.shape
    normed = torch.empty_like(stream)
    summed = stream if parts is None else torch.empty_like(stream)
    width, splits = 1 << (size - 1).bit_length(), 0 if parts is None else len(parts)
    launch: Any = _add_norm[(rows,)]
    with torch.cuda.device_of(stream):
        launch(
            stream, stream if parts is None else parts, weight, summed, normed, rows, size, eps,
            SPLITS=splits, WIDTH=width, num_warps=8 if width > 2048 else 4, **dependent(stream),
        )  # fmt: skip
    return summed, normed


def turn(
    y: Float[Tensor, "splits rows heads dim"],
    turning: int,
    cos: Float[Tensor, "rows dim"],
    sin: Float[Tensor, "rows dim"],
    dtype: torch.dtype,
) -> Float[Tensor, "rows heads dim"]:
    """The sum of the parts, its first `turning` heads (those of q and k) turned by the angles of their rows."""
    splits, rows, heads, dim = y.shape
    out = y.new_empty(y.shape[1:], dtype=dtype)
    launch: Any = _turn[(rows, heads)]
    with torch.cuda.device_of(y):
        launch(
            y, out, cos, sin, rows, heads, turning,
            DIM=dim, SPLITS=splits, WIDTH=1 << (dim - 1).bit_length(), num_warps=1, **dependent(y),
        )  # fmt: skip
    return out
