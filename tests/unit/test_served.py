"""The LLMs of cells that take turns, kept for their CUDA graphs.

Graphs need a GPU. Here a step takes their place that must have been prepared.
"""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bass.api.llm import LLM
from bass.api.memory import weight_bytes
from bass.engine.cost import Peaks
from bass.engine.graphs import GraphedStep
from bass.experiments import cells, served
from bass.experiments.cells import Task
from bass.experiments.served import ServedCells
from bass.experiments.turns import by_turns, with_models_kept
from bass.runs.conditions import read_conditions
from bass.runs.machine import Conditions
from bass.runs.peaks import PEAKS, peaks_of_run
from bass.runs.run_folder import RunFolder
from bass.runs.settings import Settings
from support.prepared_steps import Captured
from unit.checkpoints import Pair
from unit.test_ablate_turns import PLAIN, Command

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
        with cells.turn(Path(name), plan, not last) as (llm, others):
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


def test_other_models_and_an_error_drop_what_is_kept(gpu: Gpu) -> None:
    cells, other = ServedCells(), Plan("b")
    a: Any = Plan("a")
    gpu.turn(cells, "a", a, GB)
    assert gpu.turn(cells, "other", other, GB) == 0  # with its models in memory, `a` is not
    gpu.turn(cells, "a", a, GB)
    assert gpu.made == [a, other, a]
    with pytest.raises(ZeroDivisionError), cells.turn(Path("a"), a, True):
        raise ZeroDivisionError
    gpu.turn(cells, "a", a, GB)
    cells.clear()
    gpu.turn(cells, "a", a, GB)
    assert gpu.made == [a, other, a, a, a]
    assert cells.drop()
    assert not cells.drop()
    gpu.turn(cells, "a", a, GB)
    assert gpu.made == [a, other, a, a, a, a]
    without = Plan("a", False)
    gpu.turn(cells, "without graphs", without, GB)
    gpu.turn(cells, "without graphs", without, GB)
    assert gpu.made[6:] == [without, without]


def test_a_draft_that_a_cell_does_not_have_is_not_its_memory(pair: Pair) -> None:
    cells = ServedCells()
    target, draft = str(pair.target), str(pair.draft)
    both = Settings(target=target, draft=draft, device="cpu").load_plan()
    alone = Settings(target=target, device="cpu", policy=PLAIN).load_plan()
    with cells.turn(Path("both"), both, True) as (llm, others):
        assert others == 0
        size = weight_bytes(llm.models)
    with cells.turn(Path("alone"), alone, True) as (llm, others):
        assert others == size - weight_bytes(llm.models) > 0


def test_a_cell_that_does_not_fit_next_to_others_runs_without_them(
    ablated: "Ablated", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, captures: type[Captured]
) -> None:
    """Each call is recorded once."""
    record, calls, full = cells._record, list[str](), [True]

    def noted(folder: Path, call: Any, *rest: Any) -> None:
        if len(calls) == 3 and full:  # of the second cell, next to the LLM of the first
            full.clear()
            raise torch.OutOfMemoryError("CUDA out of memory")
        calls.append(f"{folder.name} {call.number}")
        record(folder, call, *rest)

    monkeypatch.setattr(cells, "_record", noted)
    ablated(tmp_path / "out", "cpu", 1.0, lambda: captures.count, turns=2 * TURNS + 1)
    assert len(calls) == len({*calls}) == 2 * TURNS


def test_models_are_kept_where_no_other_pair_comes_in_between() -> None:
    def task(name: str, **settings: Any) -> Task:
        return Task(name, {}, Settings(repeats=2, **settings), "run")

    one = [task("drafts", policy="bass"), task("plain", policy=PLAIN)]
    assert with_models_kept([*by_turns(one)]) == {("drafts", 0), ("plain", 0)}
    two = [*one, task("int8", policy="bass", draft_quantization="int8")]
    assert with_models_kept([*by_turns(two)]) == set()


def test_a_run_has_one_measurement_of_a_device(tmp_path: Path) -> None:
    first, second = Peaks(2.0, 3.0), Peaks(5.0, 7.0)
    assert peaks_of_run(tmp_path, "a", "bfloat16", first) == first
    assert peaks_of_run(tmp_path, "a", "bfloat16", second) == first
    assert peaks_of_run(tmp_path, "b", "bfloat16", second) == second
    with (tmp_path / PEAKS).open("a") as file:
        file.write('{"device": "a", "dty')  # a full disk
    assert peaks_of_run(tmp_path, "a", "float32", second) == second
    assert peaks_of_run(tmp_path, "a", "bfloat16", second) == first


def test_the_peak_of_a_cell_is_without_the_memory_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 7 * GB)
    monkeypatch.setattr("bass.runs.machine.calibrated", lambda device: (None, None))
    monkeypatch.setattr("bass.runs.machine.gpu_clock", lambda device: None)
    line = Conditions(torch.device("cuda"), 3 * GB).line(0)
    assert line.peak_memory_bytes == 4 * GB


class Ablated:
    """Runs an ablation of two cells, which takes turns; counts what is captured before each."""

    def __init__(self, patch: pytest.MonkeyPatch, command: Command, pair: Pair) -> None:
        self.patch, self.command, self.pair = patch, command, pair

    def __call__(
        self,
        out: Path,
        device: str,
        room: float,
        captured: Callable[[], int],
        turns: int = 2 * TURNS,
    ) -> list[int]:
        self.patch.setattr(served, "_free_share", lambda device: room)
        before: list[int] = []
        turn = ServedCells.turn

        def noted(*arguments: Any) -> Any:
            before.append(captured())
            return turn(*arguments)

        fixed = {k: {"policy": "fixed", "policy.k": k} for k in (0, 2)}
        base = {"prompts": ["def f("], "max_new_tokens": 4, "repeats": TURNS, "device": device}
        models = {"target": str(self.pair.target), "draft": str(self.pair.draft)}
        options = {"cuda_graphs": "lazy", "cache": "padded"}
        config = {"base": base | models | options, "axes": {"k": fixed}}
        out.mkdir()
        (out / "c.yaml").write_text(json.dumps(config), encoding="utf-8")
        with self.patch.context() as patch:
            patch.setattr(ServedCells, "turn", noted)
            said = self.command("ablate", str(out / "c.yaml"), "--output", str(out / "run"))
        assert said.status == 0, said.err
        assert len(before) == turns
        return [*before, captured()]


@pytest.fixture
def ablated(pair: Pair, monkeypatch: pytest.MonkeyPatch, bass_command: Command) -> Ablated:
    """The ablation."""
    return Ablated(monkeypatch, bass_command, pair)


@pytest.mark.parametrize("room", [1.0, 0.0])
def test_each_cell_of_an_ablation_captures_once_where_memory_is_free(
    room: float, ablated: Ablated, tmp_path: Path, captures: type[Captured]
) -> None:
    counts = ablated(tmp_path / "out", "cpu", room, lambda: captures.count)
    assert counts[2] > 0  # of the first round
    assert counts[-1] == (counts[2] if room else TURNS * counts[2])


@pytest.mark.gpu
def test_cells_that_keep_their_graphs_emit_the_tokens_and_have_the_peaks_of_others(
    ablated: Ablated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured: list[tuple[int, int]] = []
    capture = GraphedStep._capture

    def noted(step: GraphedStep, k: int, span: int) -> Any:
        captured.append((k, span))
        return capture(step, k, span)

    monkeypatch.setattr(GraphedStep, "_capture", noted)
    counts, runs = {}, {}
    for room in (1.0, 0.0):
        captured.clear()
        counts[room] = ablated(tmp_path / str(room), "cuda", room, lambda: len(captured))
        runs[room] = RunFolder(tmp_path / str(room) / "run")
    assert 0 < counts[1.0][2] == counts[1.0][-1] == counts[0.0][2]
    assert counts[0.0][-1] == TURNS * counts[0.0][2]
    for cell in runs[1.0].cells:
        kept, made = (run.lines(cell.id).requests for run in (runs[1.0], runs[0.0]))
        assert [one.tokens for one in kept] == [one.tokens for one in made]
        peaks = [
            [line.peak_memory_bytes for line in read_conditions(run.cell_folder(cell.id))]
            for run in (runs[1.0], runs[0.0])
        ]
        assert peaks[0] == pytest.approx(peaks[1], abs=1e5)  # most of it are torch's workspaces
