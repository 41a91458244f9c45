"""Every registered layout, the paged one in small blocks too, how to read a row's position out of
each one's view, and a dictionary that a cache must agree with.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from bass.caches import CACHES, paged
from bass.interfaces import KVCache
from bass.records import (
    AttentionRule,
    DecoderShape,
    PaddedView,
    PagedView,
    RaggedView,
    RowAssignment,
)
from bass.testing.inputs import Draw

Make = Callable[..., KVCache[Any]]
SHAPE = DecoderShape(5, 2, 2, 3, 128, (AttentionRule(1.0),) * 2)


def in_blocks_of(size: int) -> Make:
    """Rows of a few positions have several blocks then."""

    def allocate(*given: Any) -> KVCache[Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(paged, "BLOCK", size)
            return paged.PagedCache.allocate(*given)

    return allocate


LAYOUTS: dict[str, Make] = {
    **{name: cls.allocate for name, cls in CACHES.items()},
    **{f"paged in blocks of {size}": in_blocks_of(size) for size in (1, 2, 3)},
}


def of_padded(view: Any, row: int, position: int) -> tuple[Any, Any]:
    """The key and the value."""
    return view.k[row, position], view.v[row, position]


def of_ragged(view: Any, row: int, position: int) -> tuple[Any, Any]:
    """The key and the value."""
    at = int(view.starts[row]) + position
    return view.k[at], view.v[at]


def of_paged(view: Any, row: int, position: int) -> tuple[Any, Any]:
    """The key and the value."""
    entry, at = divmod(position, view.k.shape[1])
    block = int(view.table[row, entry])
    assert block < len(view.k) - 1, "a row's position is in the spare block"
    return view.k[block, at], view.v[block, at]


# Reads a row's position from each view of the library, of tensors or NumPy arrays.
READ: dict[type, Callable[[Any, int, int], tuple[Any, Any]]] = {
    PaddedView: of_padded,
    RaggedView: of_ragged,
    PagedView: of_paged,
}


@dataclass
class CheckedCache:
    """A cache and the dictionary it must agree with, from (layer, row, position) to the key. All
    written values are distinct; a value is its negative key.

    `firm`: the number of first positions of a row that are or were shared with another row. They
    are committed: writes there repeat their content.
    """

    cache: Any
    capacities: np.ndarray
    expected: dict[tuple[int, int, int], float] = field(default_factory=dict)
    counter: float = 0.0

    def __post_init__(self) -> None:
        self.firm = np.zeros_like(self.capacities)
        self.begin_anew([*range(len(self.firm))])

    def write(self, first: int, positions: list[list[int]]) -> None:
        """Write a window to the rows from `first` on, in every layer."""
        rows = len(positions)
        for layer in range(SHAPE.layers):
            keys = torch.zeros(rows, len(positions[0]), SHAPE.kv_heads, SHAPE.head_dim)
            for (b, w), position in np.ndenumerate(positions):
                self.counter += 1
                at = layer, first + b, int(position)
                if position >= self.firm[first + b]:
                    self.expected[at] = self.counter
                keys[b, w] = self.expected.get(at, 0.0) if position >= 0 else self.counter
            cache, order = self.cache, torch.arange(rows)
            if type(cache).selected is not KVCache.selected:
                order = order.flip(0)
                cache = cache.selected(first + order)
            elif rows < len(self.capacities):
                cache = cache.rows(first, first + rows)
            cache.write(layer, keys[order], -keys[order], torch.tensor(positions)[order])

    def reserve(self, capacities: np.ndarray) -> None:
        """Assign other capacities to the rows."""
        self.cache.reserve(RowAssignment.of(capacities))
        self.expected = {at: v for at, v in self.expected.items() if at[2] < capacities[at[1]]}
        self.capacities = capacities

    def copy_rows(self, source: np.ndarray, most: int = 99) -> None:
        """Each row copies up to `most` positions that fit both rows; its other content becomes
        undefined.
        """
        own = source == np.arange(len(source))
        fits = np.minimum(np.minimum(self.capacities[source], self.capacities), most)
        shared = np.where(own, self.capacities, fits)
        self._assign(RowAssignment(self.capacities, source, shared))
        followers = np.flatnonzero(~own).tolist()
        before = self.expected
        self.expected = {at: value for at, value in before.items() if own[at[1]]}
        for b in followers:
            self.expected |= {
                (layer, b, p): value
                for (layer, row, p), value in before.items()
                if row == source[b] and p < shared[b]
            }
            self.firm[b] = shared[b]
            self.firm[source[b]] = max(self.firm[source[b]], shared[b])

    def begin_anew(self, rows: list[int]) -> None:
        """Assign new requests with the same capacities to the rows."""
        shared = self.capacities.copy()
        shared[rows] = 0
        self._assign(RowAssignment(self.capacities, np.arange(len(shared)), shared))
        self.expected = {at: value for at, value in self.expected.items() if at[1] not in rows}
        self.firm[rows] = 0

    def _assign(self, assignment: RowAssignment) -> None:
        self.cache.reserve(assignment)
        self.cache.copy_rows(assignment)

    def check(self) -> None:
        """Assert that cache and dictionary agree."""
        wrong = self.difference()
        assert wrong is None, wrong

    def difference(self) -> tuple[str, str] | None:
        """The expected and the actual content of a position that differs; None if none does."""
        expected_type = type(self.cache).view_type
        for layer in range(SHAPE.layers):
            view = self.cache.view(layer)
            if type(view) is not expected_type:
                return expected_type.__name__, type(view).__name__
            read, arrays = READ[expected_type], _arrays(view)
            for (at, b, p), key in self.expected.items():
                if at == layer:
                    k, v = read(arrays, b, p)
                    if not ((k == key).all() and (v == -key).all()):
                        found = f"keys {k.flatten().tolist()}, values {v.flatten().tolist()}"
                        return f"the key {key:.0f} in layer {at}, row {b}, position {p}", found
        return None

    def act(self, draw: Draw) -> str:
        """Perform an action of an engine, chosen by `draw`, and return its description."""
        batch, capacities = len(self.capacities), self.capacities
        actions = "write", "write", "write part", "reserve", "copy", "begin again"
        action = draw(st.sampled_from(actions))
        if action == "reserve":
            # Capacities are permuted among the rows, within the allocation; a row that shares
            # positions keeps its capacity.
            capacities, free = capacities.copy(), np.flatnonzero(self.firm == 0)
            capacities[free] = capacities[draw(st.permutations(free.tolist()))]
            self.reserve(capacities)
            return f"reserve rows of {capacities.tolist()} positions"
        if action == "copy":
            # The engine copies prompts, which fit both rows, and only from rows that are not
            # themselves targets.
            source, donors = np.arange(batch), draw(st.sets(st.integers(0, batch - 1), min_size=1))
            for b in sorted(set(range(batch)) - donors):
                if draw(st.booleans()):
                    source[b] = draw(st.sampled_from(sorted(donors)))
            least, most = int(capacities.min()), int(capacities.max())
            most = draw(st.integers(1, most) | st.integers(max(least - 3, 1), least))
            self.copy_rows(source, most)
            return f"rows follow rows {source.tolist()} with at most {most} positions"
        if action == "begin again":
            rows = sorted(draw(st.sets(st.integers(0, batch - 1))))
            self.begin_anew(rows)
            return f"rows {rows} begin again"
        first = draw(st.integers(0, batch - 1)) if action == "write part" else 0
        window = draw(st.integers(1, 3))
        positions = []
        for b in range(first, batch):
            start = draw(st.integers(-1, int(capacities[b]) - 1))
            used = draw(st.integers(0, min(window, int(capacities[b]) - max(start, 0))))
            positions.append([start + i if start >= 0 and i < used else -1 for i in range(window)])
        self.write(first, positions)
        return f"write at positions {positions} of the rows from {first} on"


def _arrays(view: Any) -> SimpleNamespace:
    """The fields of a view as NumPy arrays, whose elements are read ten times as fast."""
    values = {f.name: getattr(view, f.name) for f in fields(view)}
    return SimpleNamespace(
        **{n: v.cpu().numpy() if isinstance(v, Tensor) else v for n, v in values.items()}
    )
