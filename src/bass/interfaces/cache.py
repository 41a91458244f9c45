"""What keeps keys and values, and what keeps state per row."""

from abc import ABC, abstractmethod
from types import FunctionType
from typing import Any, ClassVar, Generic, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.records import CacheBudget, DecoderShape, Features, Projection, RowAssignment, Window

View = TypeVar("View")


class KVCache(ABC, Generic[View]):
    """Storage addressed by (row, position).

    It stores no lengths; a write at position -1 goes to a spare slot.
    """

    view_type: ClassVar[type]
    paper: ClassVar[str] = ""
    # `view` shows where `write` puts keys and values, unchanged: a backend may write them itself
    writable_view: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def allocate(
        cls, shape: DecoderShape, budget: CacheBudget, device: torch.device, dtype: torch.dtype
    ) -> "KVCache[View]":
        """Storage for all that a run's rows may hold at a time.

        Where they share something, a `reserve` comes before the first write.
        """
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors, and of the caches that it wraps."""
        return sum(
            value.nbytes
            for value in vars(self).values()
            if isinstance(value, Tensor) or KVCache in type(value).__mro__
        )

    @abstractmethod
    def write(
        self,
        layer: int,
        k: Float[Tensor, "batch window kv_heads dim"],
        v: Float[Tensor, "batch window kv_heads dim"],
        positions: Int[Tensor, "batch window"],
    ) -> None: ...

    def store(
        self, layer: int, projection: Projection, positions: Int[Tensor, "batch window"]
    ) -> Float[Tensor, "batch window heads dim"]:
        """Complete the projection, write its keys and values, and return its queries.

        A cache with one kernel for all of it overrides this.
        """
        q, k, v = projection.rotated()
        self.write(layer, k, v, positions)
        return q

    @abstractmethod
    def view(self, layer: int) -> View: ...

    @abstractmethod
    def rows(self, start: int, stop: int) -> "KVCache[View]":
        """The same storage, limited to a range of rows."""
        ...

    @abstractmethod
    def reserve(self, assignment: RowAssignment) -> None:
        """Give row b room for `assignment.capacities[b]` positions; what rows hold that go on is
        kept.
        """
        ...

    @abstractmethod
    def copy_rows(self, assignment: RowAssignment) -> None:
        """Row b takes the first `assignment.shared[b]` positions of row `assignment.source[b]`: one
        prefill, many samples.

        Follows a `reserve` of the same seats, after which the source's prompt was written.
        """
        ...


def takes_window(owner: type, name: str) -> None:
    """Refuse a method that takes tokens, positions and more by themselves, as it once did."""
    method = vars(owner).get(name)
    if isinstance(method, FunctionType) and method.__code__.co_argcount > 2:
        raise TypeError(
            f"`{owner.__name__}.{name}` takes tokens, positions and more: it is now "
            f"`{name}(window)`, of a `bass.records.Window`."
        )


class RowStore(ABC):
    """Something that keeps state per row, to be filled with prompts.

    Without state, the defaults will do.
    """

    def reserve(self, assignment: RowAssignment) -> None:
        """Give row b room for `assignment.capacities[b]` positions."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        takes_window(cls, "fill")

    def fill(self, window: Window) -> Features:
        """Take in tokens of prompts, and return what others may read of them."""
        return ()

    def copy_rows(self, assignment: RowAssignment) -> None:
        """Row b takes the state that row `assignment.source[b]` has of its first
        `assignment.shared[b]` positions.
        """


class ForwardingRowStore(RowStore):
    """Forwards to `store`: the base of what wraps a scorer or a drafter, or drafts with a model."""

    @property
    @abstractmethod
    def store(self) -> RowStore:
        """What keeps the state."""
        ...

    def reserve(self, assignment: RowAssignment) -> None:
        self.store.reserve(assignment)

    def fill(self, window: Window) -> Features:
        return self.store.fill(window)

    def copy_rows(self, assignment: RowAssignment) -> None:
        self.store.copy_rows(assignment)
