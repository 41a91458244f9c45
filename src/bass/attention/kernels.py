"""What the backends that run a Triton kernel have in common."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from bass.errors import PairingError
from bass.interfaces import AttentionBackend, View
from bass.kernels import obstacle


@dataclass(frozen=True)
class KernelPlan:
    """The positions, from which the kernel finds each row's length on the device, and their upper bound on the host."""

    positions: Int[Tensor, "batch window"]
    span: int


@dataclass(frozen=True)
class KernelBackend(AttentionBackend[View, KernelPlan]):
    """Nothing to plan: masks and lengths follow from the positions inside the kernel."""

    capturable: ClassVar[bool] = True

    def check(self, device: torch.device) -> None:
        check_triton(type(self), device)

    def plan(self, positions: Int[Tensor, "batch window"], span: int) -> KernelPlan:
        return KernelPlan(positions, span)


def check_triton(backend: type, device: torch.device) -> None:
    """Refuse a device on which Triton's kernels cannot run."""
    found = obstacle(device)
    if found is not None:
        raise PairingError(
            f'Cannot run attention `{backend.__name__}` on `{device}`: {found[0]}; {found[1]}, or leave the choice to `attention="auto"`.'
        )
