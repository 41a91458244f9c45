"""torch over the split layout: one attention per row, each over its own length."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from bass.attention.kernels import PositionBackend, SpanPlan
from bass.ops.attention import Queries, Sinks, attend
from bass.records import AttentionRule, RaggedView


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
                out[own] = attend(q[own], k, v, plan.positions[own], rule, sinks)
        return out
