"""The contracts of KV caches, and of everything that holds state per row."""

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.records import CacheBudget, DecoderShape, Features, Projection, RowAssignment, Window

View = TypeVar("View")


class KVCache(ABC, Generic[View]):
    """Storage addressed by (row, position).

    It stores no lengths; a write at position -1 goes to a spare slot. `view_type`: the class of its
    views. `writable_view`: `view` is the storage that `write` fills, so a backend may write to it.
    """

    view_type: ClassVar[type]
    paper: ClassVar[str] = ""
    writable_view: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def allocate(
        cls, shape: DecoderShape, budget: CacheBudget, device: torch.device, dtype: torch.dtype
    ) -> "KVCache[View]":
        """Allocate storage for all rows of a run at once.

        The engine calls `reserve` before the first write to a row.
        """

    @abstractmethod
    def write(
        self,
        layer: int,
        k: Float[Tensor, "batch window kv_heads dim"],
        v: Float[Tensor, "batch window kv_heads dim"],
        positions: Int[Tensor, "batch window"],
    ) -> None:
        """Store keys and values at their positions; nothing at -1."""

    def store(
        self, layer: int, projection: Projection, positions: Int[Tensor, "batch window"]
    ) -> Float[Tensor, "batch window heads dim"]:
        """Complete the projection, write its keys and values, and return its queries.

        A cache with one kernel for all three overrides this.
        """
        q, k, v = projection.rotated()
        self.write(layer, k, v, positions)
        return q

    @abstractmethod
    def view(self, layer: int) -> View:
        """One layer's keys and values, for a backend."""

    @abstractmethod
    def rows(self, start: int, stop: int) -> "KVCache[View]":
        """The same storage, limited to a range of rows.

        `rows(0, n)` is the cache of a smaller engine, which calls every method of it.
        """

    def selected(self, rows: Int[Tensor, " batch"]) -> "KVCache[View]":
        """The same storage, of which row b is row `rows[b]`, read on the device, more than once for
        some: a CUDA graph can then feed prompts to any rows. It serves `store` and `view` of passes
        that store before they attend. Without it the host launches the kernels of a prefill.
        """
        raise NotImplementedError

    @abstractmethod
    def reserve(self, assignment: RowAssignment) -> None:
        """Reserve `assignment.capacities[b]` positions for row b. Continuing rows keep theirs."""

    @abstractmethod
    def copy_rows(self, assignment: RowAssignment) -> None:
        """Copy the first `assignment.shared[b]` positions of row `assignment.source[b]` to row b:
        one prefill for many samples.

        The engine calls it after `reserve` with the same assignment, once the source's prompt is
        written.
        """


class RowStore(ABC):
    """Holds state per row, filled with prompts. A store without state keeps the defaults.

    `writes_inputs`: it writes to what its methods receive, and gets copies.
    """

    writes_inputs: ClassVar[bool] = False

    @property
    def fills(self) -> bool:
        """Whether its `fill` does anything."""
        return type(self).fill is not RowStore.fill

    def reserve(self, assignment: RowAssignment) -> None:
        """Reserve `assignment.capacities[b]` positions for row b."""

    def fill(self, window: Window) -> Features:
        """Process tokens of prompts, and return their features."""
        return ()

    def copy_rows(self, assignment: RowAssignment) -> None:
        """Copy the state of the first `assignment.shared[b]` positions of row
        `assignment.source[b]` to row b.
        """


class ForwardingRowStore(RowStore):
    """Forwards to `store`: the base of wrappers, and of drafters that use a model."""

    @property
    @abstractmethod
    def store(self) -> RowStore:
        """The store that holds the state."""

    @property
    def fills(self) -> bool:
        return type(self).fill is not ForwardingRowStore.fill or self.store.fills

    def reserve(self, assignment: RowAssignment) -> None:
        self.store.reserve(assignment)

    def fill(self, window: Window) -> Features:
        return self.store.fill(window)

    def copy_rows(self, assignment: RowAssignment) -> None:
        self.store.copy_rows(assignment)
