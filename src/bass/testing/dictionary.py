"""Compares a cache with its model: a dictionary from (layer, row, position) to key and value."""

import dataclasses
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from bass.records import AttentionRule, DecoderShape, RowAssignment
from bass.testing.reading import READ
from bass.testing.strategies import Draw

SHAPE = DecoderShape(
    vocab_size=5,
    heads=2,
    kv_heads=2,
    head_dim=3,
    max_positions=128,
    rules=(AttentionRule(1.0),) * 2,
)
Place = tuple[int, int, int]  # layer, row, position


@dataclass
class Both:
    """A cache and the dictionary it must agree with. All written values are distinct.

    `firm`: the number of first positions of a row that are or were shared with another row. They
    are committed: writes there repeat their content.
    """

    cache: Any
    capacities: np.ndarray
    model: dict[Place, float] = field(default_factory=dict)
    counter: float = 0.0

    def __post_init__(self) -> None:
        self.firm = np.zeros_like(self.capacities)

    def write(self, first: int, positions: list[list[int]]) -> None:
        """Write a window to the rows from `first` on, in every layer."""
        shape = (len(positions), len(positions[0]), SHAPE.kv_heads, SHAPE.head_dim)
        for layer in range(SHAPE.layers):
            values = torch.zeros(shape)
            for b, places in enumerate(positions):
                for w, position in enumerate(places):
                    self.counter += 1
                    place = (layer, first + b, position)
                    values[b, w] = (
                        self.model.get(place, 0.0)
                        if 0 <= position < self.firm[first + b]
                        else self.counter
                    )
                    if position >= self.firm[first + b]:
                        self.model[place] = self.counter
            part = (
                self.cache
                if first == 0 and len(positions) == len(self.capacities)
                else self.cache.rows(first, first + len(positions))
            )
            part.write(layer, values, -values, torch.tensor(positions))

    def reserve(self, capacities: np.ndarray) -> None:
        self.cache.reserve(RowAssignment.of(capacities))
        self.model = {
            (layer, b, p): v for (layer, b, p), v in self.model.items() if p < capacities[b]
        }
        self.capacities = capacities

    def copy_rows(self, source: np.ndarray, most: int = 99) -> None:
        """Each row copies up to `most` positions that fit both rows; its other content becomes
        undefined.
        """
        own = source == np.arange(len(source))
        shared = np.where(
            own,
            self.capacities,
            np.minimum(np.minimum(self.capacities[source], self.capacities), most),
        )
        assignment = RowAssignment(self.capacities, source, shared)
        self.cache.reserve(assignment)
        self.cache.copy_rows(assignment)
        followers = set(np.flatnonzero(~own).tolist())
        kept = {place: value for place, value in self.model.items() if place[1] not in followers}
        taken = [
            (layer, b, p)
            for layer in range(SHAPE.layers)
            for b in followers
            for p in range(shared[b])
        ]
        self.model = kept | {
            (layer, b, p): self.model[layer, source[b], p]
            for layer, b, p in taken
            if (layer, source[b], p) in self.model
        }
        for b in followers:
            self.firm[b] = shared[b]
            self.firm[source[b]] = max(self.firm[source[b]], shared[b])

    def begin_anew(self, rows: list[int]) -> None:
        """Assign new requests with the same capacities to the rows."""
        shared = self.capacities.copy()
        shared[rows] = 0
        assignment = RowAssignment(self.capacities, np.arange(len(shared)), shared)
        self.cache.reserve(assignment)
        self.cache.copy_rows(assignment)
        self.model = {place: value for place, value in self.model.items() if place[1] not in rows}
        self.firm[rows] = 0

    def check(self) -> None:
        """Assert that cache and dictionary agree."""
        wrong = self.difference()
        assert wrong is None, wrong

    def difference(self) -> tuple[str, str] | None:
        """The expected and the actual content of a position that differs; None if none does."""
        for layer in range(SHAPE.layers):
            view = self.cache.view(layer)
            if type(view) is not type(self.cache).view_type:
                return type(self.cache).view_type.__name__, type(view).__name__
            read, arrays = READ[type(view)], _arrays(view)
            for (at, b, p), value in self.model.items():
                if at == layer:
                    k, v = read(arrays, b, p)
                    if not ((k == value).all() and (v == -value).all()):
                        place = f"layer {layer}, row {b}, position {p}"
                        return (
                            f"the key {value:.0f} in {place}",
                            f"keys {k.flatten().tolist()}, values {v.flatten().tolist()}",
                        )
        return None

    def act(self, draw: Draw) -> str:
        """Perform an action of an engine, chosen by `draw`, and return its description."""
        batch, capacities = len(self.capacities), self.capacities
        action = draw(
            st.sampled_from(("write", "write", "write part", "reserve", "copy", "begin again"))
        )
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
            most = draw(
                st.integers(1, int(capacities.max()))
                | st.integers(max(int(capacities.min()) - 3, 1), int(capacities.min()))
            )
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
    fields = {f.name: getattr(view, f.name) for f in dataclasses.fields(view)}
    return SimpleNamespace(
        **{
            name: value.cpu().numpy() if isinstance(value, torch.Tensor) else value
            for name, value in fields.items()
        }
    )
