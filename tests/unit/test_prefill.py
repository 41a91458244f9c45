"""Prompts fed by graphs: every token once, at its place. Graphs themselves need a GPU."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, final

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bass
from bass.drafters import NoDrafter
from bass.engine import prefill
from bass.engine.assembly import Storage
from bass.engine.cost import PassCost, PassLog
from bass.engine.graphs import GraphedStep
from bass.engine.prefill import (
    CatchUpGraphs,
    Part,
    PrefillGraphs,
    captured_windows,
    feed_prompts,
    windows_of,
)
from bass.engine.warm_up import keeps_nothing, prompt_shapes
from bass.interfaces import RowStore
from bass.records import CacheBudget, Features, RowAssignment, Sequences, Window
from bass.verifiers import Rejection
from support.doubles import Scripted
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
        for row, column in used.nonzero().tolist():
            place = window.start + row, int(window.positions[row, column])
            self.tokens.append((*place, int(window.tokens[row, column])))
        return ()


def repeated(run: Callable[[], None]) -> Callable[[], None]:
    """In the place of a graph: runs once with empty windows, then again at each replay."""
    run()
    return run


@given(data=st.data(), rows=st.integers(1, 9), capacity=st.integers(1, 700))
def test_graphs_feed_what_windows_feed(data: Any, rows: int, capacity: int) -> None:
    """Parts of prompts, of rows that need not be adjacent."""
    sequences, parts = Sequences.empty(rows, capacity, [], CPU), []
    for row in data.draw(st.sets(st.integers(0, rows - 1), min_size=1)):
        prompt = [*range(7, 8 + data.draw(st.integers(0, capacity - 1)))]
        first = data.draw(st.integers(0, len(prompt) - 1))
        parts.append(Part(row, prompt, first, data.draw(st.integers(first, len(prompt) - 1))))
    expected, found = Fed(), Fed()
    feed_prompts(expected, NoDrafter(), sequences, parts)
    graphs = PrefillGraphs(found, NoDrafter(), sequences)
    assert not graphs.feed(parts)  # before it is prepared
    graphs.prepare(repeated)
    assert found.tokens == []
    before = len(found.windows)
    most, end = max(part.last - part.first for part in parts), max(part.last for part in parts)
    if most <= prefill.most_captured(rows, capacity) and end <= prefill.captured_span(capacity):
        assert graphs.feed(parts)
        assert len(found.windows) - before <= prefill.MOST_REPLAYS
        assert {shape[0] for shape in found.windows} == {rows}
    else:
        assert not graphs.feed(parts)
        feed_prompts(found, NoDrafter(), sequences, parts)
    fed = [(p.row, i, p.prompt[i]) for p in parts for i in range(p.first, p.last)]
    assert sorted(found.tokens) == sorted(expected.tokens) == sorted(fed)


@given(data=st.data(), lacking=st.integers(3, 120))
def test_graphs_feed_a_drafter_the_tokens_that_it_lacks(data: Any, lacking: int) -> None:
    """At least those, none that is not committed, in few windows, whose passes are returned."""
    sequences, drafter, log = Sequences.empty(3, 200, [], CPU), Fed(), PassLog()
    sequences.tokens.copy_(torch.randint(0, 50, (3, 201)))
    sequences.lens.copy_(torch.tensor([data.draw(st.integers(1, 200)) for _ in range(3)]))
    cost = PassCost(1, 1, 1)

    def fill(window: Window) -> Features:
        log.add(cost, window.tokens.shape[1])
        return Fed.fill(drafter, window)

    drafter.fill = fill  # type: ignore[method-assign]
    graphs = CatchUpGraphs(drafter, sequences, log, (100, 200))  # type: ignore[arg-type]
    graphs.prepare(repeated)
    assert drafter.tokens == []  # all rows are idle
    sequences.active[:2] = True
    passes = graphs.feed(lacking, 200)
    assert {one.cost for one in passes} == {cost}
    assert [one.columns for one in passes] == windows_of(lacking, prefill.CAUGHT_UP)
    expected = {
        (row, place, int(sequences.tokens[row, place]))
        for row, tokens in enumerate(sequences.lens[:2].tolist())
        for place in range(max(0, tokens - sum(one.columns for one in passes)), tokens)
    }
    assert len(drafter.tokens) == len(expected)
    assert {*drafter.tokens} == expected


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


@given(rows=st.integers(1, 600), capacity=st.integers(1, 9000), tokens=st.integers(1, 500))
def test_captured_windows_are_few_and_little_is_fed_in_vain(
    rows: int, capacity: int, tokens: int
) -> None:
    columns = captured_windows(rows, capacity)
    assert 1 <= len(columns) <= len(prefill.CAPTURED_TOKENS)
    assert columns == sorted({*columns}, reverse=True)
    assert columns[-1] >= 1
    windows = windows_of(tokens, columns)
    assert sum(windows) >= tokens > sum(windows) - windows[-1]
    smaller = [size for size in columns if size < windows[-1]]
    assert all(sum(windows[:-1]) + size < tokens for size in smaller)


@pytest.mark.parametrize("ours", [True, False])
def test_a_users_drafter_is_fed_without_graphs(ours: bool) -> None:
    """It may read prompts on the host, and see rows without a token only where they are idle."""
    sequences, store = Sequences.empty(2, 64, [], CPU), Fed()
    step: Any = object.__new__(GraphedStep)
    vars(step).update(
        own_drafter=ours, sequences=sequences, target=store, drafter=NoDrafter(), log=PassLog(),
        prefills=PrefillGraphs(store, NoDrafter(), sequences), here=nullcontext(),
        catch_ups=CatchUpGraphs(NoDrafter(), sequences, PassLog(), (64,)),
        _captures=nullcontext, _replayed=repeated,
    )  # fmt: skip
    step.prepare_windows()
    assert bool(step.prefills.captured) == ours
    store.windows.clear()
    step.prefill(sequences, [Part(1, [5, 6], 0, 1)])
    assert store.tokens == [(1, 0, 5)]
    assert store.windows == ([(2, 64, 0)] if ours else [(1, 1, 1)])


@pytest.mark.parametrize("prompt", [[4], [4, 5]])
def test_a_prompt_of_one_token_is_not_fed(prompt: list[int]) -> None:
    store, sequences = Fed(), Sequences.empty(1, 64, [], CPU)
    graphs = PrefillGraphs(store, NoDrafter(), sequences)
    graphs.prepare(repeated)
    before = len(store.windows)
    assert graphs.feed([Part(0, prompt, 0, len(prompt) - 1)])
    assert len(store.windows) - before == len(prompt) - 1


@pytest.mark.parametrize("capacity", [64, 300, 5000])
def test_without_graphs_short_prompts_have_windows_of_their_own(capacity: int) -> None:
    """A load then compiles the kernels of windows from one token on."""
    alone = [columns for columns, _ in prompt_shapes(2, None, capacity, CPU)]
    graphed = [columns for columns, _ in prompt_shapes(2, 2, capacity, CPU)]
    assert min(alone) == 1
    assert min(graphed) > 16
    assert {*graphed} <= {*alone}
