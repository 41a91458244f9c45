"""A cache is a dictionary from (layer, row, position) to a key and a value; every registered layout
is held to that.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bass.records import CacheBudget, RowAssignment
from bass.testing.small_models import POISON, poisoned
from support.layouts import LAYOUTS, READ, SHAPE, CheckedCache, Make

CPU = torch.device("cpu")


@pytest.fixture(params=LAYOUTS)
def allocate(request: pytest.FixtureRequest) -> Make:
    return LAYOUTS[request.param]


@pytest.mark.parametrize("name", LAYOUTS)
@given(data=st.data())
def test_a_cache_agrees_with_a_dictionary_under_writes_reserves_and_copies(
    name: str, data: st.DataObject
) -> None:
    batch = data.draw(st.integers(1, 4))
    sizes = st.lists(st.integers(1, 7), min_size=batch, max_size=batch)
    capacities = np.array(data.draw(sizes))
    both = CheckedCache(
        LAYOUTS[name](SHAPE, CacheBudget.of(np.array(capacities)), CPU, torch.float32), capacities
    )
    for _ in range(data.draw(st.integers(1, 10))):
        both.act(data.draw)
        both.check()


def test_a_write_at_minus_one_is_seen_by_no_position_of_any_row(allocate: Make) -> None:
    capacities = np.array([3, 5, 1, 4])
    both = CheckedCache(
        poisoned(allocate(SHAPE, CacheBudget.of(capacities), CPU, torch.float32)), capacities
    )
    both.write(0, [[-1, -1]] * 4)
    for layer in range(SHAPE.layers):
        view = both.cache.view(layer)
        for b in range(4):
            for p in range(capacities[b]):
                assert (READ[type(view)](view, b, p)[0] == POISON).all()


def test_rows_that_go_on_while_others_follow_them_in_chains_keep_what_they_hold(
    allocate: Make,
) -> None:
    """Row 1 follows row 0, which ends; row 2 follows row 1; then row 1 ends too."""
    capacities = np.array([7, 7, 7, 3])
    both = CheckedCache(allocate(SHAPE, CacheBudget.of(capacities), CPU, torch.float32), capacities)
    both.write(0, [[0, 1, 2, 3, 4, 5, 6], [-1] * 7, [-1] * 7, [0, 1, 2, -1, -1, -1, -1]])
    for source, ending in (([0, 0, 2, 3], 0), ([0, 1, 1, 3], 1)):
        both.copy_rows(np.array(source), 5)
        both.begin_anew([ending])
        both.write(ending, [[0, 1, 2, 3, 4, 5, 6]])
        both.write(0, [[5, 6], [5, 6], [5, 6], [2, -1]])
        both.check()


def test_a_cache_refuses_more_than_its_room(allocate: Make) -> None:
    cache = allocate(SHAPE, CacheBudget.of(np.array([4, 4])), CPU, torch.float32)
    for capacities in ([40, 4], [4, 40]):
        with pytest.raises(AssertionError, match="positions in a"):
            cache.reserve(RowAssignment.of(np.array(capacities)))


def test_writes_move_no_storage(allocate: Make) -> None:
    """A captured graph holds the addresses."""
    both = CheckedCache(
        allocate(SHAPE, CacheBudget.of(np.array([4, 6])), CPU, torch.float32), np.array([4, 6])
    )

    def addresses() -> list[int]:
        held = [tensor for tensor in vars(both.cache).values() if isinstance(tensor, torch.Tensor)]
        views = [
            tensor
            for layer in range(SHAPE.layers)
            for tensor in vars(both.cache.view(layer)).values()
        ]
        return [tensor.data_ptr() for tensor in held + views]

    before = addresses()
    both.write(0, [[0, 1], [3, -1]])
    both.reserve(np.array([6, 4]))
    both.copy_rows(np.array([0, 0]))
    assert before == addresses()
