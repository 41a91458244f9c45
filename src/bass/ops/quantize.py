"""Rows in 8 bits with a scale each, and their products.

    scale[r] = max |x[r]| / L ;  q[r] = round(x[r] / scale[r])

with L the largest number of the type: 127 (int8) or 448 (e4m3).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Num, Shaped
from torch import Tensor

from bass.kernels import triton as kernels
from bass.ops import dispatch

E4M3 = torch.float8_e4m3fn
LARGEST = {torch.int8: 127.0, E4M3: 448.0}
# lower bound of a row's largest magnitude, so that a row of zeros is not divided by zero
SMALLEST = 1e-30


def quantize_rows(
    x: Float[Tensor, "rows size"], kind: torch.dtype
) -> tuple[Num[Tensor, "rows size"], Float[Tensor, " rows"]]:
    """As `quantized_rows`; on a GPU in one launch."""
    if dispatch.use_kernels(x) and x.dtype in dispatch.DTYPES:
        return kernels.quantize.quantize_rows(x, kind)
    return quantized_rows(x, kind)


def quantized_rows(
    x: Float[Tensor, "*rows size"], kind: torch.dtype
) -> tuple[Num[Tensor, "*rows size"], Float[Tensor, " *rows"]]:
    """Each row in `kind`, int8 or e4m3, half to even; and its scale, float32.

    Scaling a row by a power of 2 scales its scale alone.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    top = x.abs().amax(-1, keepdim=True).clamp(min=SMALLEST)
    # a tensor: torch divides by a Python number with the rounding of its reciprocal
    largest = torch.full_like(top, LARGEST[kind])
    scaled = x * (largest / top)  # may exceed L by a few millionths, and then rounds to it
    return (scaled.round() if kind == torch.int8 else scaled).to(kind), (top / largest).squeeze(
        -1
    ).float()


def scaled_product(
    x: Num[Tensor, "rows in"],
    w: Num[Tensor, "out in"],
    x_scale: Float[Tensor, " rows"],
    w_scale: Float[Tensor, " out"],
    bias: Float[Tensor, " out"] | None,
    dtype: torch.dtype,
) -> Float[Tensor, "rows out"]:
    """(x wᵀ) · scales + b, for any number of rows.

    Sums of int8 are exact, those of e4m3 in float32 or wider.
    """
    wide = torch.promote_types(dtype, torch.float32)
    if x.dtype == torch.int8:
        total = integer_product(x, w).to(wide)
    elif not x.is_cuda or any(size % 16 for size in w.shape):
        total = widened(x, wide) @ widened(w, wide).T
    elif dtype == torch.bfloat16:  # the only type with a scale for each row
        return torch.ops.aten._scaled_mm(
            x, w.T, x_scale[:, None], w_scale[None], bias=bias, out_dtype=dtype
        )
    else:
        one = torch.ones((), device=x.device)
        total = torch.ops.aten._scaled_mm(x, w.T, one, one, out_dtype=torch.float32).to(wide)
    y = total.mul_(x_scale[:, None]).mul_(w_scale)
    return (y if bias is None else y.add_(bias)).to(dtype)


def integer_product(
    x: Num[Tensor, "rows in"], w: Num[Tensor, "out in"]
) -> Shaped[Tensor, "rows out"]:
    """x wᵀ of int8, without rounding.

    torch's product on a GPU needs at least 17 rows, and sizes that are multiples of 8.
    """
    if not x.is_cuda:
        return torch.ops.aten._int_mm(x, w.T)
    if any(size % 8 for size in w.shape):
        return x.double() @ w.double().T
    return torch.ops.aten._int_mm(F.pad(x, (0, 0, 0, max(0, 32 - len(x)))), w.T)[: len(x)]


def widened(q: Num[Tensor, "*shape"], dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    """The same numbers in `dtype`, float32 or float64.

    On a CPU, e4m3 is converted by its bits, 16 times as fast as torch's conversion: sign, exponent
    and mantissa at the bit positions of float16 are the number divided by 256, also if subnormal.
    """
    if q.dtype != E4M3 or not q.is_cpu:
        return q.to(dtype)
    # the mask clears the copy of the sign bit from widening
    bits = q.view(torch.int8).to(torch.int16).bitwise_left_shift_(7).bitwise_and_(~(1 << 14))
    return bits.view(torch.float16).to(dtype).mul_(256)
