"""BASS-SPLIT in Triton: one launch for each sequence."""

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from bass.attention.kernels import KernelBackend, PositionPlan
from bass.ops import attention
from bass.records import AttentionRule, RaggedView


@final
@dataclass(frozen=True)
class TritonSplit(KernelBackend[RaggedView]):
    """A launch for each row, which ends at the row's last position; no host read."""

    paper: ClassVar[str] = "Qian et al., 2024"
    view_type: ClassVar[type] = RaggedView
    reads_lengths: ClassVar[bool] = True

    def run(
        self,
        q: Float[Tensor, "batch window heads dim"],
        view: RaggedView,
        plan: PositionPlan,
        rule: AttentionRule,
        sinks: Float[Tensor, " heads"] | None = None,
    ) -> Float[Tensor, "batch window heads dim"]:
        return attention.triton_ragged(
            q, view, plan.positions, plan.span, rule, sinks, each_row=True
        )
