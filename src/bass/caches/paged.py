"""PagedAttention's layout: a row is a list of blocks, and samples of one prompt have its full
blocks in common.
"""

from typing import ClassVar, final

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from bass.interfaces import KVCache
from bass.ops import kv_store
from bass.records import CacheBudget, DecoderShape, PagedView, Projection, RowAssignment

BLOCK = 16  # positions


@final
class PagedCache(KVCache[PagedView]):
    """Keys and values [layers, blocks + 1, block, kv_heads, head_dim]; the last block is the spare
    one.

        row 0   [ 4 | 0 | 2 | 6 ]      Both rows continue one prompt: its full blocks 4 and 0
        row 1   [ 4 | 0 | 5 | 1 ]      are stored once; all blocks after them are the row's own.

    A block that several rows name is not written any more: a committed token fed again changes
    nothing in it. The tables are updated in place, since a captured graph holds their addresses.
    Memory: less than one block more than each row needs, and what rows have in common once.
    """

    view_type: ClassVar[type] = PagedView
    paper: ClassVar[str] = "Kwon et al., 2023"

    def __init__(
        self,
        k: Float[Tensor, "layers blocks block kv_heads dim"],
        v: Float[Tensor, "layers blocks block kv_heads dim"],
        table: Int[Tensor, "batch entries"],
        writable: Int[Tensor, "batch entries+1"],
        blocks: Int[np.ndarray, "batch entries"],
    ) -> None:
        self.k, self.v = k, v
        self.table = table  # device, block numbers
        # device, the first slot of each block, of the spare one for blocks that are not to be
        # written
        self.writable = writable
        self._blocks = blocks  # host, what both were made from; a block that no row names is free
        self._row_index = torch.arange(len(table), device=k.device)[:, None]
        # Made once: a decoding step is short enough on a CPU for indexing by layer to show.
        self._slots = list(zip(_slots(k).unbind(), _slots(v).unbind(), strict=True))
        self._views = [
            PagedView(keys, values, table)
            for keys, values in zip(k.unbind(), v.unbind(), strict=True)
        ]

    @classmethod
    def allocate(
        cls, shape: DecoderShape, budget: CacheBudget, device: torch.device, dtype: torch.dtype
    ) -> "PagedCache":
        """As many blocks as the rows can name at a time, whichever requests they serve.

        All rows of one prompt name the same full blocks of it: a request whose prompt is in flight
        follows a row that has it, so these blocks are taken only when no row has them, and belong
        to nobody once the last of those rows has ended. The other blocks of a row are its own.
        Hence `batch` rows name at most the full blocks of `batch` prompts and the own ones of
        `batch` requests, nor more than all the blocks of `batch` requests. What ended rows held is
        free at each `reserve`, which is where blocks are given out.
        """
        full, total = budget.shared // BLOCK, -(-budget.limits // BLOCK)
        prompts = np.unique(budget.groups, return_index=True)[1]
        most = [
            int(np.sort(counts)[::-1][: budget.batch].sum())
            for counts in (full[prompts], total - full, total)
        ]
        spare = min(most[0] + most[1], most[2])
        entries = int(total.max())
        k, v = (
            torch.zeros(
                (shape.layers, spare + 1, BLOCK, shape.kv_heads, shape.head_dim),
                device=device,
                dtype=dtype,
            )
            for _ in range(2)
        )
        table = torch.full((budget.batch, entries), spare, device=device)
        # the last column is that of position -1
        writable = torch.full((budget.batch, entries + 1), spare * BLOCK, device=device)
        cache = cls(k, v, table, writable, np.full((budget.batch, entries), spare))
        # with nothing in common, rows have their room at once, as in the other layouts
        if not budget.shared.any():
            cache.reserve(RowAssignment.of(budget.longest))
        return cache

    @property
    def _spare(self) -> int:
        return self.k.shape[1] - 1

    @property
    def _block(self) -> int:
        return self.k.shape[2]

    def write(self, layer: int, k: Tensor, v: Tensor, positions: Tensor) -> None:
        # Position -1 is in block -1: an index of -1 means the last, which is the spare one's.
        slots = self.writable[self._row_index, positions // self._block] + positions % self._block
        keys, values = self._slots[layer]
        keys.index_put_((slots,), k)
        values.index_put_((slots,), v)

    def store(
        self, layer: int, projection: Projection, positions: Int[Tensor, "batch window"]
    ) -> Float[Tensor, "batch window heads dim"]:
        if not kv_store.supports(projection, self.k):
            return super().store(layer, projection, positions)
        return kv_store.store(
            projection, positions, *self._slots[layer], self.writable, self._block
        )

    def view(self, layer: int) -> PagedView:
        return self._views[layer]

    def rows(self, start: int, stop: int) -> "PagedCache":
        return PagedCache(
            self.k,
            self.v,
            self.table[start:stop],
            self.writable[start:stop],
            self._blocks[start:stop],
        )

    def reserve(self, assignment: RowAssignment) -> None:
        counts, at = (
            -(-assignment.capacities // self._block)[:, None],
            np.arange(self._blocks.shape[1]),
        )
        assert counts.max() <= len(at), (
            f"rows of {assignment.capacities.max()} positions in a cache of {len(at) * self._block}"
        )
        blocks = np.where(assignment.continuing[:, None] & (at < counts), self._blocks, self._spare)
        free = np.setdiff1d(np.arange(self._spare), blocks)
        # of the followers: taken below, when their sources have all of theirs
        common = at < self._common(assignment)[:, None]
        lacking = (at < counts) & (blocks == self._spare) & ~common
        assert lacking.sum() <= len(free), (
            f"{lacking.sum()} more blocks for {assignment.capacities} positions in a pool with "
            f"{len(free)} "
            "free ones"
        )
        blocks[lacking] = free[: lacking.sum()]
        self._blocks[:] = np.where(common, blocks[assignment.source], blocks)
        self.table.copy_(torch.as_tensor(self._blocks))
        self._protect(~assignment.continuing)

    def copy_rows(self, assignment: RowAssignment) -> None:
        """Full blocks are in the follower's table already; of the block in which the shared
        positions end, it takes those.
        """
        if not len(assignment.followers):
            return
        rows, size = assignment.followers, self._block
        full, rest = assignment.shared[rows] // size, assignment.shared[rows] % size
        rows, full, rest = (array[rest > 0] for array in (rows, full, rest))
        if len(rows):
            ends = (self._blocks[row, full] * size for row in (assignment.source[rows], rows))
            index = [
                np.concatenate(
                    [np.arange(first, first + n) for first, n in zip(end, rest, strict=True)]
                )
                for end in ends
            ]
            came, to = (torch.as_tensor(i, device=self.k.device) for i in index)
            for pool in (_slots(self.k), _slots(self.v)):
                pool[:, to] = pool[:, came]
        self._protect(np.zeros(len(self._blocks), dtype=bool))  # the sources are filled

    def _common(self, assignment: RowAssignment) -> Int[np.ndarray, " batch"]:
        """The number of blocks that each row takes from its source."""
        counts = np.zeros_like(assignment.shared)
        counts[assignment.followers] = assignment.shared[assignment.followers] // self._block
        return counts

    def _protect(self, beginning: np.ndarray) -> None:
        """Rows write into blocks that they alone name; those that begin, which are filled first,
        into all of theirs.
        """
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
