"""torch's flex_attention over the padded layout, with mask and score as functions: compiled on a
GPU, eager on a CPU.
"""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final, no_type_check

import torch
from einops import rearrange
from torch import Tensor

from bass.attention.kernels import PositionBackend, SpanPlan, check_supported
from bass.ops import attention
from bass.ops.attention import Queries, Sinks
from bass.ops.dispatch import triton_unsupported
from bass.records import AttentionRule, PaddedView

# Most compiled variants, by shape, rule and dtype. torch's default limit is 8, then an error.
VARIANTS = 128
LEAST_DIM = 16  # of a head, for torch to compile it


@final
@dataclass(frozen=True)
class Flex(PositionBackend[PaddedView]):
    """One fused kernel, generated from the mask and the soft cap.

    torch does not compile float64 or heads below 16 dimensions, and no CUDA graph can capture its
    fallback. On a GPU these cases use softmax attention in float64; so do layers with sinks
    everywhere.
    """

    paper: ClassVar[str] = "Dong et al., 2024"
    view_type: ClassVar[type] = PaddedView

    def check(self, device: torch.device) -> None:
        if device.type != "cpu":
            check_supported(type(self), device, triton_unsupported(device))  # torch compiles to it

    def run(
        self, q: Queries, view: PaddedView, plan: SpanPlan, rule: AttentionRule, sinks: Sinks = None
    ) -> Queries:
        unknown = q.is_cuda and (q.dtype == torch.float64 or q.shape[3] < LEAST_DIM)
        if unknown or sinks is not None:
            return attention.reference(q, view, plan.positions, plan.span, rule, sinks)
        heads_first = "batch at heads dim -> batch heads at dim"
        queries, k, v = (
            rearrange(tensor, heads_first)
            for tensor in (q, view.k[:, : plan.span], view.v[:, : plan.span])
        )
        attend, grouped = _attend(compiled=q.is_cuda), q.shape[2] != k.shape[1]
        cap = None if rule.softcap is None else _cap(rule.softcap)
        mask = plan.shared(rule.window, lambda: _mask(plan, rule.window))
        with torch._dynamo.config.patch(recompile_limit=VARIANTS), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
            out = attend(queries, k, v, cap, mask, rule.scale, grouped)
        return rearrange(out, "batch heads window dim -> batch window heads dim")


def _mask(plan: SpanPlan, window: int | None) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    # the output of a query at -1 is unused: it attends to position 0
    own = plan.positions.clamp(min=0)

    @no_type_check  # it is traced
    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        at = own[batch, query]
        return key <= at if window is None else (key <= at) & (key > at - window)

    return create_block_mask(visible, len(own), None, own.shape[1], plan.span, device=own.device)


def _cap(softcap: float) -> Callable[..., Tensor]:
    @no_type_check  # it is traced
    def capped(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return capped


@functools.cache
def _attend(compiled: bool) -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if compiled else flex_attention
