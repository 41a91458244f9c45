"""The common part of backends: masks and lengths follow from the positions."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from bass.errors import PairingError
from bass.interfaces import AttentionBackend, KVCache, View
from bass.ops import attention
from bass.ops.attention import Positions, Queries, Sinks
from bass.ops.dispatch import Unsupported, unsupported
from bass.records import AttentionRule, PackedRows, Projection


@dataclass(frozen=True)
class SpanPlan:
    """The positions, from which kernels derive each row's length on the device, and the span, their
    upper bound on the host; also what layers share, such as the mask of an attention window.
    """

    positions: Int[Tensor, "batch window"]
    span: int
    made: dict[Hashable, Any] = field(default_factory=dict)

    def shared(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What layers share, as those of an attention window do, made on first use."""
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]


@dataclass(frozen=True)
class PositionBackend(AttentionBackend[View, SpanPlan]):
    """A backend without a plan of its own."""

    capturable: ClassVar[bool] = True
    # stores keys and values and attends in one kernel, or gives None
    fused: ClassVar[Callable[..., Queries | None]] = staticmethod(lambda *_: None)

    def plan(self, positions: Int[Tensor, "batch window"], span: int) -> SpanPlan:
        return SpanPlan(positions, span)

    def attend(
        self,
        cache: KVCache[View],
        layer: int,
        projection: Projection,
        positions: Positions,
        plan: SpanPlan,
        rule: AttentionRule,
    ) -> Queries:
        if cache.writable_view:
            out = self.fused(projection, cache.view(layer), positions, plan.span, rule)
            if out is not None:
                return out
        return super().attend(cache, layer, projection, positions, plan, rule)


@dataclass(frozen=True)
class KernelBackend(PositionBackend[View]):
    """A backend that runs the Triton kernel of its layout."""

    def run(
        self, q: Queries, view: Any, plan: SpanPlan, rule: AttentionRule, sinks: Sinks = None
    ) -> Queries:
        return attention.triton(q, view, plan.positions, plan.span, rule, sinks)

    def attend_packed(
        self,
        cache: KVCache[Any],
        layer: int,
        projection: Projection,
        packed: PackedRows,
        plan: SpanPlan,
        rule: AttentionRule,
    ) -> Queries | None:
        """Every token is stored as a row of its own; then each row's queries attend together."""
        if not self.packs:
            return None
        each = plan.shared("each token", lambda: cache.selected(packed.rows))
        positions, rotation = packed.positions.T, projection.rotation
        if rotation is not None:
            rotation = replace(rotation, positions=positions)
        sums = projection.partial_sums.transpose(1, 2)
        own = replace(projection, partial_sums=sums, rotation=rotation)
        q = each.store(layer, own, positions).transpose(0, 1)
        return attention.triton_packed(
            q, cache.view(layer), packed, plan.span, rule, projection.sinks
        )

    def check(self, device: torch.device) -> None:
        check_supported(type(self), device, unsupported(device))


def check_supported(backend: type, device: torch.device, found: Unsupported | None) -> None:
    """Raise `PairingError` if a device does not support what the backend runs."""
    if found is not None:
        raise PairingError(
            f"Cannot run attention `{backend.__name__}` on `{device}`: {found.reason}; "
            f'{found.remedy}, or leave the choice to `attention="auto"`.'
        )
