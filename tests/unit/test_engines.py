"""Engines that are kept for their graphs: few shapes, one storage, nothing left to capture.

Graphs need a GPU. Here a step takes their place that must have been prepared in a shape before it
runs in it, and works with its own rows alone.
"""

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar, final

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bass
from bass.api.options import RequestOptions
from bass.drafters import Choice, Ensemble, ModelDraft, Ngram
from bass.engine import prefill, warm_up
from bass.engine.scorer import ModelScorer
from bass.engine.shapes import StepShapes
from bass.engine.warm_up import caught_up_shapes, prompt_shapes
from bass.errors import OptionError, PolicyError, RequestError, StrategyError
from bass.interfaces import Verifier
from bass.interfaces.policy import captured_lengths
from bass.policies import BatchAdaptive, BatchTable, EmaTiers, Fixed
from bass.records import Draft, Noise, Verdict, Window
from bass.testing.doubles import ByRow
from bass.testing.small_models import SmallLlama, SmallTable
from support.doubles import Turns
from support.engines import PAIRINGS, READ_LAYERS, TABLE_DRAFTERS, Setup, mixed_requests
from support.matrix import matrix, night
from support.prepared_steps import Captured
from unit.checkpoints import Pair
from unit.test_steps import Learns


@given(
    capacity=st.integers(1, 5000),
    lengths=st.sets(st.integers(1, 40)),
    reads=st.booleans(),
    drafters=st.integers(1, 3),
    feeding=st.integers(-1, 6),
)
def test_the_shapes_of_a_range_are_those_of_its_steps(
    capacity: int, lengths: set[int], reads: bool, drafters: int, feeding: int
) -> None:
    how: Any = {"rows": 40, "drafters": drafters, "segments": (2, 5), "feeding": feeding}
    shapes = StepShapes.of((0, *sorted(lengths)), capacity, reads, **how)
    first, drafted = max(1, capacity // 3), max(lengths, default=0) // 2
    steps = {
        shapes.shape(k, length, capacity, tokens, drafter, segments)
        for drafter in range(drafters)
        for segments in (0, 1, 5)
        for k in range(drafted + 1)
        for length in range(first, capacity + 1)
        for tokens in (1, 60, 130)
    }
    needed = shapes.needed(range(first, capacity + 1), drafted)
    assert steps <= set(needed)
    assert len(needed) == len(set(needed))
    assert all(shape.k <= feeding for shape in needed if shape.segments)
    for drafter in range(drafters):
        padded = [one for one in needed if (*one[2:],) == (None, drafter, 0)]
        assert padded == sorted(padded, reverse=True)
        assert drafter == 0 or all(shape.k for shape in padded), "one graph without drafts"
    doublings = max(math.ceil(math.log2(capacity / 256)), 0)  # from the first span
    assert len(shapes.spans) <= (2 if reads else 1 + doublings)


def test_policies_declare_the_lengths_that_they_request() -> None:
    assert captured_lengths(Fixed(7)) == (0, 7)
    assert captured_lengths(EmaTiers()) == (0, 1, 3, 7)
    assert captured_lengths(BatchTable([[1, 2, 5], [3, 8, 0]])) == (0, 5)
    assert captured_lengths(ByRow(3)) == (0, 1, 2, 3)

    @dataclass(frozen=True)
    class Declares(Fixed):
        said: Any = ()

        @property
        def draft_lengths(self) -> Any:
            return self.said

    for wrong in ((5,), (-1,), ("two",), 3):
        with pytest.raises(PolicyError, match=r"`Declares.draft_lengths` holds"):
            captured_lengths(Declares(4, wrong))


@matrix(
    strength=1,
    pairing=PAIRINGS,
    drafter=[*TABLE_DRAFTERS, *READ_LAYERS],
    lengths=[(0, 2, 5), (0, 9)],
    packed=[(), (4, 8, 12)],
)
def test_a_step_in_a_longer_shape_emits_the_same_tokens(
    pairing: str,
    drafter: str,
    lengths: tuple[int, ...],
    packed: tuple[int, ...],
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows near their limits, too, where less is left than the shape's draft length."""
    monkeypatch.setattr("bass.engine.shapes.PACKED", packed)
    world = SmallLlama() if drafter in READ_LAYERS else SmallTable()
    setup = Setup(world, device, PAIRINGS[pairing], ByRow(4), drafter=drafter, graphs=False)
    requests = mixed_requests(world, count=6)
    expected = setup.outcome(requests)
    run = setup.engine(requests)
    rows = len(run.sequences.lens)
    shapes = StepShapes.of(lengths, run.sequences.capacity, True, rows)
    run = replace(run, step=Captured(run.step, None, shapes, None))
    found: list[list[int]] = [[] for _ in requests]
    for emission in run:
        found[emission.request] += emission.tokens
    assert found == expected.tokens
    assert {step.k for step in run.trace.steps} <= {*lengths}
    assert any(shape.packed for shape in run.step.known) == bool(packed)


CALLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "one": ([5, 6, 7], {"max_new_tokens": 9}),
    "six of a kind": ([5, 6], {"num_return_sequences": 6, "max_new_tokens": 8, "seed": 3}),
    "three": ([[3], [4] * 20, [5, 8]], {"max_new_tokens": [1, 30, 12], "top_k": 4}),
    "ten": ([[i + 3, 9] for i in range(10)], {"max_new_tokens": 4, "frequency_penalty": 0.5}),
    "longest": ([7] * 10, {"max_new_tokens": 54, "temperature": 0}),
    "ends": ([5, 6], {"stop_token_ids": [*range(40, 49)], "max_new_tokens": 20}),
}


@pytest.mark.parametrize("cache", [night("padded"), "split", night("paged")])
@pytest.mark.parametrize("drafter", ["model", "choice"])
def test_after_a_load_no_call_captures_anything_and_tokens_are_those_without_graphs(
    cache: str,
    drafter: str,
    silent_pair: Pair,
    captures: type[Captured],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    several = drafter == "choice"
    options: dict[str, Any] = {
        "cache": cache,
        "policy": Turns() if several else BatchAdaptive(5, max_length=5),
        "drafter": drafter,
        "max_batch_size": 5,
    }
    with monkeypatch.context() as patch:
        patch.setattr("bass.api.llm.use_graphs", lambda *_: False)
        without = bass.load(silent_pair.target, silent_pair.draft, device="cpu", **options)
    llm = bass.load(silent_pair.target, silent_pair.draft, device="cpu", **options)
    before = captures.count
    # batches 1, 2, 4, 5; lengths 0 to 5, or 1 to 4 of both parts; spans 8, 16, 32, 64; and of 5
    # rows, those that feed two numbers of segments
    assert before == (1 + 2 * 4 if several else 6) * (4 * 4 + 2)
    assert captures.prefills == 2 * len(prefill.SEGMENTS)  # of target and draft model
    storage = llm._engines.storage
    for (prompts, request), _ in itertools.product(CALLS.values(), range(2)):
        found = llm.generate(prompts, ignore_eos=True, **request)
        expected = without.generate(prompts, ignore_eos=True, **request)
        assert found.stats.capture_seconds == 0
        assert [c.token_ids for c in found.completions] == [
            c.token_ids for c in expected.completions
        ]
    assert captures.count == before
    assert storage is llm._engines.storage


@pytest.mark.parametrize("cache", ["padded", "split"])
def test_requests_that_arrive_use_the_storage_of_a_load_and_capture_nothing(
    cache: str, silent_pair: Pair, captures: type[Captured]
) -> None:
    """Their prompts are fed in chunks, of the shapes that a load has compiled."""
    options: dict[str, Any] = {
        "policy": Fixed(3), "max_batch_size": 3, "device": "cpu", "cache": cache,
    }  # fmt: skip
    llm = bass.load(silent_pair.target, silent_pair.draft, **options)
    storage, before = llm._engines.storage, captures.count
    prompts = [[3 + i] * (1 + 7 * i) for i in range(6)]
    alone = [llm.generate([prompt], max_new_tokens=9).completions[0] for prompt in prompts]
    found = {one.prompt_index: one for one in llm.serve(prompts, max_new_tokens=9)}
    futures = [llm.submit(prompt, max_new_tokens=9) for prompt in prompts]
    for i, one in enumerate(alone):
        assert one.token_ids == found[i].token_ids == futures[i].result(10).token_ids
    assert (captures.count, llm._engines.storage) == (before, storage)
    lazy = bass.load(silent_pair.target, silent_pair.draft, cuda_graphs="lazy", **options)
    assert len([*lazy.serve(prompts, max_new_tokens=9)]) == 6
    assert lazy._engines.storage.budget.batch == 3  # type: ignore[union-attr]


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, int, int]]:
    """Rows, columns and span of the windows without a token that models are fed."""
    found: set[tuple[int, int, int]] = set()
    fill = ModelScorer.fill

    def recorded(scorer: ModelScorer, window: Window) -> Any:
        if bool((window.positions < 0).all()):
            found.add((*window.positions.shape, window.span))
        return fill(scorer, window)

    monkeypatch.setattr(ModelScorer, "fill", recorded)
    return found


@pytest.mark.parametrize("cache", ["padded", "split"])
@pytest.mark.parametrize("calls", [None, [[[i] * 30 for i in range(3, 9)], [[3] * 9]]])
def test_a_warm_up_feeds_windows_of_prompts_and_of_drafters_that_catch_up(
    calls: Any,
    cache: str,
    silent_pair: Pair,
    captures: type[Captured],
    fed: set[tuple[int, int, int]],
) -> None:
    """Rows that get new requests while others run are fed in shapes that no first step has."""
    lazy = "auto" if calls is None else "lazy"
    llm = bass.load(
        silent_pair.target, silent_pair.draft, device="cpu", policy=Fixed(2), max_batch_size=4,
        cuda_graphs=lazy, cache=cache,
    )  # fmt: skip
    if calls is not None:
        options = RequestOptions(max_new_tokens=9, ignore_eos=True)
        llm.warm_up_for([(prompts, options) for prompts in calls])
    before, storage = captures.count, llm._engines.storage
    assert storage is not None
    capacity = storage.capacity
    assert fed == {(segments, prefill.SEGMENT, capacity) for segments in prefill.SEGMENTS}
    llm.generate([[i] * 20 for i in range(3, 13)], max_new_tokens=9, ignore_eos=True)
    assert captures.count == before


@pytest.mark.parametrize("drafter", ["model", Choice((ModelDraft(), Ngram()))], ids=str)
def test_every_model_has_a_pass_before_kernels_are_compiled_in_dropped_graphs(
    drafter: Any, silent_pair: Pair, captures: type[Captured], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In which its tables of positions would be lost."""
    options: dict[str, Any] = {"device": "cpu", "policy": Fixed(2), "drafter": drafter}
    llm = bass.load(silent_pair.target, silent_pair.draft, **options)
    fed, fill, seen = set[int](), ModelScorer.fill, list[int]()

    def recorded(scorer: ModelScorer, window: Window) -> Any:
        fed.add(id(scorer.decoder))
        return fill(scorer, window)

    @contextmanager
    def ahead() -> Iterator[Any]:
        seen.append(len(fed))
        yield SimpleNamespace(compiled=False)

    monkeypatch.setattr(ModelScorer, "fill", recorded)
    launches = SimpleNamespace(COMPILES_AHEAD=True, compiled_ahead=ahead)
    monkeypatch.setattr(warm_up.dispatch, "launches", lambda: launches)
    storage = llm._engines.storage
    assert storage is not None
    assert [*warm_up.compiled(storage)] == []
    assert seen == [2]


def test_a_warm_up_feeds_windows_without_graphs_if_the_drafter_is_a_users(
    silent_pair: Pair, captures: type[Captured], fed: set[tuple[int, int, int]]
) -> None:
    """So that its kernels are compiled before the first call."""

    class Mine(ModelDraft):
        pass

    llm = bass.load(
        silent_pair.target, silent_pair.draft, device="cpu", policy=Fixed(2), max_batch_size=2,
        drafter=Mine(),
    )  # fmt: skip
    storage = llm._engines.storage
    assert storage is not None
    assert storage.prefills is None
    capacity, device = storage.capacity, storage.models.device
    assert fed >= {
        (rows, *shape)
        for rows in storage.sizes
        for shape in (*prompt_shapes(rows, capacity, device), *caught_up_shapes(capacity))
    }


def test_a_lazy_call_captures_what_it_can_need_before_its_first_token(
    silent_pair: Pair, captures: type[Captured]
) -> None:
    llm = bass.load(
        silent_pair.target, silent_pair.draft, device="cpu", cuda_graphs="lazy", policy=Fixed(3)
    )
    assert captures.count == 0
    generation = llm.stream([3] * 10, max_new_tokens=20, ignore_eos=True)
    next(iter(generation))
    assert captures.count == 2 * 2  # lengths 0 and 3, spans 16 and 32
    generation.result()
    llm.generate([3] * 11, max_new_tokens=20)
    assert captures.count == 4
    llm.generate([4] * 10, max_new_tokens=1)  # one row, no draft, a span that is known
    assert captures.count == 4
    llm.generate([3] * 10, max_new_tokens=40)  # the storage grows
    assert captures.count == 4 + 2 * 3
    llm.generate([3] * 10, max_new_tokens=20)
    assert captures.count == 10


def test_a_call_while_another_is_under_way_has_storage_of_its_own(
    silent_pair: Pair, captures: type[Captured]
) -> None:
    llm = bass.load(silent_pair.target, silent_pair.draft, device="cpu", max_batch_size=2)
    request: dict[str, Any] = {"max_new_tokens": 12, "ignore_eos": True, "temperature": 1.0}
    expected = [llm.generate([i, 9], **request).completions[0].token_ids for i in (3, 4)]
    first = llm.stream([3, 9], **request)
    next(iter(first))
    second = llm.generate([4, 9], **request)
    found = [first.result().completions[0].token_ids, second.completions[0].token_ids]
    assert found == expected
    before = captures.count
    assert llm.generate([3, 9], **request).completions[0].token_ids == expected[0]
    assert captures.count == before


@final
@dataclass(frozen=True)
class Breaks(Verifier):
    """Raises when told to."""

    when: list[bool]
    lossless: ClassVar[bool] = False

    def __call__(self, draft: Draft, target_probs: torch.Tensor, noise: Noise) -> Verdict:
        accepted = torch.where(torch.tensor(self.when[0]), draft.lengths + 1, 0)
        return Verdict(torch.zeros_like(target_probs[..., 0], dtype=torch.int64), accepted)


def test_storage_in_which_a_run_failed_is_not_used_again(
    silent_pair: Pair, captures: type[Captured]
) -> None:
    broken = [False]
    parts: dict[str, Any] = {"verifier": Breaks(broken), "policy": Fixed(2), "max_batch_size": 2}
    llm = bass.load(silent_pair.target, silent_pair.draft, device="cpu", **parts)
    llm.generate([3], max_new_tokens=4)
    storage = llm._engines.storage
    broken[0] = True
    with pytest.raises(StrategyError, match="accepted 3 of 2 drafted"):
        llm.generate([3], max_new_tokens=4)
    broken[0] = False
    llm.generate([3], max_new_tokens=4)
    assert llm._engines.storage is not storage


@pytest.mark.parametrize(
    ("drafter", "keeps"),
    [("model", True), (Learns(), False), (Ensemble((Learns(), ModelDraft())), False)],
)
def test_what_a_batch_wide_drafter_learned_does_not_reach_the_next_call(
    drafter: Any, keeps: bool, silent_pair: Pair, captures: type[Captured]
) -> None:
    draft = None if isinstance(drafter, Learns) else silent_pair.draft
    llm = bass.load(
        silent_pair.target, draft, drafter=drafter, device="cpu", num_speculative_tokens=3
    )

    def call() -> Any:
        result = llm.generate([3, 1], 4, max_new_tokens=24, temperature=1.0, seed=5)
        return [c.token_ids for c in result.completions], result.stats.tau

    assert call() == call()
    assert (llm._engines.storage is not None) == keeps


def test_a_model_length_limits_the_rows(silent_pair: Pair) -> None:
    llm = bass.load(silent_pair.target, silent_pair.draft, device="cpu", max_model_len=20)
    assert llm.max_model_len == 20
    assert len(llm.generate([3] * 10, max_new_tokens=10, ignore_eos=True).completions) == 1
    with pytest.raises(RequestError, match="the context of 20: lower `max_new_tokens` to 8"):
        llm.generate([3] * 12, max_new_tokens=10)
    for wrong, words in (
        (65, "more than the context of the target, 64"),
        (1, "give an integer in"),
    ):
        with pytest.raises(OptionError, match=words):
            bass.load(silent_pair.target, silent_pair.draft, device="cpu", max_model_len=wrong)
