"""The common part of backends that need only positions: Triton kernels and float64 references."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from bass.errors import PairingError
from bass.interfaces import AttentionBackend, View
from bass.ops.dispatch import Unsupported, triton_unsupported, unsupported
from bass.records import AttentionRule


@dataclass(frozen=True)
class SpanPlan:
    """The positions, from which kernels derive each row's length on the device, and the span, their
    upper bound on the host.
    """

    positions: Int[Tensor, "batch window"]
    span: int

    def arguments(self, rule: AttentionRule) -> tuple[Tensor, int, float, int | None, float | None]:
        """Positions, span and rule, in the order of `ops.attention.padded`."""
        return self.positions, self.span, rule.scale, rule.window, rule.softcap


@dataclass(frozen=True)
class PositionBackend(AttentionBackend[View, SpanPlan]):
    """A backend without a plan of its own: masks and lengths follow from the positions."""

    capturable: ClassVar[bool] = True
    supports_sinks: ClassVar[bool] = True

    def plan(self, positions: Int[Tensor, "batch window"], span: int) -> SpanPlan:
        return SpanPlan(positions, span)


@dataclass(frozen=True)
class KernelBackend(PositionBackend[View]):
    """A backend that runs a Triton kernel."""

    def check(self, device: torch.device) -> None:
        _check(type(self), device, unsupported(device))


def check_triton(backend: type, device: torch.device) -> None:
    """Raise `PairingError` for a device that runs no Triton kernels."""
    _check(backend, device, triton_unsupported(device))


def _check(backend: type, device: torch.device, found: Unsupported | None) -> None:
    if found is not None:
        raise PairingError(
            f"Cannot run attention `{backend.__name__}` on `{device}`: {found.reason}; "
            f'{found.remedy}, or leave the choice to `attention="auto"`.'
        )
