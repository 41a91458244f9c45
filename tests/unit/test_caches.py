"""A cache is a dictionary from (layer, row, position) to a key and a value; every registered layout is held to that."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bass.caches import CACHES
from bass.records import AttentionRule, DecoderShape, PaddedView, RaggedView, Room, Seats
from support.worlds import POISON, poisoned

SHAPE = DecoderShape(vocab_size=5, heads=2, kv_heads=2, head_dim=3, max_positions=64, rules=(AttentionRule(1.0),) * 2)
Place = tuple[int, int, int]  # layer, row, position


def of_padded(view: PaddedView, row: int, position: int) -> tuple[torch.Tensor, torch.Tensor]:
    return view.k[row, position], view.v[row, position]


def of_ragged(view: RaggedView, row: int, position: int) -> tuple[torch.Tensor, torch.Tensor]:
    at = int(view.starts[row]) + position
    return view.k[at], view.v[at]


READ: dict[type, Callable[[Any, int, int], tuple[torch.Tensor, torch.Tensor]]] = {PaddedView: of_padded, RaggedView: of_ragged}


@dataclass
class Both:
    """A cache and the dictionary it must agree with. Values are numbered, so that none is mistaken for another."""

    cache: Any
    extents: np.ndarray
    model: dict[Place, float] = field(default_factory=dict)
    counter: float = 0.0

    def write(self, first: int, positions: list[list[int]]) -> None:
        """Write a window to the rows from `first` on, in every layer."""
        shape = (len(positions), len(positions[0]), SHAPE.kv_heads, SHAPE.head_dim)
        for layer in range(SHAPE.layers):
            values = torch.zeros(shape)
            for b, places in enumerate(positions):
                for w, position in enumerate(places):
                    self.counter += 1
                    values[b, w] = self.counter
                    if position >= 0:
                        self.model[layer, first + b, position] = self.counter
            part = self.cache if first == 0 and len(positions) == len(self.extents) else self.cache.rows(first, first + len(positions))
            part.write(layer, values, -values, torch.tensor(positions))

    def reserve(self, extents: np.ndarray) -> None:
        self.cache.reserve(Seats.of(extents))
        self.model = {(layer, b, p): v for (layer, b, p), v in self.model.items() if p < extents[b]}
        self.extents = extents

    def copy_rows(self, source: np.ndarray) -> None:
        """Each row takes what both have room for; beyond that, what it held is nobody's any more."""
        shared = np.where(source == np.arange(len(source)), 0, np.minimum(self.extents[source], self.extents))
        seats = Seats(self.extents, source, shared)
        self.cache.reserve(seats)
        self.cache.copy_rows(seats)
        followers = set(seats.followers.tolist())
        kept = {place: value for place, value in self.model.items() if place[1] not in followers}
        taken = [(layer, b, p) for layer in range(SHAPE.layers) for b in followers for p in range(shared[b])]
        self.model = kept | {(layer, b, p): self.model[layer, source[b], p] for layer, b, p in taken if (layer, source[b], p) in self.model}

    def check(self) -> None:
        for layer in range(SHAPE.layers):
            view = self.cache.view(layer)
            assert type(view) is type(self.cache).view_type
            for (at, b, p), value in self.model.items():
                if at == layer:
                    k, v = READ[type(view)](view, b, p)
                    assert (k == value).all()
                    assert (v == -value).all()


@pytest.mark.parametrize("name", CACHES)
@given(data=st.data())
def test_a_cache_agrees_with_a_dictionary_under_writes_reserves_and_copies(name: str, data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, 4))
    sizes = st.lists(st.integers(1, 7), min_size=batch, max_size=batch)
    room = np.array(data.draw(sizes))
    both = Both(CACHES[name].allocate(SHAPE, Room.of(np.array(room)), torch.device("cpu"), torch.float32), room)
    for _ in range(data.draw(st.integers(1, 8))):
        action = data.draw(st.sampled_from(("write", "write", "write part", "reserve", "copy")))
        if action == "reserve":
            # As the engine does it: the extents change among the rows, within the room that was allocated.
            both.reserve(np.array(data.draw(st.permutations(both.extents.tolist()))))
        elif action == "copy":
            # The engine copies prompts, which fit both rows; from rows that are not copied to.
            source = np.arange(batch)
            for b in range(1, batch):
                if data.draw(st.booleans()):
                    source[b] = 0
            both.copy_rows(source)
        else:
            first = data.draw(st.integers(0, batch - 1)) if action == "write part" else 0
            window = data.draw(st.integers(1, 3))
            positions = []
            for b in range(first, batch):
                start = data.draw(st.integers(-1, int(both.extents[b]) - 1))
                used = data.draw(st.integers(0, min(window, int(both.extents[b]) - max(start, 0))))
                positions.append([start + i if start >= 0 and i < used else -1 for i in range(window)])
            both.write(first, positions)
        both.check()


@pytest.mark.parametrize("name", CACHES)
def test_a_write_at_minus_one_is_seen_by_no_position_of_any_row(name: str) -> None:
    extents = np.array([3, 5, 1, 4])
    both = Both(poisoned(CACHES[name].allocate(SHAPE, Room.of(extents), torch.device("cpu"), torch.float32)), extents)
    both.write(0, [[-1, -1]] * 4)
    for layer in range(SHAPE.layers):
        view = both.cache.view(layer)
        for b in range(4):
            for p in range(extents[b]):
                assert (READ[type(view)](view, b, p)[0] == POISON).all()


@pytest.mark.parametrize("name", CACHES)
def test_the_spare_slot_is_no_part_of_a_view(name: str) -> None:
    extents = np.array([3, 5])
    cache = CACHES[name].allocate(SHAPE, Room.of(extents), torch.device("cpu"), torch.float32)
    view = cache.view(1)
    if isinstance(view, PaddedView):
        assert view.k.shape == view.v.shape == (2, 5, 2, 3)
    elif isinstance(view, RaggedView):
        assert view.k.shape == view.v.shape == (8, 2, 3)


@pytest.mark.parametrize("name", CACHES)
def test_rows_swapped_crosswise_are_read_before_they_are_written(name: str) -> None:
    extents = np.array([2, 2, 2])
    both = Both(CACHES[name].allocate(SHAPE, Room.of(extents), torch.device("cpu"), torch.float32), extents)
    both.write(0, [[0, 1]] * 3)
    both.copy_rows(np.array([1, 2, 0]))
    both.check()


@pytest.mark.parametrize("name", CACHES)
def test_a_cache_refuses_more_than_its_room(name: str) -> None:
    cache = CACHES[name].allocate(SHAPE, Room.of(np.array([4, 4])), torch.device("cpu"), torch.float32)
    with pytest.raises(AssertionError, match="positions in a"):
        cache.reserve(Seats.of(np.array([9, 4])))


@pytest.mark.parametrize("name", CACHES)
def test_writes_move_no_storage(name: str) -> None:
    """A captured graph holds the addresses."""
    both = Both(CACHES[name].allocate(SHAPE, Room.of(np.array([4, 6])), torch.device("cpu"), torch.float32), np.array([4, 6]))
    before = [tensor.data_ptr() for tensor in vars(both.cache).values() if isinstance(tensor, torch.Tensor)]
    both.write(0, [[0, 1], [3, -1]])
    both.reserve(np.array([6, 4]))
    both.copy_rows(np.array([0, 0]))
    assert before == [tensor.data_ptr() for tensor in vars(both.cache).values() if isinstance(tensor, torch.Tensor)]
