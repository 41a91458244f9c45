"""The residual stream and its norms as lazy values.

    x.plus(product)   s' = s + scale · through(product) ; nothing is computed yet
    x.normed(norm)    norm(s), in the form that its reader, a product, needs

    hidden, residual = norm(hidden, residual)     as other engines write it
    x.plus(product).normed(norm)                  here

The kernel of the next norm adds pending products, from their partial sums. For up to 16 rows on
Hopper the products add themselves and leave the norm to the next product (`hopper.gemm_residual`),
so neither needs a launch. Elsewhere torch adds, then normalises.
"""

from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bass.kernels import hopper
from bass.kernels import triton as kernels
from bass.ops import dispatch
from bass.ops.linear import Linear, Operand, Product, Rows, Summed, quantized_to, rows_of
from bass.ops.norms import LayerNorm, OffsetRMSNorm, RMSNorm

Norm = Any  # a module that takes a tensor to a tensor of the same shape
# norms that kernels support, with their names there
KINDS = {RMSNorm: "rms", OffsetRMSNorm: "offset_rms", LayerNorm: "layer"}


class Summand(NamedTuple):
    """A pending summand of a stream: scale · through(product)."""

    product: Summed
    scale: float
    through: Norm | None

    @property
    def plain(self) -> bool:
        """Whether it is the unchanged product."""
        return self.scale == 1.0 and self.through is None

    def tensor(self) -> Float[Tensor, "batch window hidden"]:
        y = self.product.tensor()
        if self.through is not None:
            y = self.through(y)
        return y if self.scale == 1.0 else y * self.scale


@final
class Residual:
    """The residual stream [batch, window, hidden] between two layers.

    A value: `plus` returns a new one. Pending products are added once, at the first read.
    """

    __slots__ = ("_base", "_pending")

    def __init__(
        self, base: Float[Tensor, "batch window hidden"], pending: tuple[Summand, ...] = ()
    ) -> None:
        self._base, self._pending = base, pending

    @property
    def like(self) -> Float[Tensor, "batch window hidden"]:
        """A tensor of the same shape, type and device."""
        return self._base

    def plus(
        self, product: Summed, scale: float = 1.0, through: nn.Module | None = None
    ) -> "Residual":
        """The stream with scale · through(product) added; `through`: a norm (Gemma 2)."""
        return Residual(self._base, (*self._pending, Summand(product, scale, through)))

    def normed(self, norm: nn.Module) -> "Normed":
        """A norm of the stream, for one product or several."""
        return Normed(self, norm)

    def tensor(self) -> Float[Tensor, "batch window hidden"]:
        """The complete stream."""
        if self._pending and self._added_by_norm():
            base = self._base.reshape(-1, self._base.shape[-1])
            stream = kernels.residual_norm.add(base, *self._summands())
            self._base, self._pending = stream.view(self._base.shape), ()
        for summand in self._pending:
            self._base = self._base + summand.tensor()
        self._pending = ()
        return self._base

    def normed_on_cpu(self, norm: Any, cpu: Any) -> Float[Tensor, "batch window hidden"]:
        """A norm by the CPU's kernels, which add a pending product; completes the stream."""
        pending = self._pending
        added = pending[0].product.tensor() if len(pending) == 1 and pending[0].plain else None
        base = self._base if added is not None else self.tensor()
        eps = norm.eps if isinstance(norm, LayerNorm) else norm.unit.eps
        bias = norm.bias if isinstance(norm, LayerNorm) else None
        self._base, y = cpu.rows.add_norm(base, added, norm.weight, bias, eps, KINDS[type(norm)])
        self._pending = ()
        return y

    def rows(self, norm: Any, layer: Any) -> Rows:
        """A norm by a kernel, for a layer's product (None: not quantized); completes the stream."""
        shape = self._base.shape
        base = self._base.reshape(-1, shape[-1])
        products = [] if layer is None else self._adding_products(norm, layer)
        if products:
            terms = [
                hopper.gemm_residual.Term(p.rows().x, p.layer.weight, p.layer.bias)
                for p in products
            ]
            left = hopper.gemm_residual.added(terms, base, _numbers(norm))
            self._base, self._pending = left.stream.view(shape), ()
            return Rows(left.weighted, left.norm)
        if not self._added_by_norm():
            base = self.tensor().reshape(-1, shape[-1])
        parts, others, scale, through = self._summands()
        kind = None if layer is None else quantized_to(layer)
        stream, normed, scales = kernels.residual_norm.add_norm(
            base, parts, _numbers(norm), kind, others, scale, through
        )
        self._base, self._pending = stream.view(shape), ()
        return Rows(normed, scales)

    def _summands(self) -> tuple[Any, Tensor | None, float, Any]:
        """The pending products for the kernel of norms: partial sums of up to two, scale, and the
        norm that they go through.
        """
        parts = [summand.product.partial_sums() for summand in self._pending]
        scale, through = 1.0, None
        if self._pending:
            scale, through = self._pending[0].scale, self._pending[0].through
        return (
            parts[0] if parts else None,
            parts[1] if len(parts) == 2 else None,
            scale,
            None if through is None else _numbers(through),
        )

    def _added_by_norm(self) -> bool:
        """Whether the kernel of the next norm adds the pending products: one, or two of a kind."""
        pending = self._pending
        if any(not summand.product.by_kernel for summand in pending):
            return False
        if len(pending) == 2:
            one, other = pending
            return one.through is other.through is None and one.scale == other.scale
        throughs = [type(summand.through) for summand in pending]
        return throughs in ([], [type(None)], [RMSNorm], [OffsetRMSNorm])

    def _adding_products(self, norm: Any, layer: Any) -> list[Product]:
        """The pending products, if Hopper's kernels add them to the stream, and the layer's product
        completes the norm; else none. Rows before their norm may exceed float16.
        """
        base, pending = self._base, self._pending
        if len(pending) not in (1, 2) or type(norm) not in KINDS:
            return []
        if base.dtype != torch.bfloat16 or not dispatch.hopper(base):
            return []
        products = [s.product for s in pending if isinstance(s.product, Product)]
        matrices = *(product.layer for product in products), layer
        if (
            len(products) == len(pending)
            and all(summand.plain and summand.product.by_kernel for summand in pending)
            and all(type(m) is Linear and m.weight.dtype == base.dtype for m in matrices)
            and hopper.gemm_residual.supports(
                base.numel() // base.shape[-1], *(product.layer.weight for product in products)
            )
            and hopper.gemm.supports_matrix(layer.weight)
        ):
            return products
        return []


@final
class Normed(Operand):
    """norm(stream), computed in the form that the first product needs, and cached for the
    others.
    """

    __slots__ = ("_norm", "_residual", "_rows", "_tensor")

    def __init__(self, residual: Residual, norm: nn.Module) -> None:
        self._residual, self._norm = residual, norm
        self._tensor: Tensor | None = None
        self._rows: dict[torch.dtype | None, Rows] = {}

    @property
    def like(self) -> Float[Tensor, "batch window hidden"]:
        return self._residual.like

    def tensor(self) -> Float[Tensor, "batch window hidden"]:
        if self._tensor is None:
            self._tensor = self._computed()
        return self._tensor

    def _computed(self) -> Tensor:
        like, rows, norm = self.like, self._rows.get(None), self._norm
        if rows is not None and rows.scale is None:
            return rows.x.view(like.shape)
        if _by_kernel(like, norm):
            return self._residual.rows(norm, None).x.view(like.shape)
        known: Any = norm if type(norm) in KINDS else None
        cpu = None if known is None else dispatch.cpu_step_kernels(like, known.weight)
        if cpu is not None:
            return self._residual.normed_on_cpu(norm, cpu)
        return norm(self._residual.tensor())

    def rows(self, layer: nn.Module) -> Rows:
        kind = quantized_to(layer)
        rows = self._rows.get(kind)
        if rows is not None and (kind is not None or _readable(rows, layer)):
            return rows
        if self._tensor is None and rows is None and _by_kernel(self.like, self._norm):
            rows = self._residual.rows(self._norm, layer)
        else:
            rows = rows_of(self.tensor(), layer)
        self._rows[kind] = rows
        return rows


def _by_kernel(like: Tensor, norm: Any) -> bool:
    return (
        dispatch.use_kernels(like) and type(norm) in KINDS and dispatch.few_rows(like, norm.weight)
    )


def _numbers(norm: Any) -> Any:
    """A norm's parameters for the kernel: a `residual_norm.Norm`."""
    if isinstance(norm, LayerNorm):
        return kernels.residual_norm.Norm(norm.weight, norm.eps, "layer", norm.bias)
    return kernels.residual_norm.Norm(norm.weight, norm.unit.eps, KINDS[type(norm)])


def _readable(rows: Rows, layer: nn.Module) -> bool:
    """Whether a layer without quantization can complete an unfinished norm of these rows."""
    return rows.scale is None or (
        type(layer) is Linear and hopper.gemm.supports(rows.x, layer.weight)
    )
