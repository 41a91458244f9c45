"""Paged attention in Triton: one launch for rows of any lengths, with keys addressed by the block
table.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from bass.attention.kernels import KernelBackend, PositionPlan
from bass.ops import attention
from bass.records import AttentionRule, PagedView


@final
@dataclass(frozen=True)
class TritonPaged(KernelBackend[PagedView]):
    """Each row ends at its own length; several programs share the keys of a row. No copies."""

    paper: ClassVar[str] = "Kwon et al., 2023"
    view_type: ClassVar[type] = PagedView
    reads_lengths: ClassVar[bool] = True

    def run(
        self,
        q: Float[Tensor, "batch window heads dim"],
        view: PagedView,
        plan: PositionPlan,
        rule: AttentionRule,
        sinks: Float[Tensor, " heads"] | None = None,
    ) -> Float[Tensor, "batch window heads dim"]:
        return attention.triton_paged(q, view, plan.positions, plan.span, rule, sinks)
