"""Committing a verdict: what is kept, where it goes, and when a row ends."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from bass.ops.batch_state import commit, last
from bass.records import Sequences, Verdict


def sequences(
    rows: list[list[int]], limits: list[int], active: list[bool], eos: list[int], capacity: int
) -> Sequences:
    s = Sequences.empty(len(rows), capacity, eos, torch.device("cpu"))
    for b, row in enumerate(rows):
        s.tokens[b, : len(row)] = torch.tensor(row)
        s.lens[b], s.limits[b], s.active[b] = len(row), limits[b], active[b]
    return s


@given(data=st.data())
def test_commit_does_what_a_loop_over_lists_does(data: st.DataObject) -> None:
    batch, window = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    rows = [data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=5)) for _ in range(batch)]
    limits = [len(row) + data.draw(st.integers(1, 6)) for row in rows]
    active = data.draw(st.lists(st.booleans(), min_size=batch, max_size=batch))
    eos = data.draw(st.lists(st.integers(0, 6), max_size=2, unique=True))
    capacity = max(limits)
    emitted = [
        data.draw(st.lists(st.integers(0, 6), min_size=window, max_size=window))
        for _ in range(batch)
    ]
    accepted = [data.draw(st.integers(0, window - 1)) for _ in range(batch)]
    s = sequences(rows, limits, active, eos, capacity)
    counts = commit(s, Verdict(torch.tensor(emitted), torch.tensor(accepted)), 99)
    for b in range(batch):
        expected, ended = list(rows[b]), not active[b]
        for i in range(accepted[b] + 1):
            if ended or len(expected) == limits[b]:
                break
            expected.append(emitted[b][i])
            ended = emitted[b][i] in eos
        assert int(counts[b]) == len(expected) - len(rows[b])
        assert int(s.lens[b]) == len(expected)
        assert s.tokens[b, :capacity].tolist() == expected + [0] * (capacity - len(expected))
        assert bool(s.active[b]) == (active[b] and not ended and len(expected) < limits[b])
        assert int(s.steps[b]) == int(active[b])


def test_a_window_that_reaches_beyond_the_capacity_leaves_the_last_token_as_it_was_committed() -> (
    None
):
    """Another row's long draft widens the window of a row that is one token from its limit."""
    s = sequences([[1, 2], [3]], [3, 9], [True, True], [], 9)
    s.limits[0], s.lens[0], s.tokens[0, :8] = 9, 8, torch.arange(1, 9)
    verdict = Verdict(torch.tensor([[42, 9, 9, 9, 9], [5, 6, 7, 8, 9]]), torch.tensor([0, 4]))
    assert commit(s, verdict, 99).tolist() == [1, 5]
    assert s.tokens[0, : s.capacity].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 42]


def test_commit_keeps_every_address() -> None:
    s = sequences([[1, 2]], [9], [True], [], 9)
    before = [t.data_ptr() for t in vars(s).values()]
    commit(s, Verdict(torch.tensor([[3, 4]]), torch.tensor([1])), 99)
    assert before == [t.data_ptr() for t in vars(s).values()]


@given(length=st.integers(1, 6), count=st.integers(1, 5), active=st.booleans())
def test_last_gives_the_end_of_a_row_and_its_positions(
    length: int, count: int, active: bool
) -> None:
    s = sequences([list(range(10, 10 + length))], [9], [active], [], 9)
    tokens, positions = last(s, count)
    expected = [p if p >= 0 and active else -1 for p in range(length - count, length)]
    assert positions[0].tolist() == expected
    assert [t for t, p in zip(tokens[0].tolist(), expected, strict=True) if p >= 0] == [
        10 + p for p in expected if p >= 0
    ]


def test_empty_rows_are_idle() -> None:
    s = Sequences.empty(3, 5, [1], torch.device("cpu"))
    assert not s.active.any()
    assert (last(s, 2)[1] == -1).all()
    verdict = Verdict(torch.ones(3, 2, dtype=torch.int64), torch.tensor([1, 0, 1]))
    assert commit(s, verdict, 99).tolist() == [0, 0, 0]


def test_commit_takes_ids_outside_the_vocabulary_to_the_nearest_in_it() -> None:
    s = sequences([[1, 2]], [9], [True], [], 9)
    commit(s, Verdict(torch.tensor([[-3, 7, 4, 3]]), torch.tensor([3])), 5)
    assert s.tokens[0, 2:6].tolist() == [0, 4, 4, 3]
