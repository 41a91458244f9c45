"""Lazy products of rows with a layer's weights.

    y = x Wᵀ + b ;  gated: y = act(x W₁ᵀ + b₁) · (x W₂ᵀ + b₂)

On a GPU, the rows of a decoding step use a kernel: Hopper's, or Triton's for few rows. A kernel
that divides K leaves partial sums, which the next kernel adds as it reads them. Prefills, CPUs and
float64 use torch's products. Any other module in place of a linear layer is called directly.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import ModuleType
from typing import Any, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Num
from torch import Tensor, nn

from bass.kernels import hopper
from bass.kernels import triton as kernels
from bass.ops import dispatch
from bass.ops.activation import IN_KERNELS, Activation, gate
from bass.ops.norms import ProjectionNorm
from bass.ops.quantize import (
    WIDENED,
    dequantized,
    kind_of,
    product_by_parts,
    quantize_rows,
    quantized_rows,
    scaled_product,
    widened,
)
from bass.records import Projection, Rotation

Inputs = Float[Tensor, "*rows in"]
Outputs = Float[Tensor, "*rows out"]
Matrix = Float[Tensor, "out in"]
Bias = Float[Tensor, " out"] | None


class Linear(nn.Module):
    """y = x Wᵀ + b; the weight has shape [out, in], the bias is None unless requested.

    Parameters start empty: `CheckpointIndex.load` or a trainer fills them.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        device: torch.device,
        dtype: torch.dtype,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.empty(out_features, in_features, device=device, dtype=dtype)
        )
        self.bias = (
            nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        )

    def __call__(self, x: Inputs) -> Outputs:
        return dense(x, self.weight, self.bias)

    def by_kernel(self, x: Inputs) -> bool:
        """Whether a kernel for few rows computes the product."""
        return dispatch.few_rows(x, self.weight, self.bias) and self.weight.dtype == x.dtype

    whole = __call__


@final
class QuantizedLinear(nn.Module):
    """y = x Wᵀ + b with W in 8 bits [out, in] and its `scale` [out].

        y[m, n] = (Σ_k q_x[m, k] q_w[n, k]) · scale_x[m] · scale_w[n] + b[n]

    `activations`: the type that x is quantized to; None: x is not quantized.
    """

    def __init__(
        self,
        weight: Num[Tensor, "out in"],
        scale: Float[Tensor, " out"],
        bias: Bias,
        activations: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.weight, self.scale, self.bias = _fixed(weight), _fixed(scale), _fixed(bias)
        self.activations = activations

    @classmethod
    def of(
        cls, weight: Matrix, bias: Bias, kind: torch.dtype, activations: torch.dtype | None
    ) -> "QuantizedLinear":
        """Quantize a weight, a part at a time in float32; on the meta device there is no memory to
        save.
        """
        rows = len(weight) if weight.is_meta else WIDENED // weight.shape[1]
        parts = [quantized_rows(part, kind) for part in weight.detach().split(max(1, rows))]
        return cls(
            torch.cat([q for q, _ in parts]),
            torch.cat([scale for _, scale in parts]),
            bias,
            activations,
        )

    def __call__(self, x: Inputs) -> Outputs:
        return linear(x, self).tensor()

    def by_kernel(self, x: Inputs) -> bool:
        """Whether a kernel for few rows computes the product."""
        return dispatch.few_rows(x, self.bias)

    def whole(self, x: Inputs) -> Outputs:
        """The product by torch."""
        if self.activations is not None:
            q = quantize_rows(x.reshape(-1, x.shape[-1]), self.activations)
            return self.scaled(*q, x.dtype).view(*x.shape[:-1], -1)
        wide = torch.promote_types(x.dtype, torch.float32)

        def matrix(part: slice) -> Tensor:
            return widened(self.weight[part], wide).mul_(self.scale[part, None]).to(x.dtype)

        return product_by_parts(x, len(self.weight), self.bias, matrix)

    def scaled(
        self, q: Num[Tensor, "rows in"], scale: Float[Tensor, " rows"], dtype: torch.dtype
    ) -> Float[Tensor, "rows out"]:
        """The product with quantized rows, by torch."""
        return scaled_product(q, self.weight, scale, self.scale, self.bias, dtype)


@final
class GroupQuantizedLinear(nn.Module):
    """y = x Wᵀ + b with W in 4 or 8 bits and a scale for each output and group of inputs.

        y[m, n] = Σ_k x[m, k] (q[n, k] - zero[g, n]) scale[g, n] + b[n] ,  g = k // group

    The weight stays quantized in memory, in a layout of `kernels.triton.group_quantized_gemm`, and
    the types of `weight` and `scale` say what the codes are. `order`: the weight's column j is
    input order[j] (GPTQ with `desc_act`: inputs sorted by group); None: j.
    """

    def __init__(
        self,
        weight: Num[Tensor, "out width"],
        scale: Num[Tensor, "groups out"],
        zero: Num[Tensor, "groups out"] | None,
        group: int,
        bias: Bias = None,
        order: Int[Tensor, " in"] | None = None,
    ) -> None:
        super().__init__()
        self.group = group
        self.weight, self.scale, self.zero = _fixed(weight), _fixed(scale), _fixed(zero)
        self.bias, self.order = _fixed(bias), _fixed(order)

    def __call__(self, x: Inputs) -> Outputs:
        return linear(x, self).tensor()

    def by_kernel(self, x: Inputs) -> bool:
        """Whether a kernel for few rows computes the product, with groups of this size."""
        return dispatch.few_rows(x, self.bias) and kernels.group_quantized_gemm.supports(
            self.weight, self.group
        )

    def partial_sums(
        self, rows: Float[Tensor, "rows in"], dtype: torch.dtype
    ) -> Float[Tensor, "splits rows out"]:
        """The product by the kernel, for few rows."""
        return kernels.group_quantized_gemm.linear(
            self._ordered(rows), self.weight, self.scale, self.zero, self.group,
            kind_of(self.weight, self.scale), self.bias, dtype,
        )  # fmt: skip

    def whole(self, x: Inputs) -> Outputs:
        """The product by torch."""

        def matrix(part: slice) -> Tensor:
            zero = None if self.zero is None else self.zero[:, part]
            return dequantized(self.weight[part], self.scale[:, part], zero, self.group, x.dtype)

        return product_by_parts(self._ordered(x), len(self.weight), self.bias, matrix)

    def _ordered(self, x: Inputs) -> Inputs:
        return x if self.order is None else x.index_select(-1, self.order)


def _fixed(x: Any) -> Any:
    """A parameter that is not trained."""
    return None if x is None else nn.Parameter(x, requires_grad=False)


@dataclass(frozen=True)
class Rows:
    """The input of a kernel's product."""

    x: Num[Tensor, "rows size"]
    # scales of quantized rows; or `hopper.gemm.PendingNorm` of rows with an unfinished norm
    scale: Any = None


class Operand(ABC):
    """A lazy input of products, computed in the form that the first reader needs."""

    @property
    @abstractmethod
    def like(self) -> Float[Tensor, "*rows size"]:
        """A tensor of the same shape, type and device."""

    @abstractmethod
    def tensor(self) -> Float[Tensor, "*rows size"]:
        """The complete value."""

    @abstractmethod
    def rows(self, layer: nn.Module) -> Rows:
        """The rows for the layer's product by a kernel."""


class Summed(ABC):
    """A lazy value of x that the residual stream adds, whole or from partial sums.

    by_kernel: whether a kernel for few rows computes it.
    """

    __slots__ = ("x",)

    def __init__(self, x: Inputs | Operand) -> None:
        self.x = x

    @property
    def like(self) -> Inputs:
        """A tensor with x's shape, type and device."""
        return self.x if isinstance(self.x, Tensor) else self.x.like

    def input(self) -> Inputs:
        """The complete x."""
        return self.x if isinstance(self.x, Tensor) else self.x.tensor()

    @property
    @abstractmethod
    def by_kernel(self) -> bool: ...

    @abstractmethod
    def tensor(self) -> Outputs:
        """The complete value, in x's type."""

    @abstractmethod
    def partial_sums(self) -> Float[Tensor, "splits rows out"]:
        """Its partial sums: float32 if there are several, else in x's type."""


@final
class Product(Summed):
    """x Wᵀ + b of a layer, computed by its reader."""

    __slots__ = ("layer",)

    def __init__(self, x: Inputs | Operand, layer: Any) -> None:
        super().__init__(x)
        self.layer = layer

    @property
    def by_kernel(self) -> bool:
        like = self.like
        # the device first: it costs a CPU's step the least
        return (
            dispatch.use_kernels(like) and _replaceable(self.layer) and self.layer.by_kernel(like)
        )

    def tensor(self) -> Outputs:
        if self.by_kernel:
            return _summed(self.partial_sums(), self.like)
        x = self.input()
        return self.layer.whole(x) if _replaceable(self.layer) else self.layer(x)

    def partial_sums(self) -> Float[Tensor, "splits rows out"]:
        like, layer = self.like, self.layer
        if not self.by_kernel:
            y = self.tensor()
            return y.view(1, -1, y.shape[-1])
        rows = rows_of(self.x, layer)
        if len(rows.x) > kernels.small_m_gemm.MOST_ROWS:  # by torch
            if rows.scale is None:
                return layer.whole(rows.x)[None]
            return layer.scaled(rows.x, rows.scale, like.dtype)[None]
        if type(layer) is GroupQuantizedLinear:
            return layer.partial_sums(rows.x, like.dtype)
        return gemm(rows.x, layer.weight).linear(
            rows.x, layer.weight, layer.bias, rows.scale, _scale(layer), like.dtype
        )


def linear(x: Inputs | Operand, layer: nn.Module) -> Product:
    """x Wᵀ + b."""
    return Product(x, layer)


def dense(x: Inputs, weight: Matrix, bias: Bias = None) -> Outputs:
    """x Wᵀ + b of a weight without a layer, as a head that is tied to the embedding."""
    if (
        dispatch.few_rows(x, weight, bias)
        and weight.dtype == x.dtype
        and len(rows := x.reshape(-1, x.shape[-1])) <= kernels.small_m_gemm.MOST_ROWS
    ):
        return _summed(gemm(rows, weight).linear(rows, weight, bias, None, None, x.dtype), x)
    y = by_cpu_kernel(x, weight, bias)
    return F.linear(x, weight, bias) if y is None else y


def by_cpu_kernel(
    x: Inputs, w: Matrix, bias: Bias, act: str | None = None
) -> Float[Tensor, "*rows columns"] | None:
    """x Wᵀ + b, with `act` gated, by a CPU's kernel; None if none supports it."""
    cpu = dispatch.cpu_kernels(x, w, bias, types=(torch.float32, torch.bfloat16))
    if cpu is None or not cpu.gemm.supports(x, w):
        return None
    return cpu.gemm.product(x.reshape(-1, x.shape[-1]), w, bias, act).view(*x.shape[:-1], -1)


def activated_linear(x: Inputs | Operand, layer: Any, act: Activation) -> Outputs:
    """act(x Wᵀ + b)."""
    product = linear(x, layer)
    grouped = type(layer) is GroupQuantizedLinear
    if product.by_kernel and act in IN_KERNELS and not grouped:
        like, rows = product.like, rows_of(x, layer)
        # elsewhere a product whose K is not divided takes longer than both
        if gemm(rows.x, layer.weight) is hopper.gemm:
            y = hopper.gemm.linear(
                rows.x, layer.weight, layer.bias, rows.scale, _scale(layer), like.dtype,
                IN_KERNELS[act],
            )  # fmt: skip
            return y.view(*like.shape[:-1], -1)
    return act(product.tensor())


def gated_linear(x: Inputs | Operand, layer: Any, act: Activation) -> Float[Tensor, "*rows inner"]:
    """act(gate) · up of a layer; the first half of its outputs are the gates."""
    product = linear(x, layer)
    like, name = product.like, IN_KERNELS.get(act)
    y = None
    if name is not None and product.by_kernel:
        if type(layer) is GroupQuantizedLinear:
            y = kernels.small_m_gemm.gate(product.partial_sums(), name, like.dtype)
        elif layer.bias is None:
            rows = rows_of(x, layer)
            if len(rows.x) <= kernels.small_m_gemm.MOST_ROWS:
                y = gemm(rows.x, layer.weight).gated(
                    rows.x, layer.weight, name, rows.scale, _scale(layer), like.dtype
                )
    elif name is not None and like.is_cpu and type(layer) is Linear:
        y = by_cpu_kernel(product.input(), layer.weight, layer.bias, name)
    return gate(product.tensor(), act) if y is None else y.view(*like.shape[:-1], -1)


def project_qkv(
    x: Float[Tensor, "batch window hidden"] | Operand,
    layer: nn.Module,
    heads: tuple[int, int, int],
    qk_norm: nn.Module | None = None,
    rotation: Rotation | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
) -> Projection:
    """Queries, keys and values in one product. `heads`: of queries, of keys and values, and the
    dimensions of each.
    """
    product = linear(x, layer)
    like, parts = product.like, product.partial_sums()
    if isinstance(qk_norm, ProjectionNorm):
        parts, qk_norm = qk_norm(_summed(parts, like))[None], None
    parts = parts.reshape(len(parts), *like.shape[:2], -1, heads[2])
    # autocast has its own type; several partial sums are float32, whatever they become
    dtype = parts.dtype if len(parts) == 1 else like.dtype
    return Projection(parts, heads[0], heads[1], dtype, qk_norm, rotation, sinks)


def gemm(x: Num[Tensor, "rows in"], w: Num[Tensor, "out in"]) -> ModuleType:
    """The kernels for a product of up to `small_m_gemm.MOST_ROWS` rows."""
    if dispatch.hopper(x) and hopper.gemm.supports(x, w):
        return hopper.gemm
    return kernels.small_m_gemm


def _summed(parts: Float[Tensor, "splits rows out"], like: Inputs) -> Outputs:
    y = parts[0] if len(parts) == 1 else parts.sum(0).to(like.dtype)
    return y.view(*like.shape[:-1], -1)


def _replaceable(layer: nn.Module) -> bool:
    """Whether a kernel may replace the layer's own product; a subclass may compute
    something else.
    """
    return type(layer) in (Linear, QuantizedLinear, GroupQuantizedLinear)


def rows_of(x: Inputs | Operand, layer: nn.Module) -> Rows:
    """An input as rows for a kernel of the layer's product, quantized if the layer is."""
    if isinstance(x, Operand):
        return x.rows(layer)
    rows, kind = x.reshape(-1, x.shape[-1]), quantized_to(layer)
    return Rows(rows) if kind is None else Rows(*quantize_rows(rows, kind))


def quantized_to(layer: nn.Module) -> torch.dtype | None:
    """The type to which a layer quantizes its input, or None."""
    return layer.activations if isinstance(layer, QuantizedLinear) else None


def _scale(layer: nn.Module) -> Bias:
    """Of the weight's rows."""
    return layer.scale if isinstance(layer, QuantizedLinear) else None
