"""BASS-SPLIT's layout: each row has its own capacity in a flat pool, without padding."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.interfaces import KVCache
from bass.ops import attention
from bass.records import CacheBudget, DecoderShape, Projection, RaggedView, RowAssignment


@final
@dataclass(frozen=True)
class SplitCache(KVCache[RaggedView]):
    """Keys and values [layers, pool + 1, kv_heads, head_dim]; the last slot is the spare one.

        pool  [ row 0 ....... | row 1 .. | row 2 ............ | free | spare ]
                ^ starts[0]     ^ starts[1]

    `reserve` compacts the rows if one of them needs more than it has, so the pool needs no more
    than the sum of the capacities, int [B] on the host, of which `starts` are the running sums.
    """

    view_type: ClassVar[type] = RaggedView
    paper: ClassVar[str] = "Qian et al., 2024 (BASS-SPLIT)"
    writable_view: ClassVar[bool] = True
    k: Float[Tensor, "layers slots kv_heads dim"]
    v: Float[Tensor, "layers slots kv_heads dim"]
    starts: Int[Tensor, " batch"]  # device
    capacities: np.ndarray

    @classmethod
    def allocate(
        cls, shape: DecoderShape, budget: CacheBudget, device: torch.device, dtype: torch.dtype
    ) -> "SplitCache":
        capacities = budget.longest  # later rows may divide the pool differently
        size = (shape.layers, int(capacities.sum()) + 1, shape.kv_heads, shape.head_dim)
        k, v = (torch.zeros(size, device=device, dtype=dtype) for _ in range(2))
        return cls(k, v, torch.as_tensor(_starts(capacities), device=device), capacities)

    def write(self, layer: int, k: Tensor, v: Tensor, positions: Tensor) -> None:
        slots = torch.where(positions < 0, -1, self.starts[:, None] + positions)
        self.k[layer].index_put_((slots,), k)
        self.v[layer].index_put_((slots,), v)

    def store(
        self, layer: int, projection: Projection, positions: Int[Tensor, "batch window"]
    ) -> Float[Tensor, "batch window heads dim"]:
        q = attention.store(projection, positions, self.k[layer], self.v[layer], self.starts)
        return super().store(layer, projection, positions) if q is None else q

    def view(self, layer: int) -> RaggedView:
        return RaggedView(self.k[layer, :-1], self.v[layer, :-1], self.starts)

    def rows(self, start: int, stop: int) -> "SplitCache":
        return SplitCache(self.k, self.v, self.starts[start:stop], self.capacities[start:stop])

    def selected(self, rows: Int[Tensor, " batch"]) -> "SplitCache":
        return SplitCache(self.k, self.v, self.starts[rows], self.capacities)

    def reserve(self, assignment: RowAssignment) -> None:
        capacities, capacity = assignment.capacities, self.k.shape[1] - 1
        assert capacities.sum() <= capacity, f"{capacities.sum()} positions in a pool of {capacity}"
        if (capacities <= self.capacities).all():
            return
        counts = np.minimum(self.capacities, capacities)
        copy_slots((self.k, self.v), _starts(self.capacities), _starts(capacities), counts)
        self.capacities[:] = capacities
        self.starts.copy_(torch.as_tensor(_starts(capacities)))

    def copy_rows(self, assignment: RowAssignment) -> None:
        starts = _starts(self.capacities)
        copy_slots((self.k, self.v), starts[assignment.source], starts, assignment.shared)


def copy_slots(
    pools: tuple[Tensor, Tensor], came: np.ndarray, to: np.ndarray, counts: np.ndarray
) -> None:
    """Copy `counts[i]` slots from `came[i]` to `to[i]` for every i at once, sources read before any
    write. pools: keys and values [layers, slots, kv_heads, head_dim].
    """
    counts = np.where(came == to, 0, counts)
    if counts.any():
        ahead = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        index = (np.repeat(first, counts) + ahead for first in (came, to))
        old, new = (torch.as_tensor(slots, device=pools[0].device) for slots in index)
        for pool in pools:
            pool[:, new] = pool[:, old]


def _starts(capacities: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(capacities)[:-1])).astype(np.int64)
