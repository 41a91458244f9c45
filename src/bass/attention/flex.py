"""torch's flex_attention over the padded layout, with mask and score as functions: compiled on a
GPU, eager on a CPU.
"""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, final, no_type_check

import torch
from einops import rearrange
from torch import Tensor

from bass.attention.kernels import check_triton
from bass.interfaces import AttentionBackend
from bass.ops import attention
from bass.ops.attention import Positions, Queries, Sinks
from bass.records import AttentionRule, PaddedView

# Most compiled variants, by shape, rule and dtype. torch's default limit is 8, then an error.
VARIANTS = 128
LEAST_DIM = 16  # of a head, for torch to compile it


@dataclass
class FlexPlan:
    """The positions, and a block mask for each attention window of the layers."""

    positions: Positions
    span: int
    _masks: dict[int | None, Any] = field(default_factory=dict)

    def mask(self, window: int | None) -> Any:
        """The block mask of an attention window; made on first use."""
        if window not in self._masks:
            from torch.nn.attention.flex_attention import create_block_mask

            # the output of a query at -1 is unused: it attends to position 0
            own = self.positions.clamp(min=0)

            @no_type_check  # it is traced
            def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
                at = own[batch, query]
                return key <= at if window is None else (key <= at) & (key > at - window)

            batch, queries = own.shape
            self._masks[window] = create_block_mask(
                visible, batch, None, queries, self.span, device=own.device
            )
        return self._masks[window]


@final
@dataclass(frozen=True)
class Flex(AttentionBackend[PaddedView, FlexPlan]):
    """One fused kernel, generated from the mask and the soft cap.

    torch does not compile float64 or heads below 16 dimensions, and no CUDA graph can capture its
    fallback. On a GPU these cases use softmax attention in float64; so do layers with sinks
    everywhere.
    """

    paper: ClassVar[str] = "Dong et al., 2024"
    view_type: ClassVar[type] = PaddedView
    capturable: ClassVar[bool] = True
    supports_sinks: ClassVar[bool] = True

    def check(self, device: torch.device) -> None:
        if device.type != "cpu":
            check_triton(type(self), device)  # torch compiles to it

    def plan(self, positions: Positions, span: int) -> FlexPlan:
        return FlexPlan(positions, span)

    def run(
        self, q: Queries, view: PaddedView, plan: FlexPlan, rule: AttentionRule, sinks: Sinks = None
    ) -> Queries:
        unknown = q.is_cuda and (q.dtype == torch.float64 or q.shape[3] < LEAST_DIM)
        if unknown or sinks is not None:
            limits = rule.scale, rule.window, rule.softcap
            return attention.padded(q, view.k, view.v, plan.positions, plan.span, *limits, sinks)
        heads_first = "batch at heads dim -> batch heads at dim"
        queries, k, v = (
            rearrange(tensor, heads_first)
            for tensor in (q, view.k[:, : plan.span], view.v[:, : plan.span])
        )
        attend = _compiled() if q.is_cuda else _plain
        cap = None if rule.softcap is None else _cap(rule.softcap)
        with torch._dynamo.config.patch(recompile_limit=VARIANTS):
            grouped = q.shape[2] != k.shape[1]
            out = attend(queries, k, v, cap, plan.mask(rule.window), rule.scale, grouped)
        return rearrange(out, "batch heads window dim -> batch window heads dim")


def _cap(softcap: float) -> Callable[..., Tensor]:
    @no_type_check  # it is traced
    def capped(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return capped


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def _plain(*arguments: Any, **options: Any) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "flex_attention called without torch.compile", UserWarning
        )
        return flex_attention(*arguments, **options)
