"""On a CPU calls share storage and its recorded passes, and nothing else."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import bass
from bass.api import engines
from bass.kernels.cpu.program import Recording
from bass.policies import Fixed
from bass.testing.policies import ByRow
from support.cpu import UNSUPPORTED, cpu_kernels
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
    begin = Recording.__enter__

    def counted(self: Recording) -> Recording:
        found.append(None)
        return begin(self)

    monkeypatch.setattr(Recording, "__enter__", counted)
    return found


def load(pair: Pair, **options: Any) -> bass.LLM:
    options = {"policy": Fixed(2), "max_batch_size": 3} | options
    draft = None if isinstance(options.get("drafter"), Learns) else pair.draft
    return bass.load(pair.target, draft, device="cpu", dtype="float32", **options)


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


def test_storage_grows_with_the_requests(long_pair: Pair) -> None:
    llm = load(long_pair)
    tokens(llm, PROMPTS[0])
    small = llm._engines.engines
    tokens(llm, PROMPTS[1])
    assert llm._engines.engines is small  # of 256 positions
    expected = tokens(load(long_pair), [[7] * 300, [8]])
    assert tokens(llm, [[7] * 300, [8]]) == expected
    grown = llm._engines.engines
    assert grown is not small
    tokens(llm, PROMPTS[0])
    assert llm._engines.engines is grown


def test_storage_that_is_large_is_of_one_call(
    long_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = load(long_pair)
    row_bytes = llm._engines._row_bytes
    monkeypatch.setattr(engines, "MOST_RECORDED", 2 * 256 * row_bytes)
    tokens(llm, list(PROMPTS))  # 3 rows
    assert llm._engines.engines is None
    assert llm.memory.keys_and_values == 0
    tokens(llm, list(PROMPTS[:2]))
    assert llm.memory.keys_and_values == 2 * 256 * row_bytes
    kept = llm._engines.engines
    tokens(llm, list(PROMPTS))
    assert llm._engines.engines is kept


@pytest.mark.parametrize("options", [{"cache": "split"}, {"cache": "paged"}])
def test_layouts_whose_passes_are_not_recorded_have_storage_of_each_call(
    options: dict[str, Any], long_pair: Pair
) -> None:
    llm = load(long_pair, **options)
    tokens(llm, PROMPTS[0])
    assert llm._engines.engines is None


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
