"""On a CPU calls share storage and its recorded passes, and nothing else."""

import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

import bass
from bass.engine.scorer import CachedLayers
from bass.policies import Fixed
from bass.testing.doubles import ByRow
from support.cpu import UNSUPPORTED, cpu, cpu_kernels
from unit.checkpoints import Pair, write_checkpoint
from unit.test_steps import Learns

if UNSUPPORTED is not None:
    pytest.skip("the kernels for CPUs do not run here", allow_module_level=True)

PROMPTS = ([3, 1, 4], [5] * 40, [9, 2])


@pytest.fixture(scope="module")
def long_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("long")
    return Pair(
        write_checkpoint(folder / "target", None, 32, 2, 50, context=1024),
        write_checkpoint(folder / "draft", None, 16, 1, 50, context=1024),
    )


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BASS_CPU_PRODUCTS", "kernel")
    with cpu_kernels():  # restores what loads choose
        yield


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """An entry for each recording."""
    found: list[None] = []
    begin = cpu().runtime.Recording.__enter__

    def counted(self: Any) -> Any:
        found.append(None)
        return begin(self)

    monkeypatch.setattr(cpu().runtime.Recording, "__enter__", counted)
    return found


def load(pair: Pair, **options: Any) -> bass.LLM:
    options = {"policy": Fixed(2), "max_batch_size": 3} | options
    draft = None if isinstance(options.get("drafter"), Learns) else pair.draft
    options = {"dtype": "float32"} | options
    return bass.load(pair.target, draft, device="cpu", **options)


def tokens(llm: bass.LLM, prompts: Any, new: int = 20, **options: Any) -> list[list[int]]:
    options = {"ignore_eos": True, "temperature": 1.0} | options
    return [c.token_ids for c in llm.generate(prompts, max_new_tokens=new, **options).completions]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"policy": ByRow(), "verifier": "coupled"},
        {"drafter": Learns()},
        {"num_speculative_tokens": 0, "policy": None},
    ],
)
def test_later_calls_record_nothing_and_emit_the_tokens_of_a_fresh_pair(
    options: dict[str, Any], long_pair: Pair, recordings: list[None]
) -> None:
    llm = load(long_pair, **options)
    calls: list[tuple[Any, int]] = [(PROMPTS[0], 20), (list(PROMPTS), 20), (PROMPTS[2], 9)]
    for _ in range(3):  # a shape is recorded in its second pass
        recordings.clear()
        found = [tokens(llm, prompts, new) for prompts, new in calls]
    assert recordings == []
    assert found == [tokens(load(long_pair, **options), prompts, new) for prompts, new in calls]


def test_passes_of_a_head_are_recorded() -> None:
    llm, fresh = (bass.load(draft="eagle3", policy=Fixed(3), device="cpu") for _ in range(2))
    found = [tokens(llm, PROMPTS[0]) for _ in range(3)]
    storage = llm._engines.storage
    assert storage is not None
    [passes] = (s.passes for s in storage._scorers.values() if isinstance(s, CachedLayers))
    assert {kind for *_, (kind, _), _ in passes._programs} == {"observe", "draft"}
    assert None not in passes._programs.values()
    assert found == [tokens(fresh, PROMPTS[0])] * 3


def test_threads_and_open_streams_do_not_share_storage(long_pair: Pair) -> None:
    llm = load(long_pair)
    expected = [tokens(load(long_pair), prompt, 60) for prompt in PROMPTS]
    tokens(llm, PROMPTS[1], 60)
    stream = llm.stream(PROMPTS[0], max_new_tokens=60, ignore_eos=True, temperature=1.0)
    next(iter(stream))
    found: dict[int, list[list[int]]] = {}

    def decode(i: int) -> None:
        found[i] = tokens(llm, PROMPTS[i % 3], 60)

    threads = [threading.Thread(target=decode, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(6)] == expected * 2
    assert [stream.result().completions[0].token_ids] == expected[0]


def scores(llm: bass.LLM, prompts: Any, **options: Any) -> list[tuple[list[int], list[float]]]:
    options = {"max_new_tokens": 12, "ignore_eos": True, "temperature": 1.2, "seed": 3} | options
    found = llm.generate(prompts, **options).completions
    return [(c.token_ids, c.logprobs) for c in found]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_bit_of_a_result_depends_on_the_storage(long_pair: Pair, dtype: str) -> None:
    """Not in storage that earlier calls have made larger, nor next to an open stream."""
    prompts = [[3] * 9, [4, 5] * 70, [6, 1, 7] * 100]
    expected = scores(load(long_pair, dtype=dtype), prompts)
    llm = load(long_pair, dtype=dtype)
    scores(llm, [[7] * 600, [8]])
    assert scores(llm, prompts) == expected
    stream = llm.stream([9] * 40, max_new_tokens=30, ignore_eos=True)
    next(iter(stream))
    assert scores(llm, prompts) == expected


def test_replaced_weights_are_read_by_the_next_call(long_pair: Pair) -> None:
    llm, fresh = load(long_pair), load(long_pair)
    for _ in range(3):
        before = tokens(llm, PROMPTS[0])
    state = {k: 1.5 * v for k, v in llm.models.target.state_dict().items()}
    for one in (llm, fresh):
        one.models.target.load_state_dict(state, assign=True)
    found = tokens(llm, PROMPTS[0])
    assert found == tokens(fresh, PROMPTS[0])
    assert found != before


def test_a_call_that_fails_before_its_run_gives_the_storage_back(long_pair: Pair) -> None:
    llm = load(long_pair)
    tokens(llm, PROMPTS[0])
    kept = llm._engines.storage
    with (
        mock.patch("bass.engine.engines.EngineRun", side_effect=ZeroDivisionError),
        pytest.raises(ZeroDivisionError),
    ):
        tokens(llm, PROMPTS[0])
    tokens(llm, PROMPTS[0])
    assert llm._engines.storage is kept
    assert kept is not None
    assert kept.status.over
