"""The LLMs of cells that take turns, kept for their CUDA graphs.

Graphs need a GPU. Here a step takes their place that must have been prepared.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bass.api.llm import LLM
from bass.experiments import served
from bass.experiments.served import ServedCells
from bass.runs.conditions import read_conditions
from bass.runs.machine import Conditions
from support.prepared_steps import Captured
from unit.checkpoints import Pair
from unit.test_ablate_turns import Command

GB = 10**9
TURNS = 3


class Plan:
    """Stands for a plan of these models; what is served has CUDA graphs."""

    def __init__(self, models: str = "a", graphs: bool = True) -> None:
        self.models = models, None
        self.llm = LLM.__new__(LLM)
        self.llm.graphs = graphs
        device = torch.device("cpu")
        self.llm.models = SimpleNamespace(device=device)  # type: ignore[assignment]


class Gpu:
    """A GPU of 80 GB, in the place of torch's functions and of loading."""

    def __init__(self) -> None:
        self.allocated, self.made, self.loaded = 0, [], None

    def serve(self, plan: Any, models: Any) -> Any:
        self.made.append(plan)
        self.loaded = plan.models
        return plan.llm

    def turn(self, cells: ServedCells, name: str, plan: Any, takes: int, last: bool = False) -> int:
        """A turn that allocates; returns the bytes of other cells."""
        with cells.turn(Path(name), plan, last) as (llm, others):
            assert llm is plan.llm
            self.allocated += takes
        return others


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """The GPU."""
    gpu = Gpu()
    monkeypatch.setattr(served, "serve", gpu.serve)
    monkeypatch.setattr(served, "_allocated", lambda device: gpu.allocated)
    monkeypatch.setattr(served, "_free_share", lambda device: 1 - gpu.allocated / (80 * GB))
    monkeypatch.setattr(
        "bass.api.loading.ModelCache.holds", lambda self, *models: gpu.loaded == models
    )
    return gpu


def test_an_llm_is_kept_until_its_last_turn_and_its_memory_is_counted_as_its_own(gpu: Gpu) -> None:
    cells, a, b = ServedCells(), Plan(), Plan()
    assert gpu.turn(cells, "a", a, 3 * GB) == 0
    assert gpu.turn(cells, "b", b, 5 * GB) == 3 * GB
    assert gpu.turn(cells, "a", a, 1 * GB) == 5 * GB  # it grows
    assert gpu.turn(cells, "b", b, 0, last=True) == 4 * GB
    assert gpu.turn(cells, "a", a, 0, last=True) == 0
    assert gpu.made == [a, b]
    gpu.turn(cells, "a", a, 0)
    assert gpu.made == [a, b, a]


def test_an_llm_that_leaves_less_than_half_of_the_memory_is_made_again(gpu: Gpu) -> None:
    cells, a, b = ServedCells(), Plan(), Plan()
    for _ in range(TURNS):
        gpu.turn(cells, "a", a, 10 * GB if not gpu.made else 0)
        assert gpu.turn(cells, "b", b, 31 * GB) == 10 * GB
        gpu.allocated -= 31 * GB  # which is dropped
    assert gpu.made == [a, b, b, b]


def test_other_models_an_error_and_a_shared_gpu_drop_what_is_kept(gpu: Gpu) -> None:
    cells, a, other = ServedCells(), Plan("a"), Plan("b")
    gpu.turn(cells, "a", a, GB)
    assert gpu.turn(cells, "other", other, GB) == 0  # with its models in memory, `a` is not
    gpu.turn(cells, "a", a, GB)
    assert gpu.made == [a, other, a]
    with pytest.raises(ZeroDivisionError), cells.turn(Path("a"), a, False):
        raise ZeroDivisionError
    gpu.turn(cells, "a", a, GB)
    cells.clear()
    gpu.turn(cells, "a", a, GB)
    assert gpu.made == [a, other, a, a, a]
    for plan, sole in ((Plan("a"), ServedCells(keeps=False)), (Plan("a", False), ServedCells())):
        gpu.made.clear()
        gpu.turn(sole, "a", plan, GB)
        gpu.turn(sole, "a", plan, GB)
        assert gpu.made == [plan, plan]


def test_the_peak_of_a_cell_is_without_the_memory_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 7 * GB)
    monkeypatch.setattr("bass.runs.machine.calibrated", lambda device: (None, None))
    monkeypatch.setattr("bass.runs.machine.gpu_clock", lambda device: None)
    line = Conditions(torch.device("cuda"), 3 * GB).line(0)
    assert line.peak_memory_bytes == 4 * GB


@pytest.mark.parametrize("room", [1.0, 0.0])
def test_each_cell_of_an_ablation_captures_once_where_memory_is_free(
    room: float,
    pair: Pair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    captures: type[Captured],
    bass_command: Command,
) -> None:
    monkeypatch.setattr(served, "_free_share", lambda device: room)
    counts: list[int] = []
    turn = ServedCells.turn

    def noted(*arguments: Any) -> Any:
        counts.append(captures.count)
        return turn(*arguments)

    monkeypatch.setattr(ServedCells, "turn", noted)
    cells = {"plain": {"policy": "fixed", "policy.k": 0}, "two": {"policy": "fixed", "policy.k": 2}}
    base = {"prompts": ["def f("], "max_new_tokens": 4, "repeats": TURNS, "cuda_graphs": "lazy"}
    models = {"target": str(pair.target), "draft": str(pair.draft), "device": "cpu"}
    config = {"base": base | models, "axes": {"how": cells}}
    (tmp_path / "c.yaml").write_text(json.dumps(config), encoding="utf-8")
    out = tmp_path / "out"
    said = bass_command("ablate", str(tmp_path / "c.yaml"), "--output", str(out))
    assert said.status == 0, said.err
    assert len(counts) == 2 * TURNS
    round_one = counts[2]
    assert round_one > 0
    assert captures.count == (round_one if room else TURNS * round_one)
    assert [len(read_conditions(folder)) for folder in (out / "cells").iterdir()] == [TURNS] * 2
