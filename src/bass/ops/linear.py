"""Products of rows with a layer's weights, computed when they are read.

    y = x Wᵀ + b ;  gated: y = act(x W₁ᵀ + b₁) · (x W₂ᵀ + b₂)

The rows of a decoding step take a kernel on a GPU: Hopper's, or Triton's for few rows. These leave
partial sums where they divide K, which the next kernel completes as it reads them. Prefills, CPUs
and float64 take torch's products. Any other module in the place of a linear layer is called as it
is.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import ModuleType
from typing import Any, final

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Num
from torch import Tensor, nn

from bass.kernels import hopper
from bass.kernels import triton as kernels
from bass.ops import dispatch
from bass.ops.activation import IN_KERNELS, Activation, gate
from bass.ops.quantize import quantize_rows, quantized_rows, scaled_product, widened
from bass.records import Projection, Rotation

# numbers of a weight that are in the compute type at a time, where it is not multiplied in 8 bits
WIDENED = 1 << 24


class Linear(nn.Module):
    """y = x Wᵀ + b; the weight has shape [out, in], the bias is None unless requested.

    Parameters are left empty: `weights.load_decoder` or a trainer fills them.
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

    def __call__(self, x: Float[Tensor, "*rows in"]) -> Float[Tensor, "*rows out"]:
        return dense(x, self.weight, self.bias)

    def whole(self, x: Float[Tensor, "*rows in"]) -> Float[Tensor, "*rows out"]:
        """The product by torch."""
        return F.linear(x, self.weight, self.bias)


@final
class QuantizedLinear(nn.Module):
    """y = x Wᵀ + b with W in 8 bits [out, in] and its `scale` [out].

        y[m, n] = (Σ_k q_x[m, k] q_w[n, k]) · scale_x[m] · scale_w[n] + b[n]

    `activations`: the type that x is quantized to; None: as it is.
    """

    def __init__(
        self,
        weight: Num[Tensor, "out in"],
        scale: Float[Tensor, " out"],
        bias: Float[Tensor, " out"] | None,
        activations: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.activations = activations

    @classmethod
    def of(
        cls,
        weight: Float[Tensor, "out in"],
        bias: Float[Tensor, " out"] | None,
        kind: torch.dtype,
        activations: torch.dtype | None,
    ) -> "QuantizedLinear":
        """From a weight in full; a part of it at a time is in float32 meanwhile."""
        parts = [
            quantized_rows(part, kind)
            for part in weight.detach().split(max(1, WIDENED // weight.shape[1]))
        ]
        return cls(
            torch.cat([q for q, _ in parts]),
            torch.cat([scale for _, scale in parts]),
            bias,
            activations,
        )

    def __call__(self, x: Float[Tensor, "*rows in"]) -> Float[Tensor, "*rows out"]:
        return linear(x, self).tensor()

    def whole(self, x: Float[Tensor, "*rows in"]) -> Float[Tensor, "*rows out"]:
        """The product by torch."""
        rows = x.reshape(-1, x.shape[-1])
        if self.activations is None:
            y = self._widened(rows)
        else:
            y = self.scaled(*quantize_rows(rows, self.activations), x.dtype)
        return y.view(*x.shape[:-1], -1)

    def scaled(
        self, q: Num[Tensor, "rows in"], scale: Float[Tensor, " rows"], dtype: torch.dtype
    ) -> Float[Tensor, "rows out"]:
        """The product with quantized rows, by torch."""
        return scaled_product(q, self.weight, scale, self.scale, self.bias, dtype)

    def _widened(self, x: Float[Tensor, "rows in"]) -> Float[Tensor, "rows out"]:
        """With the weight in x's type again, a part of its rows at a time."""
        count, y = max(1, WIDENED // self.weight.shape[1]), x.new_empty((len(x), len(self.weight)))
        wide = torch.promote_types(x.dtype, torch.float32)
        for first in range(0, len(self.weight), count):
            part = slice(first, first + count)
            weight = widened(self.weight[part], wide).mul_(self.scale[part, None]).to(x.dtype)
            y[:, part] = F.linear(x, weight, None if self.bias is None else self.bias[part])
        return y


@dataclass(frozen=True)
class Rows:
    """What enters a kernel's product."""

    x: Num[Tensor, "rows size"]
    # of quantized rows; or `hopper.gemm.Squares`, of rows still to be divided by their RMS
    scale: Any = None


class Operand(ABC):
    """What enters products, and is computed as the first of them wants it."""

    @property
    @abstractmethod
    def like(self) -> Float[Tensor, "*rows size"]:
        """A tensor of the same shape, type and place."""
        ...

    @abstractmethod
    def tensor(self) -> Float[Tensor, "*rows size"]: ...

    @abstractmethod
    def rows(self, layer: nn.Module) -> Rows:
        """For the layer's product by a kernel."""
        ...


@final
class Product:
    """x Wᵀ + b of a layer. Computed when it is read, by whoever reads it."""

    __slots__ = ("layer", "x")

    def __init__(self, x: Tensor | Operand, layer: Any) -> None:
        self.x, self.layer = x, layer

    @property
    def like(self) -> Float[Tensor, "*rows in"]:
        """A tensor with x's shape, type and place."""
        return self.x if isinstance(self.x, Tensor) else self.x.like

    @property
    def by_kernel(self) -> bool:
        """Whether a kernel for few rows computes it."""
        like, layer = self.like, self.layer
        return (
            _ours(layer)
            and dispatch.few_rows(like, layer.weight, layer.bias)
            and (type(layer) is QuantizedLinear or layer.weight.dtype == like.dtype)
        )

    def tensor(self) -> Float[Tensor, "*rows out"]:
        """Complete, in x's type."""
        if self.by_kernel:
            return _summed(self.partial_sums(), self.like)
        return _whole(self.x if isinstance(self.x, Tensor) else self.x.tensor(), self.layer)

    def partial_sums(self) -> Float[Tensor, "splits rows out"]:
        """As the product leaves them: float32 if there are several, else x's type."""
        like, layer = self.like, self.layer
        if not self.by_kernel:
            y = self.tensor()
            return y.view(1, -1, y.shape[-1])
        rows = self.rows()
        if len(rows.x) > kernels.small_m_gemm.MOST_ROWS:
            return _whole_rows(rows, layer, like.dtype)[None]
        return gemm(rows.x, layer.weight).linear(
            rows.x, layer.weight, layer.bias, rows.scale, _scale(layer), like.dtype
        )

    def rows(self) -> Rows:
        """What enters, for a kernel."""
        return (
            self.x.rows(self.layer) if isinstance(self.x, Operand) else rows_of(self.x, self.layer)
        )


def linear(x: Float[Tensor, "*rows in"] | Operand, layer: nn.Module) -> Product:
    """x Wᵀ + b."""
    return Product(x, layer)


def dense(
    x: Float[Tensor, "*rows in"],
    weight: Float[Tensor, "out in"],
    bias: Float[Tensor, " out"] | None = None,
) -> Float[Tensor, "*rows out"]:
    """x Wᵀ + b, of a weight that belongs to no layer: that of a head which is the embedding."""
    rows = x.reshape(-1, x.shape[-1])
    if (
        dispatch.few_rows(x, weight, bias)
        and weight.dtype == x.dtype
        and len(rows) <= kernels.small_m_gemm.MOST_ROWS
    ):
        return _summed(gemm(rows, weight).linear(rows, weight, bias, None, None, x.dtype), x)
    return F.linear(x, weight, bias)


def gated_linear(
    x: Float[Tensor, "*rows in"] | Operand, layer: Any, act: Activation
) -> Float[Tensor, "*rows inner"]:
    """act(gate) · up, of a layer whose first half of outputs are the gates."""
    product = linear(x, layer)
    like = product.like
    if product.by_kernel and act in IN_KERNELS and layer.bias is None:
        rows = product.rows()
        if len(rows.x) <= kernels.small_m_gemm.MOST_ROWS:
            y = gemm(rows.x, layer.weight).gated(
                rows.x, layer.weight, IN_KERNELS[act], rows.scale, _scale(layer), like.dtype
            )
            return y.view(*like.shape[:-1], -1)
    return gate(product.tensor(), act)


def project_qkv(
    x: Float[Tensor, "batch window hidden"] | Operand,
    layer: nn.Module,
    heads: tuple[int, int, int],
    qk_norm: nn.Module | None = None,
    rotation: Rotation | None = None,
) -> Projection:
    """Queries, keys and values in one product. `heads`: of queries, of keys and values, and the
    dimensions of each.
    """
    product = linear(x, layer)
    like, parts = product.like, product.partial_sums()
    return Projection(
        rearrange(
            parts,
            "splits (batch window) (all_heads dim) -> splits batch window all_heads dim",
            batch=like.shape[0],
            dim=heads[2],
        ),
        heads[0],
        heads[1],
        like.dtype,
        qk_norm,
        rotation,
    )


def gemm(x: Num[Tensor, "rows in"], w: Num[Tensor, "out in"]) -> ModuleType:
    """The kernels for a product of up to `small_m_gemm.MOST_ROWS` rows."""
    if dispatch.hopper(x) and hopper.gemm.supports(x, w):
        return hopper.gemm
    return kernels.small_m_gemm


def _summed(
    parts: Float[Tensor, "splits rows out"], like: Float[Tensor, "*rows in"]
) -> Float[Tensor, "*rows out"]:
    y = parts[0] if len(parts) == 1 else parts.sum(0).to(like.dtype)
    return y.view(*like.shape[:-1], -1)


def _ours(layer: nn.Module) -> bool:
    """Whether a kernel may stand for the layer; a subclass may compute something else."""
    return type(layer) is Linear or type(layer) is QuantizedLinear


def _whole(x: Tensor, layer: Any) -> Tensor:
    return layer.whole(x) if _ours(layer) else layer(x)


def _whole_rows(rows: Rows, layer: Any, dtype: torch.dtype) -> Float[Tensor, "rows out"]:
    """The product of more rows than the kernels take, by a library."""
    return layer.whole(rows.x) if rows.scale is None else layer.scaled(rows.x, rows.scale, dtype)


def rows_of(x: Float[Tensor, "*rows size"], layer: nn.Module) -> Rows:
    """A tensor, as a kernel for the layer's product wants it."""
    rows, kind = x.reshape(-1, x.shape[-1]), quantized_to(layer)
    return Rows(rows) if kind is None else Rows(*quantize_rows(rows, kind))


def quantized_to(layer: nn.Module) -> torch.dtype | None:
    """The type that a layer quantizes its rows to, if it does."""
    return layer.activations if isinstance(layer, QuantizedLinear) else None


def _scale(layer: nn.Module) -> Float[Tensor, " out"] | None:
    """Of the weight's rows."""
    return layer.scale if isinstance(layer, QuantizedLinear) else None
