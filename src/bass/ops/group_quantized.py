"""Linear layers of quantized checkpoints: scales, and perhaps zero points, for groups of inputs.

    y[m, n] = Σ_k x[m, k] (q[n, k] - zero[g, n]) scale[g, n] + b[n] ,  g = k // group

The weight stays quantized in memory, in a layout of `kernels.triton.group_quantized_gemm`. On a
GPU the rows of a decoding step use that kernel. Prefills and CPUs dequantize the weight to x's
type, a part of its rows at a time, and use torch's product. x is not quantized.
"""

from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Num
from torch import Tensor, nn

from bass.kernels import triton as kernels
from bass.ops import dispatch
from bass.ops.quantize import widened

DEQUANTIZED = 1 << 24  # numbers of a weight that are dequantized at a time


@final
class GroupQuantizedLinear(nn.Module):
    """y = x Wᵀ + b with W in 4 or 8 bits and a scale for each output and group of inputs.

    The types of `weight` and `scale` say what the codes are. `order`: the weight's column j is
    input order[j] (GPTQ with `desc_act`: inputs sorted by group); None: j.
    """

    def __init__(
        self,
        weight: Num[Tensor, "out width"],
        scale: Num[Tensor, "groups out"],
        zero: Num[Tensor, "groups out"] | None,
        group: int,
        bias: Float[Tensor, " out"] | None = None,
        order: Int[Tensor, " in"] | None = None,
    ) -> None:
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.zero = None if zero is None else nn.Parameter(zero, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.order = None if order is None else nn.Parameter(order, requires_grad=False)

    @property
    def in_kernel(self) -> bool:
        """Whether the kernel supports the sizes of its groups."""
        return kernels.group_quantized_gemm.supports(self.weight, self.group)

    def __call__(self, x: Float[Tensor, "*rows in"]) -> Float[Tensor, "*rows out"]:
        rows = x.reshape(-1, x.shape[-1])
        if (
            dispatch.few_rows(x, self.bias)
            and len(rows) <= kernels.small_m_gemm.MOST_ROWS
            and self.in_kernel
        ):
            parts = self.partial_sums(rows, x.dtype)
            y = parts[0] if len(parts) == 1 else parts.sum(0).to(x.dtype)
            return y.view(*x.shape[:-1], -1)
        return self.whole(x)

    def partial_sums(
        self, rows: Float[Tensor, "rows in"], dtype: torch.dtype
    ) -> Float[Tensor, "splits rows out"]:
        """The product by the kernel, for few rows."""
        return kernels.group_quantized_gemm.linear(
            self._ordered(rows), self.weight, self.scale, self.zero, self.group,
            kind_of(self.weight, self.scale), self.bias, dtype,
        )  # fmt: skip

    def whole(self, x: Float[Tensor, "*rows in"]) -> Float[Tensor, "*rows out"]:
        """The product by torch, with a part of the weight's rows at a time."""
        rows, out = self._ordered(x.reshape(-1, x.shape[-1])), len(self.weight)
        y, count = x.new_empty((len(rows), out)), max(1, DEQUANTIZED // x.shape[-1])
        for first in range(0, out, count):
            part = slice(first, first + count)
            weight = dequantized(
                self.weight[part],
                self.scale[:, part],
                None if self.zero is None else self.zero[:, part],
                self.group,
                x.dtype,
            )
            y[:, part] = F.linear(rows, weight, None if self.bias is None else self.bias[part])
        return y.view(*x.shape[:-1], -1)

    def _ordered(self, rows: Float[Tensor, "rows in"]) -> Float[Tensor, "rows in"]:
        return rows if self.order is None else rows.index_select(1, self.order)


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
    """The numbers that the codes stand for, rounded once to `dtype`."""
    kind = kind_of(weight, scale)
    wide = torch.promote_types(dtype, torch.float32)
    if kind in ("int4", "e2m1"):
        weight = unpacked(weight)
    size = weight.shape[1]

    def of_inputs(of_groups: Tensor) -> Tensor:
        return of_groups.T.repeat_interleave(group, 1)[:, :size]

    if kind == "e2m1":
        return (e2m1(weight, wide) * of_inputs(e8m0(scale).to(wide))).to(dtype)
    value = widened(weight, wide)
    if zero is not None:
        value = value - of_inputs(zero.to(wide))
    elif kind == "int4":
        value = value - 8
    return (value * of_inputs(scale.to(wide))).to(dtype)


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
