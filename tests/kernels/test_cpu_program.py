"""Recorded passes on a CPU have the bits of the passes that they replay."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bass.attention import BACKENDS, SDPA
from bass.caches import PaddedCache
from bass.engine.scorer import ModelScorer
from bass.models.qwen3 import Qwen3, Qwen3Config
from bass.ops.dispatch import MOST_CPU_ROWS
from bass.ops.recorded import RecordedPasses
from bass.records import CacheBudget, Scored, Window
from bass.testing.small_models import SmallLlama
from support.cpu import UNSUPPORTED, cpu, cpu_kernels

if UNSUPPORTED is not None:
    pytest.skip("the kernels for CPUs do not run here", allow_module_level=True)

LLAMA = SmallLlama(layers=3).models["target"]
CAPACITY = 40


@pytest.fixture(params=[1, 2], autouse=True)
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def qwen() -> Qwen3:
    """Random, with norms of query and key heads."""
    config = Qwen3Config(
        13, 32, 48, 2, 4, 2, 8, max_position_embeddings=64, tie_word_embeddings=True
    )
    model, random = Qwen3(config), torch.Generator().manual_seed(1)
    for parameter in model.requires_grad_(False).parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.3)
    return model


def scorer(model: SmallLlama | nn.Module, batch: int, layers: tuple[int, ...] = ()) -> ModelScorer:
    budget = CacheBudget.of(np.full(batch, CAPACITY))
    cache = PaddedCache.allocate(model.shape, budget, torch.device("cpu"), torch.float32)
    return ModelScorer(model, cache, SDPA(), batch, layers)


def passed(score: ModelScorer, window: Window) -> Scored:
    """The outputs of a pass that is neither recorded nor packed."""
    logits, *features = score._computed(window, score.store.attend(window))
    return Scored(logits, tuple(features))


def windows(batch: int, width: int, count: int) -> list[Window]:
    """Consecutive windows of rows that begin at different positions; one place has no token."""
    made, random = [], torch.Generator().manual_seed(batch)
    for i in range(count):
        positions = torch.arange(width) + torch.arange(batch)[:, None] + i * width
        positions[-1, -1] = -1
        tokens = torch.randint(0, 13, (batch, width), generator=random)
        made.append(Window(tokens, positions, 8 * (i + 1)))
    return made


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize(("batch", "width"), [(1, 1), (1, 2), (3, 4)])
@pytest.mark.parametrize("layers", [(), (0,)])
@torch.inference_mode()
def test_a_replay_has_the_bits_of_the_pass(
    family: str, batch: int, width: int, layers: tuple[int, ...]
) -> None:
    model = LLAMA if family == "llama" else qwen()
    with cpu_kernels():
        replayed, computed = (scorer(model, batch, layers) for _ in range(2))
        for window in windows(batch, width, 6):
            found, expected = replayed(window), passed(computed, window)
            assert torch.equal(found.logits[:-1], expected.logits[:-1])
            for one, other in zip(
                (found.logits, *found.features), (expected.logits, *expected.features), strict=True
            ):
                fed = window.positions >= 0
                assert torch.equal(one[fed], other[fed])
        [program] = replayed.store.passes._programs.values()
        assert program is not None
        for ours, theirs in zip(vars(replayed.cache)["_slots"], computed.cache._slots, strict=True):
            assert all(map(torch.equal, ours, theirs))


@torch.inference_mode()
def test_a_program_of_a_packed_window_serves_windows_of_any_shape() -> None:
    """Of as many tokens: three rows of 4 places, then of 6; each row begins where the last window
    has ended.
    """
    with cpu_kernels():
        replayed, computed = (scorer(LLAMA, 3) for _ in range(2))
        lens, random = torch.zeros(3, dtype=torch.int64), torch.Generator().manual_seed(0)
        for width, counts in ((4, (1, 4, 0)), (4, (3, 0, 2)), (6, (0, 0, 5)), (6, (2, 2, 1))):
            ahead, count = torch.arange(width), torch.tensor(counts)
            positions = torch.where(ahead < count[:, None], lens[:, None] + ahead, -1)
            window = Window(torch.randint(0, 13, (3, width), generator=random), positions, 16)
            lens += count
            fed = positions >= 0
            found, expected = replayed(window).logits[fed], passed(computed, window).logits[fed]
            assert torch.equal(found, expected)
        [program] = replayed.store.passes._programs.values()
        assert program is not None


@torch.inference_mode()
def test_results_of_a_replay_stay_what_they_are() -> None:
    with cpu_kernels():
        score = scorer(LLAMA, 2)
        found = [score(window).logits for window in windows(2, 1, 5)]
        kept = [one.clone() for one in found]
        score(windows(2, 1, 5)[0])
        assert all(map(torch.equal, found, kept))


class Doubled(nn.Module):
    """A layer of a user, in place of a linear one."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.factor = layer, 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.factor


@torch.inference_mode()
def test_a_pass_with_other_operations_is_not_recorded() -> None:
    """The multiplication of the layer would be missing in a replay."""
    model = SmallLlama(seed=3).models["target"]
    model.blocks[0].attention.out = Doubled(model.blocks[0].attention.out)
    with cpu_kernels():
        score = scorer(model, 1)
        for i, window in enumerate(windows(1, 1, 5)):
            model.blocks[0].attention.out.factor = float(i)
            expected = passed(scorer(model, 1), window).logits if i == 0 else None
            found = score(window).logits
            assert expected is None or torch.equal(found, expected)
        assert list(score.store.passes._programs.values()) == [None]


@torch.inference_mode()
def test_threads_record_at_the_same_time() -> None:
    found: dict[int, list[torch.Tensor]] = {}
    together = threading.Barrier(3)

    def work(me: int) -> None:
        with torch.inference_mode():
            score = scorer(LLAMA, 1)
            together.wait()
            found[me] = [score(window).logits for window in windows(1, 1, 30)[:-1]]

    with cpu_kernels():
        computed = scorer(LLAMA, 1)
        expected = [passed(computed, window).logits for window in windows(1, 1, 30)[:-1]]
        workers = [threading.Thread(target=work, args=(me,)) for me in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    for me in range(3):
        assert all(torch.equal(a, b) for a, b in zip(found[me], expected, strict=True))


def test_only_attention_by_kernels_is_recorded() -> None:
    assert {name for name, backend in BACKENDS.items() if backend.replayable} == {"sdpa"}


def test_a_pass_with_gradients_or_many_tokens_is_not_recorded() -> None:
    tokens = torch.zeros(1, MOST_CPU_ROWS, dtype=torch.int64)
    with cpu_kernels():
        assert not RecordedPasses.supports(tokens)
        with torch.inference_mode():
            assert RecordedPasses.supports(tokens)
            assert not RecordedPasses.supports(torch.zeros(1, MOST_CPU_ROWS + 1, dtype=torch.int64))
    with torch.inference_mode():
        assert not RecordedPasses.supports(tokens)


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 3)), max_size=20))
def test_tensors_in_use_at_the_same_time_share_no_memory(made: list[tuple[int, int]]) -> None:
    memory, live = cpu().runtime.ProgramMemory(), {}
    for i, (size, lives) in enumerate(made):
        live = {name: (one, left - 1) for name, (one, left) in live.items() if left > 0}
        live[i] = memory.take(size)[: size - 1].fill_(i), lives  # a view keeps the block in use
    assert all((one == name).all() for name, (one, _) in live.items())
    assert len(memory.blocks) == len({block.data_ptr() for block in memory.blocks.values()})


def test_memory_is_used_again() -> None:
    memory = cpu().runtime.ProgramMemory()
    for size in (100, 60, 100):
        memory.take(size)
    assert len(memory.blocks) == 1
