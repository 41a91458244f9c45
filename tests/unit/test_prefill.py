"""Prompts fed by graphs: every token once, at its place. Graphs themselves need a GPU."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, final

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bass
from bass.drafters import ModelDraft, NoDrafter
from bass.drafters.chain import LastStates
from bass.engine import prefill
from bass.engine.assembly import Storage
from bass.engine.cost import PassCost, PassLog
from bass.engine.graphs import GraphedStep
from bass.engine.prefill import (
    Part,
    PrefillGraphs,
    SegmentGraphs,
    feed_parts,
    feeds_target,
)
from bass.engine.scorer import ModelScorer
from bass.engine.warm_up import keeps_nothing, prompt_shapes
from bass.interfaces import RowStore
from bass.records import CacheBudget, Features, Observation, RowAssignment, Sequences, Window
from bass.verifiers import Rejection
from support.doubles import Cycle, Scripted, Turns
from unit.checkpoints import Pair

CPU = torch.device("cpu")


@final
class Fed(RowStore):
    """Notes the token of each row and position, and the shape of each window."""

    def __init__(self) -> None:
        self.tokens: list[tuple[int, int, int]] = []
        self.windows: list[tuple[int, int, int]] = []

    def reserve(self, assignment: RowAssignment) -> None: ...

    def copy_rows(self, assignment: RowAssignment) -> None: ...

    def fill(self, window: Window) -> Features:
        used = window.positions >= 0
        self.windows.append((*window.tokens.shape, window.start))
        assert int(window.positions.max()) < window.span
        rows = torch.arange(99)[window.index].tolist()
        for row, column in used.nonzero().tolist():
            place = rows[row], int(window.positions[row, column])
            self.tokens.append((*place, int(window.tokens[row, column])))
        return ()


def repeated(run: Callable[[], None]) -> Callable[[], None]:
    """In the place of a graph: runs twice with empty windows, then again at each replay."""
    run()
    run()
    return run


def graphs_of(store: RowStore, sequences: Sequences) -> SegmentGraphs:
    return SegmentGraphs(feeds_target(store, NoDrafter()), sequences, PassLog())


@given(data=st.data(), rows=st.integers(1, 9), capacity=st.integers(1, 700))
def test_graphs_feed_what_windows_feed(data: Any, rows: int, capacity: int) -> None:
    """Parts of prompts, of rows that need not be adjacent."""
    sequences, parts = Sequences.empty(rows, capacity, [], CPU), []
    for row in data.draw(st.sets(st.integers(0, rows - 1), min_size=1)):
        prompt = [*range(7, 8 + data.draw(st.integers(0, capacity - 1)))]
        first = data.draw(st.integers(0, len(prompt) - 1))
        parts.append(Part(row, prompt, first, data.draw(st.integers(first, len(prompt) - 1))))
    catches_up = all(part.last > part.first for part in parts) and data.draw(st.booleans())
    expected, found = Fed(), Fed()
    feed_parts(feeds_target(expected, NoDrafter()), sequences, parts, catches_up)
    graphs = graphs_of(found, sequences)
    graphs.prepare(repeated)
    assert found.tokens == []
    graphs.feed(parts)
    fed = [(p.row, i, p.prompt[i]) for p in parts for i in range(p.first, p.last)]
    assert sorted(found.tokens) == sorted(expected.tokens) == sorted(fed)
    for row in range(rows):  # no position before an earlier one of its row
        places = [place for other, place, _ in found.tokens if other == row]
        assert places == sorted(places)


def test_prompts_of_any_lengths_fill_the_segments_of_one_window() -> None:
    """A refilled row costs the tokens of its prompt, whatever the batch."""
    store, sequences = Fed(), Sequences.empty(32, 700, [], CPU)
    graphs = graphs_of(store, sequences)
    graphs.prepare(repeated)
    store.windows.clear()
    graphs.feed([Part(17, [3] * 150, 0, 149), Part(5, [4] * 300, 96, 192)])
    graphs.feed([Part(row, [3] * 30, 0, 29) for row in range(32)])
    assert [segments for segments, *_ in store.windows] == [8, 32]
    assert len(store.tokens) == 149 + 96 + 32 * 29


@given(segments=st.integers(0, 400))
def test_windows_hold_the_segments_in_little_more_time_than_these_take(segments: int) -> None:
    windows = prefill.segment_windows(segments, prefill.SEGMENTS)
    assert set(windows) <= {*prefill.SEGMENTS}
    assert sum(windows) >= segments
    time = sum(prefill.WEIGHT_TOKENS + prefill.SEGMENT * size for size in windows)
    assert time <= 1.2 * prefill.SEGMENT * segments + 2 * prefill.WEIGHT_TOKENS


@pytest.mark.parametrize("logs", [True, False])
def test_graphs_return_the_passes_of_their_windows(logs: bool) -> None:
    """A drafter whose windows take no pass has none."""
    sequences, drafter, log = Sequences.empty(3, 200, [], CPU), Fed(), PassLog()

    def fill(window: Window) -> Features:
        if logs:
            log.add(PassCost(1, 1, 1), window.tokens.shape[1])
        return Fed.fill(drafter, window)

    graphs = SegmentGraphs(lambda window, _: fill(window), sequences, log, optional=True)
    graphs.prepare(repeated)
    assert bool(graphs.captured) == logs
    if logs:
        passes = graphs.feed([Part(2, [*range(200)], 3, 190), Part(0, [7] * 9, 0, 8)])
        assert [one.columns for one in passes] == [prefill.SEGMENT]
        assert sorted(drafter.tokens) == [
            *((0, i, 7) for i in range(8)), *((2, i, i) for i in range(3, 190))
        ]  # fmt: skip


def test_a_users_part_runs_in_no_graph_that_is_dropped(silent_pair: Pair) -> None:
    """It may keep a tensor that it makes when it first runs."""

    class Mine(Rejection):
        pass

    def keeps(draft: Any = silent_pair.draft, **options: Any) -> bool:
        llm = bass.load(silent_pair.target, draft, device="cpu", **options)
        return not keeps_nothing(
            Storage(llm.models, llm.parts, CacheBudget.of(np.array([4])), 1, False)
        )

    assert not keeps()
    assert not keeps(stop_rule="confidence", drafter="ensemble")
    assert keeps(verifier=Mine())
    assert keeps(None, drafter=Scripted({}, lambda *_: False, 53), num_speculative_tokens=2)


def test_a_users_drafter_and_cache_have_no_graphs_of_prefills(
    silent_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drafter may read what it is fed on the host, and a cache need not have `selected`."""
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)

    class Mine(ModelDraft):
        pass

    def graphs(**options: Any) -> Any:
        llm = bass.load(silent_pair.target, silent_pair.draft, device="cpu", **options)
        return Storage(llm.models, llm.parts, CacheBudget.of(np.array([4])), 1, True).prefills

    assert graphs() is not None
    assert graphs(drafter=Mine()) is None


def test_of_several_segments_the_last_token_counts() -> None:
    """Rows without a token in the window keep what they have."""
    shape, values = (4, 1), torch.arange(6.0).view(3, 2, 1)
    last = LastStates(
        torch.full(shape, 9.0), torch.full((4,), 7), torch.zeros(shape), torch.zeros(4).long()
    )
    positions = torch.tensor([[0, 1], [2, -1], [-1, -1]])
    window = Window(torch.zeros_like(positions), positions, 8, rows=torch.tensor([2, 2, 0]))
    last.observe(Observation(window, window.tokens, ()), values)
    assert last.values[:, 0].tolist() == [9, 9, 2, 9]
    assert last.at.tolist() == [7, 7, 2, 7]
    assert last.of_prompts[:, 0].tolist() == [0, 0, 2, 0]


@pytest.mark.parametrize("graphs", [True, False])
def test_a_users_drafter_or_cache_is_fed_without_graphs(graphs: bool) -> None:
    sequences, store, parts = Sequences.empty(2, 64, [], CPU), Fed(), (Fed(), Fed())
    several = tuple(graphs_of(part, sequences) for part in parts)
    step: Any = object.__new__(GraphedStep)
    vars(step).update(
        sequences=sequences, target=store, log=PassLog(),
        drafter=SimpleNamespace(choices=parts, observes=False),
        prefills=PrefillGraphs(graphs_of(store, sequences), several) if graphs else None,
        here=nullcontext(), _captures=nullcontext, _replayed=repeated,
    )  # fmt: skip
    step.prepare_windows()
    store.windows.clear()
    step.prefill(sequences, [Part(1, [5, 6], 0, 1)])
    assert store.tokens == [(1, 0, 5)]
    assert store.windows == ([(1, 32, 0)] if graphs else [(1, 1, 1)])
    step.catch_up(sequences, [Part(0, [7, 8, 9], 1, 2)], 1)  # of the second part of the drafter
    assert [part.tokens for part in parts] == [[], [(0, 1, 8)]]


def test_a_draft_is_fed_nothing_of_rows_that_never_draft(
    silent_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, pair = Cycle((3, 0), 1), (silent_pair.target, silent_pair.draft)
    llm = bass.load(*pair, policy=policy, device="cpu", max_batch_size=2)
    fed, fill = list[int](), ModelScorer.fill

    def recorded(scorer: ModelScorer, window: Window) -> Any:
        fed.append(int(scorer.decoder is llm.models.draft) * int((window.positions >= 0).sum()))
        return fill(scorer, window)

    monkeypatch.setattr(ModelScorer, "fill", recorded)
    llm.generate([[3] * 9, [4] * 7], max_new_tokens=1)
    assert sum(fed) == 8  # of the first row
    fed.clear()  # a part of a choice, before its first draft
    for turns, tokens in (((0, 2),), 0), (((1, 2),), 8), (((0, 1), (1, 1)), 9):
        policy = Turns(turns)
        llm = bass.load(*pair, drafter="choice", policy=policy, device="cpu", max_batch_size=2)
        llm.generate([3] * 9, max_new_tokens=4, ignore_eos=True)
        assert sum(fed) == tokens
        fed.clear()


@pytest.mark.parametrize("prompt", [[4], [4, 5]])
def test_a_prompt_of_one_token_is_not_fed(prompt: list[int]) -> None:
    store, sequences = Fed(), Sequences.empty(1, 64, [], CPU)
    graphs = graphs_of(store, sequences)
    graphs.prepare(repeated)
    before = len(store.windows)
    graphs.feed([Part(0, prompt, 0, len(prompt) - 1)])
    assert len(store.windows) - before == len(prompt) - 1


@pytest.mark.parametrize("capacity", [64, 300, 5000])
def test_without_graphs_short_prompts_have_windows_of_their_own(capacity: int) -> None:
    """A load then compiles the kernels of windows from one token on."""
    assert min(columns for columns, _ in prompt_shapes(2, capacity, CPU)) == 1
