"""BASS-PAD's layout: every row has the capacity of the longest."""

from typing import ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.caches.split import copy_slots
from bass.interfaces import KVCache
from bass.ops import attention
from bass.records import CacheBudget, DecoderShape, PaddedView, Projection, RowAssignment


@final
class PaddedCache(KVCache[PaddedView]):
    """Keys and values [layers, B, capacity + 1, kv_heads, head_dim]; the last slot is the spare
    one.

    A write at position -1 reaches the spare slot, since index -1 is the last one. Memory: B times
    the longest row.
    """

    view_type: ClassVar[type] = PaddedView
    paper: ClassVar[str] = "Qian et al., 2024 (BASS-PAD)"
    writable_view: ClassVar[bool] = True

    def __init__(
        self,
        k: Float[Tensor, "layers batch slots kv_heads dim"],
        v: Float[Tensor, "layers batch slots kv_heads dim"],
        chosen: Int[Tensor, " rows"] | None = None,
    ) -> None:
        self.k, self.v = k, v
        self._chosen = chosen  # the row of each row of `selected`
        own = torch.arange(k.shape[1], device=k.device) if chosen is None else chosen
        self._row_index = own[:, None]
        # Made once: on a CPU, indexing by layer takes a measurable part of a decoding step.
        self._slots = list(zip(k.unbind(), v.unbind(), strict=True))
        self._views = [PaddedView(keys[:, :-1], values[:, :-1]) for keys, values in self._slots]

    @classmethod
    def allocate(
        cls, shape: DecoderShape, budget: CacheBudget, device: torch.device, dtype: torch.dtype
    ) -> "PaddedCache":
        rows = budget.batch, int(budget.limits.max()) + 1
        size = shape.layers, *rows, shape.kv_heads, shape.head_dim
        return cls(*(torch.zeros(size, device=device, dtype=dtype) for _ in range(2)))

    def write(self, layer: int, k: Tensor, v: Tensor, positions: Tensor) -> None:
        index = (self._row_index, positions)
        keys, values = self._slots[layer]
        keys.index_put_(index, k)
        values.index_put_(index, v)

    def store(
        self, layer: int, projection: Projection, positions: Int[Tensor, "batch window"]
    ) -> Float[Tensor, "batch window heads dim"]:
        k, v = self._slots[layer]
        if self._chosen is None:
            q = attention.store(projection, positions, k, v)
        else:  # in one pool of all rows
            pool, starts = (k.flatten(0, 1), v.flatten(0, 1)), self._chosen * k.shape[1]
            q = attention.store(projection, positions, *pool, starts)
        return super().store(layer, projection, positions) if q is None else q

    def view(self, layer: int) -> PaddedView:
        view, rows = self._views[layer], self._chosen
        return view if rows is None else PaddedView(view.k[rows], view.v[rows])

    def rows(self, start: int, stop: int) -> "PaddedCache":
        return PaddedCache(self.k[:, start:stop], self.v[:, start:stop])

    def selected(self, rows: Int[Tensor, " batch"]) -> "PaddedCache":
        """As `KVCache.selected`; its views are copies."""
        return PaddedCache(self.k, self.v, rows)

    def reserve(self, assignment: RowAssignment) -> None:
        capacity = self.k.shape[2] - 1
        assert assignment.capacities.max() <= capacity, (
            f"rows of {assignment.capacities.max()} positions in a cache of {capacity}"
        )

    def copy_rows(self, assignment: RowAssignment) -> None:
        starts = np.arange(self.k.shape[1]) * self.k.shape[2]
        pools = self.k.flatten(1, 2), self.v.flatten(1, 2)
        copy_slots(pools, starts[assignment.source], starts, assignment.shared)
