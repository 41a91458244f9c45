"""The contract of attention backends."""

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.interfaces.cache import KVCache, View
from bass.records import AttentionRule, PackedRows, Projection

Plan = TypeVar("Plan")


class AttentionBackend(ABC, Generic[View, Plan]):
    """Computes attention over a cache's view.

    `view_type`: the class of the views that it reads. `capturable`: `plan` and `run` read nothing
    on the host, so a CUDA graph can capture them. `reads_lengths`: its work follows the rows'
    lengths on the device, and hardly depends on the span, so two spans are enough for all lengths.
    `replayable`: on a CPU its passes may consist of kernels, which are recorded and replayed.
    `packs`: windows are packed on a GPU too; `attend_packed` serves caches with `selected`.
    """

    view_type: ClassVar[type]
    capturable: ClassVar[bool]
    reads_lengths: ClassVar[bool] = False
    replayable: ClassVar[bool] = False
    packs: ClassVar[bool] = False
    paper: ClassVar[str] = ""

    def check(self, device: torch.device) -> None:
        """Raise a `PairingError` if the backend cannot run on the device."""

    @abstractmethod
    def plan(self, positions: Int[Tensor, "batch window"], span: int) -> Plan:
        """Compute what all layers of one forward pass share.

        span: no position in use is at or beyond it.
        """

    @abstractmethod
    def run(
        self,
        q: Float[Tensor, "batch window heads dim"],
        view: View,
        plan: Plan,
        rule: AttentionRule,
        sinks: Float[Tensor, " heads"] | None = None,
    ) -> Float[Tensor, "batch window heads dim"]:
        """Attention of one layer, with the scale, window and soft cap of `rule`.

        A query at position p attends to positions 0..p of its row; the output at -1 is unused.
        sinks: given for layers that have them; each adds exp(sink) to the sum that divides the
        weights of its head.
        """

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

        A backend with one kernel for both overrides this.
        """
        q = cache.store(layer, projection, positions)
        if projection.sinks is None:
            return self.run(q, cache.view(layer), plan, rule)
        return self.run(q, cache.view(layer), plan, rule, projection.sinks)

    def attend_packed(
        self,
        cache: KVCache[View],
        layer: int,
        projection: Projection,
        packed: PackedRows,
        plan: Plan,
        rule: AttentionRule,
    ) -> Float[Tensor, "1 tokens heads dim"] | None:
        """As `attend`, for a packed window; the plan is that of its positions. None: the engine
        pads it.
        """
        return None
