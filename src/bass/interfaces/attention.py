"""What attends to the view of a cache."""

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.interfaces.cache import KVCache, View
from bass.records import AttentionRule, Projection

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

    def attend(
        self,
        cache: KVCache[View],
        layer: int,
        projection: Projection,
        positions: Int[Tensor, "batch window"],
        plan: Plan,
        rule: AttentionRule,
    ) -> Float[Tensor, "batch window heads dim"]:
        """Store the projection's keys and values in the cache, then attend with its queries.

        A backend with one kernel for all of it overrides this.
        """
        q = cache.store(layer, projection, positions)
        return self.run(q, cache.view(layer), plan, rule)
