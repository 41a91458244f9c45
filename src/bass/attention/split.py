"""BASS-SPLIT in Triton: one launch for each sequence."""

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from bass.attention.kernels import KernelBackend, PositionPlan
from bass.records import AttentionRule, RaggedView


@final
@dataclass(frozen=True)
class TritonSplit(KernelBackend[RaggedView]):
    """A launch for each row, which ends at the row's own last position; the host reads nothing."""

    paper: ClassVar[str] = "Qian et al., 2024"
    view_type: ClassVar[type] = RaggedView

    def run(
        self,
        q: Float[Tensor, "batch window heads dim"],
        view: RaggedView,
        plan: PositionPlan,
        rule: AttentionRule,
    ) -> Float[Tensor, "batch window heads dim"]:
        from bass.kernels.triton.attention import ragged  # it needs Triton

        return ragged(
            q,
            view.k,
            view.v,
            view.starts,
            plan.positions,
            plan.span,
            rule.scale,
            rule.window,
            rule.softcap,
            each_row=True,
        )
