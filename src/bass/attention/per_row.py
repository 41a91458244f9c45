"""The reference for the ragged layout: one attention per row, each over its own extent, in plain operations."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.interfaces import AttentionBackend
from bass.records import AttentionRule, RaggedView


@dataclass(frozen=True)
class RowPlan:
    """Each row's positions, its extent and its place in the pool, the latter two on the host."""

    positions: Int[Tensor, "batch window"]
    extents: list[int]


@final
@dataclass(frozen=True)
class PerRow(AttentionBackend[RaggedView, RowPlan]):
    """softmax(cap(scale q kᵀ)) v, row by row. It reads lengths on the host, so no CUDA graph can hold it."""

    view_type: ClassVar[type] = RaggedView
    capturable: ClassVar[bool] = False

    def plan(self, positions: Int[Tensor, "batch window"], span: int) -> RowPlan:
        return RowPlan(positions, (positions.amax(1) + 1).tolist())  # sync: the rows' extents shape the loop

    def run(
        self, q: Float[Tensor, "batch window heads dim"], view: RaggedView, plan: RowPlan, rule: AttentionRule
    ) -> Float[Tensor, "batch window heads dim"]:
        out = torch.zeros_like(q)
        groups = q.shape[2] // view.k.shape[1]
        for row, (start, extent) in enumerate(zip(view.starts.tolist(), plan.extents, strict=True)):  # sync: as in plan
            if extent:
                k, v = (x[start : start + extent].repeat_interleave(groups, 1) for x in (view.k, view.v))
                place, own = torch.arange(extent, device=q.device), plan.positions[row, :, None]
                hidden = place > own
                if rule.window is not None:
                    hidden |= place <= own - rule.window
                scores = torch.einsum("whd,shd->hws", q[row], k) * rule.scale
                if rule.softcap is not None:
                    scores = rule.softcap * torch.tanh(scores / rule.softcap)
                # A finite floor: a query at -1 sees nothing, and its output is nobody's.
                weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)
                out[row] = torch.einsum("hws,shd->whd", weights, v)
        return out
