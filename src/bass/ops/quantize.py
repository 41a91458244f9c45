"""Numbers in 8 or 4 bits: rows with a scale each and their products, and codes whose scales belong
to groups of inputs.

    scale[r] = max |x[r]| / L ;  q[r] = round(x[r] / scale[r])

with L the largest number of the type: 127 (int8) or 448 (e4m3).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Num, Shaped
from torch import Tensor

from bass.kernels import triton as kernels
from bass.ops import dispatch

E4M3 = torch.float8_e4m3fn
LARGEST = {torch.int8: 127.0, E4M3: 448.0}
# lower bound of a row's largest magnitude, so that a row of zeros is not divided by zero
SMALLEST = 1e-30
WIDENED = 1 << 24  # numbers of a weight that are widened at a time


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
    q = (scaled.round() if kind == torch.int8 else scaled).to(kind)
    return q, (top / largest).squeeze(-1).float()


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


def product_by_parts(
    x: Float[Tensor, "*rows in"],
    columns: int,
    bias: Float[Tensor, " out"] | None,
    matrix: Callable[[slice], Tensor],
) -> Float[Tensor, "*rows out"]:
    """x Wᵀ + b by torch, where `matrix` gives some of the `columns` rows of W in x's type."""
    rows = x.reshape(-1, x.shape[-1])
    y, count = x.new_empty((len(rows), columns)), max(1, WIDENED // x.shape[-1])
    for first in range(0, columns, count):
        part = slice(first, first + count)
        y[:, part] = F.linear(rows, matrix(part), None if bias is None else bias[part])
    return y.view(*x.shape[:-1], columns)


def kind_of(weight: Tensor, scale: Tensor) -> str:
    """The kind of codes, by the types of both."""
    if weight.dtype == torch.uint8:
        return "e2m1" if scale.dtype == torch.uint8 else "int4"
    return "int8" if weight.dtype == torch.int8 else "e4m3"


def dequantized(
    weight: Num[Tensor, "out width"],
    scale: Num[Tensor, "groups out"],
    zero: Num[Tensor, "groups out"] | None,
    group: int,
    dtype: torch.dtype,
) -> Float[Tensor, "out in"]:
    """The numbers that stored codes stand for, rounded once to `dtype`."""
    kind = kind_of(weight, scale)
    codes = unpacked(weight) if kind in ("int4", "e2m1") else weight
    groups = torch.arange(codes.shape[1], device=codes.device) // group
    return numbers(codes, scale, zero, groups, kind, dtype)


def numbers(
    codes: Num[Tensor, "out in"],
    scale: Num[Tensor, "groups out"],
    zero: Num[Tensor, "groups out"] | None,
    groups: Int[Tensor, " in"],
    kind: str,
    dtype: torch.dtype,
) -> Float[Tensor, "out in"]:
    """The numbers that codes stand for, one by one; groups: of the inputs."""
    wide = torch.promote_types(dtype, torch.float32)
    if kind == "e2m1":
        return (e2m1(codes, wide) * e8m0(scale).to(wide)[groups].T).to(dtype)
    value = widened(codes, wide)
    if zero is not None:
        value = value - zero.to(wide)[groups].T
    elif kind == "int4":
        value = value - 8
    return (value * scale.to(wide)[groups].T).to(dtype)


def packed(codes: Num[Tensor, "out in"]) -> Num[Tensor, "out half"]:
    """Codes of 4 bits, two to a byte: those of the first half of the inputs in the low bits."""
    low, high = codes.to(torch.uint8).chunk(2, 1)
    return low | high << 4


def unpacked(weight: Num[Tensor, "out half"]) -> Num[Tensor, "out in"]:
    """The inverse of `packed`."""
    return torch.cat((weight & 15, weight >> 4), 1)


def e2m1(codes: Num[Tensor, "*shape"], dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    """The numbers of 4 bits with a sign, two bits of exponent and one of mantissa: 0, 0.5, 1, 1.5,
    2, 3, 4, 6.
    """
    low = (codes & 7).to(torch.int32)
    doubled = torch.where(low < 2, low, (low & 1 | 2) << ((low >> 1) - 1).clamp(min=0))
    return torch.where(codes > 7, -doubled, doubled).to(dtype) / 2


def e8m0(codes: Num[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """2^(code - 127), in float32, whose exponent has the same bits; the smallest code is 0."""
    return (codes.to(torch.int32) << 23).view(torch.float32)
