"""torch's scaled_dot_product_attention over the padded layout."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bass.interfaces import AttentionBackend
from bass.records import PaddedView


@dataclass
class MaskPlan:
    """Which of the first `span` positions each query sees."""

    visible: Bool[Tensor, "batch 1 window span"]
    span: int
    _bias: Float[Tensor, "batch 1 queries span"] | None = None

    def bias(self, groups: int, dtype: torch.dtype) -> Float[Tensor, "batch 1 queries span"]:
        """0 where a query sees and -inf where it does not, `groups` times along the window; made by the first layer."""
        if self._bias is None:
            zero = torch.zeros((), dtype=dtype, device=self.visible.device)
            self._bias = torch.where(self.visible, zero, -torch.inf).repeat(1, 1, groups, 1)
        return self._bias


@final
@dataclass(frozen=True)
class SDPA(AttentionBackend[PaddedView, MaskPlan]):
    """One call for the batch, over the first `span` positions; a row reads the padding of the longest.

    The query heads that share a key head are laid along the window, so that keys are never repeated.
    """

    view_type: ClassVar[type] = PaddedView
    capturable: ClassVar[bool] = True

    def plan(self, positions: Int[Tensor, "batch window"], span: int) -> MaskPlan:
        # A query at -1 is nobody's: it may look at position 0, which keeps its softmax finite.
        visible = torch.arange(span, device=positions.device) <= positions.clamp(min=0)[..., None]
        return MaskPlan(visible[:, None], span)

    def run(self, q: Float[Tensor, "batch window heads dim"], view: PaddedView, plan: MaskPlan) -> Float[Tensor, "batch window heads dim"]:
        batch, window, heads, dim = q.shape
        kv_heads = view.k.shape[2]
        groups = heads // kv_heads
        k, v = view.k[:, : plan.span].transpose(1, 2), view.v[:, : plan.span].transpose(1, 2)
        q = q.view(batch, window, kv_heads, groups, dim).permute(0, 2, 3, 1, 4).reshape(batch, kv_heads, groups * window, dim)
        out = F.scaled_dot_product_attention(q, k, v, plan.bias(groups, q.dtype))
        return out.view(batch, kv_heads, groups, window, dim).permute(0, 3, 1, 2, 4).reshape(batch, window, heads, dim)
