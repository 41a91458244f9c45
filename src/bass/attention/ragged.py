"""Ragged attention in Triton: one launch for rows of any lengths."""

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from bass.attention.kernels import KernelBackend, PositionPlan
from bass.interfaces import RotaryBackend
from bass.records import AttentionRule, RaggedView, Unturned


@final
@dataclass(frozen=True)
class TritonRagged(KernelBackend[RaggedView], RotaryBackend):
    """Each row at its own length, its keys divided over several blocks, so that a short batch fills
    the chip.
    """

    paper: ClassVar[str] = "Dao et al., 2023"
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
        )

    def run_turned(
        self, window: Unturned, view: RaggedView, plan: PositionPlan, rule: AttentionRule
    ) -> Float[Tensor, "batch window heads dim"] | None:
        from bass.kernels.triton.launch import gluon  # it needs Triton

        if not view.k.is_cuda or not gluon(view.k.device):
            return None
        from bass.kernels.hopper import attention as ahead

        places = view.k, view.v, view.starts, plan.positions
        if not ahead.knows(window.parts, view.k, view.v, plan.span):
            return None
        return ahead.ragged(
            window.parts, window.cos, window.sin, *places, rule.scale, rule.window, rule.softcap
        )
