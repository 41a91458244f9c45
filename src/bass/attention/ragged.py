"""Ragged attention in Triton: one launch for rows of any lengths."""

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float, Int
from torch import Tensor

from bass.attention.kernels import KernelBackend, PositionPlan
from bass.interfaces import KVCache
from bass.ops import attention
from bass.records import AttentionRule, Projection, RaggedView


@final
@dataclass(frozen=True)
class TritonRagged(KernelBackend[RaggedView]):
    """Each row ends at its own length; several programs share the keys of a row, so that a small
    batch fills the GPU.
    """

    paper: ClassVar[str] = "Dao et al., 2023"
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
        return attention.triton_ragged(q, view, plan.positions, plan.span, rule, sinks)

    def attend(
        self,
        cache: KVCache[RaggedView],
        layer: int,
        projection: Projection,
        positions: Int[Tensor, "batch window"],
        plan: PositionPlan,
        rule: AttentionRule,
    ) -> Float[Tensor, "batch window heads dim"]:
        view = cache.view(layer)
        if not cache.writable_view or not attention.supports_projection(
            projection, view, plan.span
        ):
            return super().attend(cache, layer, projection, positions, plan, rule)
        return attention.hopper_projection(projection, view, positions, rule)
