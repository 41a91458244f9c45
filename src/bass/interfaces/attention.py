"""What attends to the view of a cache."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.interfaces.cache import View
from bass.records import AttentionRule, Unturned

Plan = TypeVar("Plan")


class AttentionBackend(ABC, Generic[View, Plan]):
    """Attends to a cache's view.

    `capturable`: no host read in `plan` or `run`, so a CUDA graph can hold them.
    """

    view_type: ClassVar[type]
    capturable: ClassVar[bool]
    paper: ClassVar[str] = ""

    def check(self, device: torch.device) -> None:
        """Raise a `PairingError` where the backend cannot run on the device."""

    @abstractmethod
    def plan(self, positions: Int[Tensor, "batch window"], span: int) -> Plan:
        """What all layers of one forward pass share."""
        ...

    @abstractmethod
    def run(
        self,
        q: Float[Tensor, "batch window heads dim"],
        view: View,
        plan: Plan,
        rule: AttentionRule,
    ) -> Float[Tensor, "batch window heads dim"]:
        """Attend in one layer, whose scale, window and soft cap are `rule`'s."""
        ...


class RotaryBackend(ABC):
    """What a backend may have beside: one kernel that also does what a `RotaryStore` does."""

    @abstractmethod
    def run_turned(
        self, window: Unturned, view: Any, plan: Any, rule: AttentionRule
    ) -> Float[Tensor, "batch window heads dim"] | None:
        """As `write_turned`, then `run`;

        None, and nothing written, for what the kernel does not serve.
        """
        ...
