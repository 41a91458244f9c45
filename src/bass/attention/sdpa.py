"""torch's scaled_dot_product_attention over the padded layout, and over copies of the paged one."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor

from bass.attention.kernels import PositionBackend, SpanPlan
from bass.ops import attention
from bass.ops.attention import Queries, Sinks
from bass.records import AttentionRule, PaddedView, PagedView


@final
@dataclass(frozen=True)
class SDPA(PositionBackend[PaddedView]):
    """One call for the batch, over the first `span` positions; each row reads the padding of the
    longest one.

    Query heads that share a key head are stacked along the window, so keys are not repeated.
    """

    paper: ClassVar[str] = "torch, scaled_dot_product_attention"
    view_type: ClassVar[type] = PaddedView
    replayable: ClassVar[bool] = True
    fused = staticmethod(attention.by_cpu)

    def run(
        self, q: Queries, view: PaddedView, plan: SpanPlan, rule: AttentionRule, sinks: Sinks = None
    ) -> Queries:
        groups = q.shape[2] // view.k.shape[2]
        # `transpose`: `rearrange` takes 2 µs more per call on a CPU, twice in every layer
        k, v = view.k[:, : plan.span].transpose(1, 2), view.v[:, : plan.span].transpose(1, 2)
        q = rearrange(
            q,
            "batch window (kv_heads group) dim -> batch kv_heads (group window) dim",
            group=groups,
        )
        bias = plan.shared(rule.window, lambda: bias_of(plan, rule.window, groups, q.dtype))
        if rule.softcap is None and sinks is None:
            out = F.scaled_dot_product_attention(q, k, v, bias, scale=rule.scale)
        else:
            scores = q @ k.transpose(2, 3) * rule.scale
            if rule.softcap is not None:
                scores = rule.softcap * torch.tanh(scores / rule.softcap)
            if sinks is not None:
                sinks = repeat(
                    sinks,
                    "(kv_heads group) -> kv_heads (group window) 1",
                    group=groups,
                    window=len(plan.positions[0]),
                )
            out = attention.with_sinks(scores + bias, sinks) @ v
        return rearrange(
            out,
            "batch kv_heads (group window) dim -> batch window (kv_heads group) dim",
            group=groups,
        )


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
