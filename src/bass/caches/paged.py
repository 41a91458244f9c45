"""PagedAttention's layout: a row is a list of blocks, and samples of one prompt share its full
blocks.
"""

from typing import ClassVar, final

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from bass.caches.split import copy_slots
from bass.interfaces import KVCache
from bass.ops import attention
from bass.records import CacheBudget, DecoderShape, PagedView, Projection, RowAssignment

BLOCK = 16  # positions


@final
class PagedCache(KVCache[PagedView]):
    """Keys and values [layers, blocks + 1, block, kv_heads, head_dim]; the last block is the spare
    one.

        row 0   [ 4 | 0 | 2 | 6 ]      Both rows continue one prompt: its full blocks 4 and 0
        row 1   [ 4 | 0 | 5 | 1 ]      are stored once; all blocks after them are the row's own.

    Shared blocks are read-only; feeding a committed token again would not change them anyway.
    The tables are updated in place, since a captured graph holds their addresses. Memory: each row
    wastes less than one block, and shared blocks are stored once.
    """

    view_type: ClassVar[type] = PagedView
    paper: ClassVar[str] = "Kwon et al., 2023"

    def __init__(
        self,
        k: Float[Tensor, "layers blocks block kv_heads dim"],
        v: Float[Tensor, "layers blocks block kv_heads dim"],
        table: Int[Tensor, "batch entries"],
        writable: Int[Tensor, "batch entries+1"],
        blocks: Int[np.ndarray, "rows entries"],
    ) -> None:
        self.k, self.v = k, v
        self.table = table  # device, block numbers
        # device, the first slot of each block; the spare block's for read-only blocks
        self.writable = writable
        self._blocks = blocks  # host, the source of both; a block in no row's list is free
        self._row_index = torch.arange(len(table), device=k.device)[:, None]
        # Made once: on a CPU, indexing by layer takes a measurable part of a decoding step.
        self._slots = list(zip(_slots(k).unbind(), _slots(v).unbind(), strict=True))
        self._views = [
            PagedView(keys, values, table)
            for keys, values in zip(k.unbind(), v.unbind(), strict=True)
        ]

    @classmethod
    def allocate(
        cls, shape: DecoderShape, budget: CacheBudget, device: torch.device, dtype: torch.dtype
    ) -> "PagedCache":
        """Allocate the most blocks that the rows can use at once, for any order of requests.

        All rows of one prompt share its full blocks: a request whose prompt is in flight follows a
        row with that prompt. So these blocks are allocated only if no row has them, and are free
        once the last of those rows has ended. The other blocks of a row are its own. Hence `batch`
        rows use at most the full blocks of `batch` prompts plus the own blocks of `batch` requests,
        and at most all blocks of `batch` requests. `reserve` assigns blocks, and first frees those
        of ended rows.
        """
        full, total = budget.shared // BLOCK, -(-budget.limits // BLOCK)
        prompts = np.unique(budget.groups, return_index=True)[1]
        most = [
            int(np.sort(counts)[::-1][: budget.batch].sum())
            for counts in (full[prompts], total - full, total)
        ]
        spare = min(most[0] + most[1], most[2])
        entries = int(total.max())
        size = shape.layers, spare + 1, BLOCK, shape.kv_heads, shape.head_dim
        k, v = (torch.zeros(size, device=device, dtype=dtype) for _ in range(2))
        table = torch.full((budget.batch, entries), spare, device=device)
        # the last column is for position -1
        writable = torch.full((budget.batch, entries + 1), spare * BLOCK, device=device)
        return cls(k, v, table, writable, np.full((budget.batch, entries), spare))

    @property
    def _spare(self) -> int:
        return self.k.shape[1] - 1

    @property
    def _block(self) -> int:
        return self.k.shape[2]

    def write(self, layer: int, k: Tensor, v: Tensor, positions: Tensor) -> None:
        # Position -1 is in block -1: index -1 is the last column, which is the spare block's.
        slots = self.writable[self._row_index, positions // self._block] + positions % self._block
        keys, values = self._slots[layer]
        keys.index_put_((slots,), k)
        values.index_put_((slots,), v)

    def store(
        self, layer: int, projection: Projection, positions: Int[Tensor, "batch window"]
    ) -> Float[Tensor, "batch window heads dim"]:
        q = attention.store(projection, positions, *self._slots[layer], self.writable, self._block)
        return super().store(layer, projection, positions) if q is None else q

    def view(self, layer: int) -> PagedView:
        return self._views[layer]

    def rows(self, start: int, stop: int) -> "PagedCache":
        rows = slice(start, stop)
        table, writable, blocks = self.table[rows], self.writable[rows], self._blocks[rows]
        return PagedCache(self.k, self.v, table, writable, blocks)

    def selected(self, rows: Int[Tensor, " batch"]) -> "PagedCache":
        return PagedCache(self.k, self.v, self.table[rows], self.writable[rows], self._blocks)

    def reserve(self, assignment: RowAssignment) -> None:
        counts = -(-assignment.capacities // self._block)[:, None]
        at = np.arange(self._blocks.shape[1])
        assert counts.max() <= len(at), (
            f"rows of {assignment.capacities.max()} positions in a cache of {len(at) * self._block}"
        )
        blocks = np.where(assignment.continuing[:, None] & (at < counts), self._blocks, self._spare)
        free = np.setdiff1d(np.arange(self._spare), blocks)
        # followers copy these entries below, once their sources have all blocks
        common = at < self._common(assignment)[:, None]
        lacking = (at < counts) & (blocks == self._spare) & ~common
        assert lacking.sum() <= len(free), f"{lacking.sum()} blocks of {len(free)} free ones"
        blocks[lacking] = free[: lacking.sum()]
        self._blocks[:] = np.where(common, blocks[assignment.source], blocks)
        self.table.copy_(torch.as_tensor(self._blocks))
        self._protect(~assignment.continuing)

    def copy_rows(self, assignment: RowAssignment) -> None:
        """As `KVCache.copy_rows`. The follower's table already has the shared full blocks; only the
        shared part of the last block is copied.
        """
        rows, size = assignment.followers, self._block
        if not len(rows):
            return
        full, rest = assignment.shared[rows] // size, assignment.shared[rows] % size
        at = np.minimum(full, self._blocks.shape[1] - 1)  # no rest: the row may have no such block
        came, to = (self._blocks[row, at] * size for row in (assignment.source[rows], rows))
        copy_slots((_slots(self.k), _slots(self.v)), came, to, rest)
        self._protect(np.zeros(len(self._blocks), dtype=bool))  # the sources are filled

    def _common(self, assignment: RowAssignment) -> Int[np.ndarray, " batch"]:
        """The number of blocks that each row shares with its source."""
        counts = np.zeros_like(assignment.shared)
        counts[assignment.followers] = assignment.shared[assignment.followers] // self._block
        return counts

    def _protect(self, beginning: np.ndarray) -> None:
        """Make shared blocks read-only, except in the rows that begin, which are filled first."""
        names = np.bincount(self._blocks.ravel(), minlength=self._spare + 1)
        writable = np.where(
            (names[self._blocks] == 1) | beginning[:, None], self._blocks, self._spare
        )
        self.writable[:, :-1].copy_(torch.as_tensor(writable * self._block))


def _slots(
    pool: Float[Tensor, "layers blocks block kv_heads dim"],
) -> Float[Tensor, "layers slots kv_heads dim"]:
    """A view of the pool without its division into blocks."""
    return rearrange(pool, "layers blocks block ... -> layers (blocks block) ...")
