"""torch over the paged layout: copies each row's blocks together, then attends as in the padded
layout.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from bass.attention.sdpa import SDPA, MaskPlan
from bass.interfaces import AttentionBackend
from bass.ops.attention import Positions, Queries, Sinks, gather
from bass.records import AttentionRule, PaddedView, PagedView


@final
@dataclass(frozen=True)
class Gather(AttentionBackend[PagedView, MaskPlan]):
    """SDPA over copies of the first `span` positions.

    It runs on every device, and reads and writes every key once more than necessary.
    """

    paper: ClassVar[str] = "torch, scaled_dot_product_attention"
    view_type: ClassVar[type] = PagedView
    capturable: ClassVar[bool] = True
    supports_sinks: ClassVar[bool] = True

    def plan(self, positions: Positions, span: int) -> MaskPlan:
        return SDPA().plan(positions, span)

    def run(
        self, q: Queries, view: PagedView, plan: MaskPlan, rule: AttentionRule, sinks: Sinks = None
    ) -> Queries:
        k, v = (gather(pool, view.table, plan.span) for pool in (view.k, view.v))
        return SDPA().run(q, PaddedView(k, v), plan, rule, sinks)
