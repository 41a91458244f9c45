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
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from bass.kernels import hopper
from bass.kernels import triton as kernels
from bass.kernels.values import Norm
from bass.ops import dispatch
from bass.ops.linear import Linear, Operand, Product, Rows, Summed, quantized_to, rows_of
from bass.ops.norms import kernel_norm

Hidden = Float[Tensor, "batch window hidden"]


def embedding(
    tokens: Int[Tensor, "*rows"], table: Float[Tensor, "vocab size"]
) -> Float[Tensor, "*rows size"]:
    """The rows of the table for the tokens: the stream's beginning.

    By a kernel on a GPU, where it takes a fifth of torch's time for few tokens, and in a step on a
    CPU, so that the pass consists of kernels (`bass.ops.recorded`).
    """
    if dispatch.use_kernels(table) and not dispatch.has_gradient(table):
        return kernels.residual_norm.embedded(table, tokens)
    cpu = dispatch.cpu_step_kernels(tokens[..., None], table)
    if cpu is not None:
        return cpu.rows.embedded(table, tokens)
    return F.embedding(tokens, table)


def joined(*parts: Float[Tensor, "*rows size"]) -> Float[Tensor, "*rows sizes"]:
    """The parts one after the other; in a step on a CPU by a kernel, as `embedding`."""
    cpu = dispatch.cpu_step_kernels(*parts)
    return torch.cat(parts, -1) if cpu is None else cpu.rows.joined(*parts)


def normed(x: Hidden, norm: nn.Module) -> Hidden:
    """A norm alone, by the kernels of the stream."""
    return Residual(x).normed(norm).tensor()


class Summand(NamedTuple):
    """A pending summand of a stream: scale · through(product)."""

    product: Summed
    scale: float
    through: nn.Module | None

    @property
    def plain(self) -> bool:
        """Whether it is the unchanged product."""
        return self.scale == 1.0 and self.through is None

    def tensor(self) -> Hidden:
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

    def __init__(self, base: Hidden, pending: tuple[Summand, ...] = ()) -> None:
        self._base, self._pending = base, pending

    @property
    def like(self) -> Hidden:
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

    def tensor(self) -> Hidden:
        """The complete stream."""
        if self._pending and self._added_by_norm():
            self._complete(kernels.residual_norm.add_norm(self._flat, **self._summands())[0])
        for summand in self._pending:
            y = summand.tensor()
            cpu = dispatch.cpu_step_kernels(self._base, y)
            self._base = self._base + y if cpu is None else cpu.rows.added(self._base, y)
        self._pending = ()
        return self._base

    def normed_on_cpu(self, norm: Norm, cpu: Any) -> Hidden:
        """A norm by the CPU's kernels, which add a pending product; completes the stream."""
        pending = self._pending
        added = pending[0].product.tensor() if len(pending) == 1 and pending[0].plain else None
        base = self._base if added is not None else self.tensor()
        stream, y = cpu.rows.add_norm(base, added, norm)
        self._complete(stream)
        return y

    def rows(self, norm: Norm, layer: Any) -> Rows:
        """A norm by a kernel, for a layer's product (None: not quantized); completes the stream."""
        products = [] if layer is None else self._adding_products(layer)
        if products:
            terms = [
                hopper.gemm_residual.Term(rows_of(p.x, p.layer).x, p.layer.weight, p.layer.bias)
                for p in products
            ]
            left = hopper.gemm_residual.added(terms, self._flat, norm)
            self._complete(left.stream)
            return Rows(left.weighted, left.norm)
        if not self._added_by_norm():
            self.tensor()
        kind = None if layer is None else quantized_to(layer)
        stream, normed, scales = kernels.residual_norm.add_norm(
            self._flat, norm=norm, kind=kind, **self._summands()
        )
        self._complete(stream)
        return Rows(normed, scales)

    @property
    def _flat(self) -> Float[Tensor, "rows hidden"]:
        return self._base.reshape(-1, self._base.shape[-1])

    def _complete(self, stream: Float[Tensor, "*rows hidden"]) -> None:
        self._base, self._pending = stream.view(self._base.shape), ()

    def _summands(self) -> dict[str, Any]:
        """The pending products for the kernel of norms: partial sums of up to two, scale, and the
        norm that they go through.
        """
        pending = self._pending
        if not pending:
            return {"parts": None}
        parts = [summand.product.partial_sums() for summand in pending]
        first, others = pending[0], parts[1] if len(parts) == 2 else None
        through = kernel_norm(first.through)
        return {"parts": parts[0], "others": others, "scale": first.scale, "through": through}

    def _added_by_norm(self) -> bool:
        """Whether the kernel of the next norm adds the pending products: one, or two of a kind."""
        pending = self._pending
        if any(not summand.product.by_kernel for summand in pending):
            return False
        if len(pending) == 2:
            one, other = pending
            return one.through is other.through is None and one.scale == other.scale
        throughs = [kernel_norm(one.through) for one in pending if one.through is not None]
        return len(pending) < 2 and all(n is not None and n.kind != "layer" for n in throughs)

    def _adding_products(self, layer: Any) -> list[Product]:
        """The pending products, if Hopper's kernels add them to the stream, and the layer's product
        completes the norm; else none. Rows before their norm may exceed float16.
        """
        base, pending = self._base, self._pending
        if len(pending) not in (1, 2) or base.dtype != torch.bfloat16 or not dispatch.hopper(base):
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

    __slots__ = ("_known", "_norm", "_residual", "_rows", "_tensor")

    def __init__(self, residual: Residual, norm: nn.Module) -> None:
        self._residual, self._norm = residual, norm
        self._known = kernel_norm(norm)
        self._tensor: Tensor | None = None
        self._rows: dict[torch.dtype | None, Rows] = {}

    @property
    def like(self) -> Hidden:
        return self._residual.like

    def tensor(self) -> Hidden:
        if self._tensor is None:
            self._tensor = self._computed()
        return self._tensor

    def _computed(self) -> Tensor:
        like, rows, known = self.like, self._rows.get(None), self._known
        if rows is not None and rows.scale is None:
            return rows.x.view(like.shape)
        if known is not None and dispatch.few_rows(like, known.weight):
            return self._residual.rows(known, None).x.view(like.shape)
        cpu = None if known is None else dispatch.cpu_step_kernels(like, known.weight)
        if known is not None and cpu is not None:
            return self._residual.normed_on_cpu(known, cpu)
        return self._norm(self._residual.tensor())

    def rows(self, layer: nn.Module) -> Rows:
        kind, known = quantized_to(layer), self._known
        rows = self._rows.get(kind)
        if rows is not None and (kind is not None or _readable(rows, layer)):
            return rows
        first = self._tensor is None and rows is None
        if first and known is not None and dispatch.few_rows(self.like, known.weight):
            rows = self._residual.rows(known, layer)
        else:
            rows = rows_of(self.tensor(), layer)
        self._rows[kind] = rows
        return rows


def _readable(rows: Rows, layer: nn.Module) -> bool:
    """Whether a layer without quantization can complete an unfinished norm of these rows."""
    return rows.scale is None or (
        type(layer) is Linear and hopper.gemm.supports(rows.x, layer.weight)
    )
