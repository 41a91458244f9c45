"""The order of runs and captures of a step; graphs themselves need a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, final

import pytest
import torch
from triton import knobs

from bass.engine.cost import PassLog
from bass.engine.graphs import GraphedStep
from bass.engine.shapes import StepShape, StepShapes
from bass.kernels.triton import launch
from bass.ops.dispatch import FirstUse
from bass.records import Sequences


@final
class Recording:
    """A step of which a part is new at the given calls of it; notes runs and captures."""

    def __init__(self, new: set[int]) -> None:
        self.calls, self.new, self.capturing = list[str](), new, False

    def on_device(self, rows: Sequences, lengths: Any, shape: StepShape, prompts: None) -> Any:
        part = f" of {shape.drafter}" if shape.drafter else ""
        does = "capture" if self.capturing else "run"
        self.calls.append(f"{does} {shape.k} {shape.span}{part}")
        if self.capturing and len(self.calls) in self.new:
            assert launch._restricted is not None
            raise FirstUse
        return torch.zeros(2, 11, dtype=torch.int64), ()


@pytest.mark.usefixtures("unchecked")  # stand-ins are of other types
@pytest.mark.parametrize(
    ("reads_lengths", "new", "calls"),
    [
        (
            False,
            set(),
            "run 2 16, capture 2 16, run 2 8, capture 2 8, "
            "run 2 16 of 1, capture 2 16 of 1, run 2 8 of 1, capture 2 8 of 1, "
            "run 0 8, capture 0 8",
        ),
        (
            True,
            set(),
            "run 2 16, capture 2 16, capture 2 8, "
            "run 2 16 of 1, capture 2 16 of 1, capture 2 8 of 1, run 0 8, capture 0 8",
        ),
        (
            True,
            {3},
            "run 2 16, capture 2 16, capture 2 8, run 2 8, capture 2 8, "
            "run 2 16 of 1, capture 2 16 of 1, capture 2 8 of 1, run 0 8, capture 0 8",
        ),
    ],
)
def test_a_length_of_a_part_runs_once_before_it_is_captured_and_again_for_a_new_kernel(
    reads_lengths: bool, new: set[int], calls: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = Recording(new)

    @contextmanager
    def capture(*_: Any, **__: Any) -> Iterator[None]:
        inner.capturing = True
        try:
            yield
        finally:
            inner.capturing = False

    stream = SimpleNamespace(wait_stream=lambda _: None)
    for name, stand_in in {
        "graph": capture, "CUDAGraph": lambda: None, "stream": lambda _: nullcontext(),
        "current_stream": lambda: stream, "set_stream": lambda _: None,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr("bass.engine.graphs.pinned", lambda like: like)
    monkeypatch.setattr("bass.engine.graphs.Captured", lambda *parts: parts)
    sequences = Sequences.empty(2, 16, [], torch.device("cpu"))
    step: Any = object.__new__(GraphedStep)
    vars(step).update(
        inner=inner, sequences=sequences, shapes=StepShapes((0, 2), (8, 16), reads_lengths),
        here=nullcontext(), side=stream, pool=None, captured={}, tried=set(),
        host_lengths=sequences.lens, lengths=sequences.lens.clone(),
    )  # fmt: skip
    for shape in (
        StepShape(2, 16), StepShape(2, 8), StepShape(2, 16, drafter=1), StepShape(2, 8, drafter=1),
        StepShape(0, 8),
    ):  # fmt: skip
        step.prepare(sequences, shape)
        assert step.prepared(shape)
    assert ", ".join(inner.calls) == calls


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (RuntimeError("operation not permitted when stream is capturing"), True),
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (ValueError("a mistake"), False),
    ],
)
def test_a_rehearsal_leaves_what_cannot_be_captured_to_the_capture(
    error: Exception, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it does not take the memory pool of the graphs that are used."""
    pools = list[Any]()

    @contextmanager
    def capture(graph: Any, pool: Any, **_: Any) -> Iterator[None]:
        pools.append(pool)
        yield

    stream = SimpleNamespace(wait_stream=lambda _: None)
    for name, stand_in in {
        "graph": capture, "CUDAGraph": lambda: None, "current_stream": lambda: stream,
        "set_stream": lambda _: None, "graph_pool_handle": lambda: "new",
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    step: Any = object.__new__(GraphedStep)
    vars(step).update(
        here=nullcontext(), side=stream, pool="ours", captured={}, log=PassLog(),
        prefills=SimpleNamespace(drop=lambda: None),
    )  # fmt: skip

    def fails() -> None:
        raise error

    with nullcontext() if passes else pytest.raises(ValueError, match="a mistake"):
        step.rehearse(fails)
    assert pools == [None]


def test_within_a_capture_only_existing_kernels_and_counters_are_used() -> None:
    counters = launch.kept_zeros("a test", 3, torch.device("cpu"))
    with launch.existing_kernels_only():
        assert launch.kept_zeros("a test", 3, torch.device("cpu")) is counters
        with pytest.raises(FirstUse):
            launch.kept_zeros("a test", 4, torch.device("cpu"))
        with pytest.raises(FirstUse):
            knobs.runtime.jit_cache_hook(key="", repr="", fn=None, compile={})
    assert knobs.runtime.jit_cache_hook is None
    assert len(launch.kept_zeros("a test", 4, torch.device("cpu"))) == 4
