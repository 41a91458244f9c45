"""The paged layout: what rows share is stored once, is written once, and lives as long as any of
them; the pool always suffices.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bass.drafters import NoDrafter
from bass.engine.cost import PassLog
from bass.engine.requests import Request
from bass.engine.schedule import Schedule, room_for
from bass.engine.step import Step
from bass.interfaces import RowStore
from bass.records import (
    AttentionRule,
    CacheBudget,
    DecoderShape,
    Features,
    RowAssignment,
    Sequences,
    Window,
)
from support.layouts import LAYOUTS, READ, in_blocks_of

SHAPE = DecoderShape(
    vocab_size=5, heads=1, kv_heads=1, head_dim=2, max_positions=64, rules=(AttentionRule(1.0),) * 2
)
CPU = torch.device("cpu")
SIZE = 3


def made(*capacities: int) -> Any:
    """A cache in blocks of three positions, for rows with nothing in common."""
    cache = in_blocks_of(SIZE)(SHAPE, CacheBudget.of(np.array(capacities)), CPU, torch.float32)
    cache.reserve(RowAssignment.of(np.array(capacities)))
    return cache


def assignment(cache: Any, capacities: list[int], source: list[int], shared: list[int]) -> None:
    """Reserve and copy."""
    given_ = RowAssignment(np.array(capacities), np.array(source), np.array(shared))
    cache.reserve(given_)
    cache.copy_rows(given_)


def put(cache: Any, row: int, positions: range, value: float) -> None:
    part = cache.rows(row, row + 1)
    for layer in range(SHAPE.layers):
        values = torch.full((1, len(positions), SHAPE.kv_heads, SHAPE.head_dim), value)
        part.write(layer, values, -values, torch.tensor([list(positions)]))


def held(cache: Any, row: int, extent: int) -> list[float]:
    """What layer 1 holds of a row; the other layer and the values agree with it."""
    read = [
        [READ[type(view)](view, row, p) for p in range(extent)]
        for view in (cache.view(0), cache.view(1))
    ]
    for (k0, v0), (k1, v1) in zip(*read, strict=True):
        assert (k0 == k1).all()
        assert (v0 == v1).all()
        assert (v1 == -k1).all()
    return [float(k[0, 0]) for k, _ in read[1]]


def named(cache: Any) -> set[int]:
    """The blocks that rows name."""
    return set(cache.table.flatten().tolist()) - {len(cache.view(0).k) - 1}


@dataclass
class StoredRows(RowStore):
    """A store without a model: a position holds its token and itself as a number, in every
    layer.
    """

    cache: Any

    def reserve(self, assignment: RowAssignment) -> None:
        self.cache.reserve(assignment)

    def copy_rows(self, assignment: RowAssignment) -> None:
        self.cache.copy_rows(assignment)

    def fill(self, window: Window) -> Features:
        tokens, positions, start = window.tokens, window.positions, window.start
        values = (
            (64 * tokens + positions)
            .float()[..., None, None]
            .expand(*tokens.shape, SHAPE.kv_heads, SHAPE.head_dim)
        )
        for layer in range(SHAPE.layers):
            self.cache.rows(start, start + len(tokens)).write(layer, values, -values, positions)
        return ()


@final
class Prefilling(Step):
    """Feeds prompts to a store; there are no steps."""

    overlaps: ClassVar[bool] = False

    def __init__(self, store: Any) -> None:
        self.target, self.drafter, self.log = store, NoDrafter(), PassLog()

    def launch(self, *_: Any) -> Any:
        raise NotImplementedError


@dataclass
class Engine:
    """The rows' part of an engine: the real admission, and steps whose tokens, drafts and ends are
    drawn.
    """

    requests: list[Request]
    batch: int
    layout: str
    random: np.random.Generator
    chunk: int
    known: dict[int, list[int]] = field(default_factory=dict)  # committed tokens, by row

    def __post_init__(self) -> None:
        self.store = StoredRows(
            LAYOUTS[self.layout](SHAPE, room_for(self.requests, self.batch), CPU, torch.float32)
        )
        capacity = max(request.limit for request in self.requests)
        rows = Sequences.empty(self.batch, capacity, [], CPU)
        self.slots = Schedule(self.requests, rows, Prefilling(self.store))
        self.slots.chunk = self.chunk

    def run(self) -> None:
        while self.slots.busy:
            rows = self.slots.admit()
            self.known |= {
                int(row): list(self.requests[self.slots.serving[row]].prompt) for row in rows
            }
            self.check()
            self.step()
            self.check()

    def step(self) -> None:
        """Each row feeds its last two tokens again and a draft, commits a part of it and one more,
        and may end.
        """
        window = 6
        tokens, positions = (
            torch.zeros(self.batch, window, dtype=torch.int64),
            torch.full((self.batch, window), -1),
        )
        ends = []
        for row, committed in self.known.items():
            length, limit = len(committed), self.requests[self.slots.serving[row]].limit
            draft = self.random.integers(
                100, 200, self.random.integers(0, min(4, limit - length - 1) + 1)
            ).tolist()
            first = max(length - 2, 0)
            fed = committed[first:] + draft
            tokens[row, : len(fed)] = torch.tensor(fed)
            positions[row, : len(fed)] = torch.arange(first, first + len(fed))
            committed += [
                *draft[: self.random.integers(0, len(draft) + 1)],
                int(self.random.integers(100, 200)),
            ]
            if len(committed) == limit or self.random.random() < 0.3:
                ends.append(row)
        self.store.fill(Window(tokens, positions, 0))
        self.check()
        for row in ends:
            self.slots.release(row)
            del self.known[row]

    def check(self) -> None:
        for row, committed in self.known.items():
            assert held(self.store.cache, row, len(committed) - 1) == [
                64 * token + p for p, token in enumerate(committed[:-1])
            ]


@pytest.mark.parametrize("layout", LAYOUTS)
@given(data=st.data())
def test_requests_of_any_prompts_that_end_in_any_order_fit_their_room_and_keep_their_own_tokens(
    layout: str, data: st.DataObject
) -> None:
    """The room is that of the very requests: an engine that needs one block more than was allocated
    for fails an assertion.
    """
    prompts = data.draw(
        st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=9), min_size=1, max_size=3)
    )
    asked = data.draw(
        st.lists(st.tuples(st.sampled_from(prompts), st.integers(1, 9)), min_size=1, max_size=9)
    )
    requests = [Request(prompt, len(prompt) + new, key=i) for i, (prompt, new) in enumerate(asked)]
    batch = data.draw(st.integers(1, min(4, len(requests))))
    random = np.random.default_rng(data.draw(st.integers(0, 999)))
    Engine(requests, batch, layout, random, data.draw(st.integers(1, 12))).run()


@pytest.mark.parametrize(
    ("batch", "limits", "shared", "groups", "blocks"),
    [
        (2, [6, 7, 3], [0, 0, 0], [0, 1, 2], 3 + 2),  # nothing in common: the two longest
        # one prompt: its full blocks once, and two more for each row
        (3, [10, 10, 10], [7, 7, 7], [0, 0, 0], 2 + 3 * 2),
        (2, [10, 10, 10], [7, 7, 7], [0, 0, 0], 2 + 2 * 2),
        # two prompts may be in flight
        (2, [10, 10, 10, 10], [7, 7, 7, 7], [0, 0, 0, 1], 2 * 2 + 2 * 2),
        (2, [12, 30, 7], [9, 9, 6], [0, 0, 1], (3 + 2) + (7 + 1)),
        (1, [9, 10], [8, 3], [0, 1], 4),  # never more than the longest need by themselves
    ],
)
def test_the_pool_has_the_blocks_of_as_many_prompts_and_requests_as_there_are_rows(
    batch: int, limits: list[int], shared: list[int], groups: list[int], blocks: int
) -> None:
    budget = CacheBudget(batch, *map(np.array, (limits, shared, groups)))
    cache = in_blocks_of(SIZE)(SHAPE, budget, CPU, torch.float32)
    assert len(cache.view(0).k) == blocks + 1  # the spare one


def test_rows_of_one_prompt_name_its_full_blocks_together_and_nothing_else() -> None:
    cache = made(12, 12, 12)
    put(cache, 0, range(12), 1.0)
    assignment(cache, [12, 11, 12], [0, 0, 2], [12, 8, 12])
    first, second, third = cache.table.tolist()
    assert first[:2] == second[:2]
    assert len(named(cache)) == 4 + 2 + 4
    assert not {*first, *second} & {*third}


@pytest.mark.parametrize("shared", range(1, 12))
def test_a_follower_takes_exactly_the_shared_positions(shared: int) -> None:
    """The rest of the block in which they end is its own, as it was."""
    cache = made(12, 12)
    put(cache, 0, range(12), 1.0)
    put(cache, 1, range(12), 2.0)
    assignment(cache, [12, 12], [0, 0], [12, shared])
    assert held(cache, 1, shared) == [1.0] * shared
    end = -(-shared // SIZE) * SIZE
    assert 1.0 not in held(cache, 1, end)[shared:]
    assert held(cache, 0, 12) == [1.0] * 12


def test_nobody_writes_into_a_block_that_several_rows_name() -> None:
    """Neither the row that filled it nor one that followed; beyond it, each writes for itself."""
    cache = made(12, 12, 12)
    put(cache, 0, range(8), 1.0)
    assignment(cache, [12, 12, 12], [0, 0, 0], [12, 7, 7])
    for row in range(3):
        put(cache, row, range(12), 10.0 + row)
    for row in range(3):
        assert held(cache, row, 12) == [1.0] * 6 + [10.0 + row] * 6


def test_a_row_alone_with_its_blocks_writes_them_again() -> None:
    cache = made(9, 9)
    put(cache, 0, range(9), 1.0)
    assignment(cache, [9, 9], [0, 0], [9, 7])
    assignment(cache, [9, 9], [0, 1], [0, 9])
    put(cache, 1, range(9), 2.0)
    assert held(cache, 1, 9) == [2.0] * 9


def test_a_leader_is_filled_after_its_followers_have_their_seats() -> None:
    cache = made(9, 9)
    following = RowAssignment(np.array([9, 9]), np.array([0, 0]), np.array([0, 7]))
    cache.reserve(following)
    put(cache, 0, range(7), 1.0)
    cache.copy_rows(following)
    assert held(cache, 0, 7) == held(cache, 1, 7) == [1.0] * 7
    put(cache, 0, range(9), 2.0)
    assert held(cache, 1, 6) == [1.0] * 6


def test_shared_blocks_outlive_the_row_that_filled_them_and_are_free_after_the_last() -> None:
    cache = made(9, 9, 9)
    put(cache, 0, range(9), 1.0)
    assignment(cache, [9, 9, 0], [0, 0, 2], [9, 8, 0])
    # row 0 begins again, row 2 follows a follower
    assignment(cache, [9, 9, 9], [0, 1, 1], [0, 9, 8])
    put(cache, 0, range(9), 2.0)
    assignment(cache, [9, 0, 9], [0, 1, 2], [9, 0, 9])
    put(cache, 0, range(9), 3.0)
    assert held(cache, 2, 8) == [1.0] * 8
    assert len(named(cache)) == 6
    assignment(cache, [9, 9, 0], [0, 1, 2], [9, 0, 0])
    put(cache, 1, range(9), 4.0)
    assert held(cache, 0, 9) == [3.0] * 9
    assert len(named(cache)) == 6
    assignment(cache, [0, 0, 0], [0, 1, 2], [0, 0, 0])
    assert not named(cache)
