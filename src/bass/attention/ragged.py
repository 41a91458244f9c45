"""Ragged attention in Triton: one launch for rows of any lengths."""

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from bass.attention.kernels import KernelBackend, PositionPlan
from bass.records import AttentionRule, RaggedView


@final
@dataclass(frozen=True)
class TritonRagged(KernelBackend[RaggedView]):
    """Each row at its own length, its keys divided over several blocks, so that a short batch fills the chip."""

    paper: ClassVar[str] = "Dao et al., 2023"
    view_type: ClassVar[type] = RaggedView

    def run(
        self, q: Float[Tensor, "batch window heads dim"], view: RaggedView, plan: PositionPlan, rule: AttentionRule
    ) -> Float[Tensor, "batch window heads dim"]:
        from bass.kernels.attention import ragged  # it needs Triton

        return ragged(q, view.k, view.v, view.starts, plan.positions, plan.span, rule.scale, rule.window, rule.softcap)
