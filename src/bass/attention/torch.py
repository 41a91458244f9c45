"""Backends of torch's operations: scaled_dot_product_attention, one attention per row, and softmax
attention in float64, the reference of all other backends.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor

from bass.attention.kernels import PositionBackend, SpanPlan
from bass.interfaces import KVCache
from bass.ops import attention
from bass.ops.attention import Queries, Sinks
from bass.records import AttentionRule, PackedRows, PaddedView, PagedView, Projection, RaggedView


@final
@dataclass(frozen=True)
class SDPA(PositionBackend[PaddedView]):
    """One call for the batch, over the first `span` positions; each row reads the padding of the
    longest one.

    Query heads that share a key head are stacked along the window, so keys are not repeated. torch
    has no soft caps or sinks: layers with them have the formula itself.
    """

    paper: ClassVar[str] = "torch, scaled_dot_product_attention"
    view_type: ClassVar[type] = PaddedView
    replayable: ClassVar[bool] = True
    fused = staticmethod(attention.by_cpu)

    def run(
        self, q: Queries, view: PaddedView, plan: SpanPlan, rule: AttentionRule, sinks: Sinks = None
    ) -> Queries:
        if rule.softcap is not None or sinks is not None:
            k, v = view.k[:, : plan.span], view.v[:, : plan.span]
            return attention.attend(q, k, v, plan.positions, rule, sinks)
        groups = q.shape[2] // view.k.shape[2]
        # `transpose`: `rearrange` takes 2 µs more per call on a CPU, twice in every layer
        k, v = view.k[:, : plan.span].transpose(1, 2), view.v[:, : plan.span].transpose(1, 2)
        q = rearrange(
            q,
            "batch window (kv_heads group) dim -> batch kv_heads (group window) dim",
            group=groups,
        )
        bias = plan.shared(rule.window, lambda: bias_of(plan, rule.window, groups, q.dtype))
        return rearrange(
            F.scaled_dot_product_attention(q, k, v, bias, scale=rule.scale),
            "batch kv_heads (group window) dim -> batch window (kv_heads group) dim",
            group=groups,
        )

    def attend_packed(
        self,
        cache: KVCache[PaddedView],
        layer: int,
        projection: Projection,
        packed: PackedRows,
        plan: SpanPlan,
        rule: AttentionRule,
    ) -> Queries | None:
        if not cache.writable_view:
            return None
        given = projection, cache.view(layer), packed.positions, plan.span, rule, packed.offsets
        return attention.by_cpu(*given)


@final
@dataclass(frozen=True)
class Gather(PositionBackend[PagedView]):
    """SDPA over copies of the first `span` positions, in which each row's blocks lie together.

    It runs on every device, and reads and writes every key once more than necessary.
    """

    paper: ClassVar[str] = "torch, scaled_dot_product_attention"
    view_type: ClassVar[type] = PagedView

    def run(
        self, q: Queries, view: PagedView, plan: SpanPlan, rule: AttentionRule, sinks: Sinks = None
    ) -> Queries:
        k, v = (attention.gather(pool, view.table, plan.span) for pool in (view.k, view.v))
        return SDPA().run(q, PaddedView(k, v), plan, rule, sinks)


def bias_of(
    plan: SpanPlan, window: int | None, groups: int, dtype: torch.dtype
) -> Float[Tensor, "batch 1 queries span"]:
    """0 for visible keys and -inf for others, repeated `groups` times along the window."""
    # The output of a query at -1 is unused; attention to position 0 keeps it finite.
    own = plan.positions.clamp(min=0)[..., None]
    keys = torch.arange(plan.span, device=own.device)
    visible = keys <= own
    if window is not None:
        visible &= keys > own - window
    zero = torch.zeros((), dtype=dtype, device=own.device)
    return repeat(
        torch.where(visible, zero, -torch.inf),
        "batch window span -> batch 1 (group window) span",
        group=groups,
    )


@final
@dataclass(frozen=True)
class PerRow(PositionBackend[RaggedView]):
    """softmax(cap(scale q kᵀ)) v, row by row.

    It reads lengths on the host, so no CUDA graph can capture it.
    """

    paper: ClassVar[str] = "this project, in torch"
    view_type: ClassVar[type] = RaggedView
    capturable: ClassVar[bool] = False

    def run(
        self, q: Queries, view: RaggedView, plan: SpanPlan, rule: AttentionRule, sinks: Sinks = None
    ) -> Queries:
        out = torch.zeros_like(q)
        # sync: the rows' lengths shape the loop
        lengths = plan.shared(None, lambda: (plan.positions.amax(1) + 1).tolist())
        for row, (start, length) in enumerate(zip(view.starts.tolist(), lengths, strict=True)):
            if length:
                own = slice(row, row + 1)
                k, v = (pool[None, start : start + length] for pool in (view.k, view.v))
                out[own] = attention.attend(q[own], k, v, plan.positions[own], rule, sinks)
        return out


@final
@dataclass(frozen=True)
class Reference(PositionBackend[PaddedView]):
    """Softmax attention in float64. Slow; needs memory for the keys of the whole span."""

    paper: ClassVar[str] = "this project, in torch"
    view_type: ClassVar[type] = PaddedView

    def run(
        self, q: Queries, view: PaddedView, plan: SpanPlan, rule: AttentionRule, sinks: Sinks = None
    ) -> Queries:
        return attention.reference(q, view, plan.positions, plan.span, rule, sinks)
