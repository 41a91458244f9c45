"""The residual sum and the norm after it.

    s' = s + Σ_i partial_sums_i ;  n = s' / sqrt(mean(s'²) + eps) · weight, in 8 bits with a scale
    if the next product wants that

Sums are made in float32; the partial sums come from products whose K was divided.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Num
from torch import Tensor

from bass.kernels.triton.launch import dependent, wait_for_inputs
from bass.kernels.triton.quantize import in_8_bits, options


@triton.jit(do_not_specialize=["rows"])
@no_type_check  # Triton reads the source, not the function
def _add_norm(
    stream, parts, weight, summed, normed, scales, rows, size, eps,
    SPLITS: tl.constexpr, WIDTH: tl.constexpr, IN_8_BITS: tl.constexpr, LARGEST: tl.constexpr,
    SMALLEST: tl.constexpr,
    INTEGER: tl.constexpr, BY_HAND: tl.constexpr, PDL: tl.constexpr,
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
    value = unit * scale
    if IN_8_BITS:
        value, own_scale = in_8_bits(value, LARGEST, SMALLEST, INTEGER, BY_HAND)
        tl.store(scales + row, own_scale)
    tl.store(normed + row * size + i, value.to(normed.dtype.element_ty), mask=live)


def add_norm(
    stream: Float[Tensor, "rows size"],
    parts: Float[Tensor, "splits rows size"] | None,
    weight: Float[Tensor, " size"],
    eps: float,
    kind: torch.dtype | None = None,
) -> tuple[Float[Tensor, "rows size"], Num[Tensor, "rows size"], Float[Tensor, " rows"] | None]:
    """The stream with `parts` added, and its norm times weight, in `kind` (int8 or e4m3) with a
    scale for each row if that is given.

    Without parts the stream is given back as it is.
    """
    stream, (rows, size) = stream.contiguous(), stream.shape
    normed = torch.empty_like(stream, dtype=kind)
    scales = None if kind is None else stream.new_empty(rows, dtype=torch.float32)
    summed = stream if parts is None else torch.empty_like(stream)
    width, splits = 1 << (size - 1).bit_length(), 0 if parts is None else len(parts)
    launch: Any = _add_norm[(rows,)]
    with torch.cuda.device_of(stream):
        launch(
            stream, stream if parts is None else parts, weight, summed, normed, scales, rows, size,
            eps,
            SPLITS=splits, WIDTH=width, IN_8_BITS=kind is not None,
            num_warps=8 if width > 2048 else 4,
            **options(kind or torch.int8), **dependent(stream),
        )  # fmt: skip
    return summed, normed, scales
