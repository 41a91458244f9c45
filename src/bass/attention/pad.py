"""BASS-PAD in Triton: every row padded to the longest."""

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from bass.attention.kernels import KernelBackend, PositionPlan
from bass.ops import attention
from bass.records import AttentionRule, PaddedView


@final
@dataclass(frozen=True)
class TritonPad(KernelBackend[PaddedView]):
    """One launch for the batch; each row reads all `span` positions."""

    paper: ClassVar[str] = "Qian et al., 2024"
    view_type: ClassVar[type] = PaddedView

    def run(
        self,
        q: Float[Tensor, "batch window heads dim"],
        view: PaddedView,
        plan: PositionPlan,
        rule: AttentionRule,
        sinks: Float[Tensor, " heads"] | None = None,
    ) -> Float[Tensor, "batch window heads dim"]:
        return attention.triton_padded(q, view, plan.positions, plan.span, rule, sinks)
