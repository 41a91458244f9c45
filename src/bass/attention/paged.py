"""Paged attention in Triton: one launch for rows of any lengths, whose keys are found through the
block table.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from bass.attention.kernels import KernelBackend, PositionPlan
from bass.records import AttentionRule, PagedView


@final
@dataclass(frozen=True)
class TritonPaged(KernelBackend[PagedView]):
    """Each row at its own length, its keys divided over several blocks; no row is copied together
    first.
    """

    paper: ClassVar[str] = "Kwon et al., 2023"
    view_type: ClassVar[type] = PagedView

    def run(
        self,
        q: Float[Tensor, "batch window heads dim"],
        view: PagedView,
        plan: PositionPlan,
        rule: AttentionRule,
    ) -> Float[Tensor, "batch window heads dim"]:
        from bass.kernels.triton.attention import paged  # it needs Triton

        return paged(
            q,
            view.k,
            view.v,
            view.table,
            plan.positions,
            plan.span,
            rule.scale,
            rule.window,
            rule.softcap,
        )
