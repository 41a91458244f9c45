"""What the backends have in common that need no more than positions: those that run a Triton
kernel, and the float64 references.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from bass.errors import PairingError
from bass.interfaces import AttentionBackend, View
from bass.ops.dispatch import Unsupported, triton_unsupported, unsupported


@dataclass(frozen=True)
class PositionPlan:
    """The positions, from which each row's length is found on the device, and their upper bound on
    the host.
    """

    positions: Int[Tensor, "batch window"]
    span: int


@dataclass(frozen=True)
class PositionBackend(AttentionBackend[View, PositionPlan]):
    """Nothing to plan: masks and lengths follow from the positions in each layer."""

    capturable: ClassVar[bool] = True

    def plan(self, positions: Int[Tensor, "batch window"], span: int) -> PositionPlan:
        return PositionPlan(positions, span)


@dataclass(frozen=True)
class KernelBackend(PositionBackend[View]):
    """One that runs a Triton kernel."""

    def check(self, device: torch.device) -> None:
        _refuse(type(self), device, unsupported(device))


def check_triton(backend: type, device: torch.device) -> None:
    """Refuse a device on which no kernel in Triton can run."""
    _refuse(backend, device, triton_unsupported(device))


def _refuse(backend: type, device: torch.device, found: Unsupported | None) -> None:
    if found is not None:
        raise PairingError(
            f"Cannot run attention `{backend.__name__}` on `{device}`: {found.reason}; "
            f'{found.remedy}, or leave the choice to `attention="auto"`.'
        )
