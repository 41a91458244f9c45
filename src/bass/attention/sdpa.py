"""torch's scaled_dot_product_attention over the padded layout."""

from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor

from bass.interfaces import AttentionBackend, KVCache
from bass.ops import attention
from bass.ops.attention import Positions, Queries, Sinks
from bass.records import AttentionRule, PaddedView, Projection


@dataclass
class MaskPlan:
    """The visible positions of each query among the first `span`; one mask for each attention
    window of the layers.
    """

    positions: Positions
    span: int
    _biases: dict[int | None, Tensor] = field(default_factory=dict)

    def bias(
        self, window: int | None, groups: int, dtype: torch.dtype
    ) -> Float[Tensor, "batch 1 queries span"]:
        """0 for visible keys and -inf for others, repeated `groups` times along the window; made on
        first use.
        """
        if window not in self._biases:
            # The output of a query at -1 is unused; attention to position 0 keeps it finite.
            own = self.positions.clamp(min=0)[..., None]
            keys = torch.arange(self.span, device=own.device)
            visible = keys <= own
            if window is not None:
                visible &= keys > own - window
            zero = torch.zeros((), dtype=dtype, device=own.device)
            self._biases[window] = repeat(
                torch.where(visible, zero, -torch.inf),
                "batch window span -> batch 1 (group window) span",
                group=groups,
            )
        return self._biases[window]


@final
@dataclass(frozen=True)
class SDPA(AttentionBackend[PaddedView, MaskPlan]):
    """One call for the batch, over the first `span` positions; each row reads the padding of the
    longest one.

    Query heads that share a key head are stacked along the window, so keys are not repeated.
    """

    paper: ClassVar[str] = "torch, scaled_dot_product_attention"
    view_type: ClassVar[type] = PaddedView
    capturable: ClassVar[bool] = True
    replayable: ClassVar[bool] = True
    supports_sinks: ClassVar[bool] = True

    def plan(self, positions: Positions, span: int) -> MaskPlan:
        return MaskPlan(positions, span)

    def attend(
        self,
        cache: KVCache[PaddedView],
        layer: int,
        projection: Projection,
        positions: Positions,
        plan: MaskPlan,
        rule: AttentionRule,
    ) -> Queries:
        """On a CPU a kernel stores the keys and values of a step, and attends."""
        view = cache.view(layer)
        if not cache.writable_view or not attention.supports_projection_on_cpu(projection, view):
            return super().attend(cache, layer, projection, positions, plan, rule)
        return attention.cpu_projection(projection, view, positions, plan.span, rule)

    def run(
        self, q: Queries, view: PaddedView, plan: MaskPlan, rule: AttentionRule, sinks: Sinks = None
    ) -> Queries:
        groups = q.shape[2] // view.k.shape[2]
        # `transpose`: `rearrange` takes 2 µs more per call on a CPU, twice in every layer
        k, v = view.k[:, : plan.span].transpose(1, 2), view.v[:, : plan.span].transpose(1, 2)
        q = rearrange(
            q,
            "batch window (kv_heads group) dim -> batch kv_heads (group window) dim",
            group=groups,
        )
        bias = plan.bias(rule.window, groups, q.dtype)
        if rule.softcap is None and sinks is None:
            out = F.scaled_dot_product_attention(q, k, v, bias, scale=rule.scale)
        else:
            scores = q @ k.transpose(2, 3) * rule.scale
            if rule.softcap is not None:
                scores = rule.softcap * torch.tanh(scores / rule.softcap)
            if sinks is not None:
                sinks = repeat(
                    sinks,
                    "(kv_heads group) -> kv_heads (group window) 1",
                    group=groups,
                    window=len(plan.positions[0]),
                )
            out = attention.with_sinks(scores + bias, sinks) @ v
        return rearrange(
            out,
            "batch kv_heads (group window) dim -> batch window (kv_heads group) dim",
            group=groups,
        )
