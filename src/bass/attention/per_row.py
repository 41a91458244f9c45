"""torch over the split layout: one attention per row, each over its own length."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from bass.interfaces import AttentionBackend
from bass.ops.attention import Positions, Queries, Sinks, attend
from bass.records import AttentionRule, RaggedView


@dataclass(frozen=True)
class RowPlan:
    """Each row's positions, and its length on the host."""

    positions: Positions
    capacities: list[int]


@final
@dataclass(frozen=True)
class PerRow(AttentionBackend[RaggedView, RowPlan]):
    """softmax(cap(scale q kᵀ)) v, row by row.

    It reads lengths on the host, so no CUDA graph can capture it.
    """

    paper: ClassVar[str] = "this project, in torch"
    view_type: ClassVar[type] = RaggedView
    capturable: ClassVar[bool] = False
    supports_sinks: ClassVar[bool] = True

    def plan(self, positions: Positions, span: int) -> RowPlan:
        # sync: the rows' lengths shape the loop
        return RowPlan(positions, (positions.amax(1) + 1).tolist())

    def run(
        self, q: Queries, view: RaggedView, plan: RowPlan, rule: AttentionRule, sinks: Sinks = None
    ) -> Queries:
        out = torch.zeros_like(q)
        # sync: as in plan
        limits = rule.scale, rule.window, rule.softcap
        for row, (start, length) in enumerate(
            zip(view.starts.tolist(), plan.capacities, strict=True)
        ):
            if length:
                own = slice(row, row + 1)
                k, v = (pool[None, start : start + length] for pool in (view.k, view.v))
                out[own] = attend(q[own], k, v, plan.positions[own], *limits, sinks)
        return out
