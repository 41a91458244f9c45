"""In which order cells are run, and what is noted of the machine meanwhile."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bass.analysis.noise import MOST_SPREAD, Speeds, noise
from bass.experiments import cells
from bass.experiments.cells import Task
from bass.experiments.turns import by_turns
from bass.runs.conditions import ConditionLine, read_conditions
from bass.runs.run_folder import RunFolder
from bass.runs.settings import Settings
from support.run_folders import append_line, write_run
from unit.checkpoints import Pair, Said

Command = Callable[..., Said]
PLAIN = {"class_path": "fixed", "init_args": {"k": 0}}
VALUES: dict[str, Any] = {
    "policy": st.sampled_from([PLAIN, "fixed", "bass"]),
    "cache": st.sampled_from(["padded", "split"]),
    "batch": st.sampled_from([1, 2]),
    "temperature": st.sampled_from([0.2, 1.0]),
    "quantization": st.sampled_from([None, "int8"]),
    "draft_quantization": st.sampled_from([None, "int8"]),
    "repeats": st.integers(1, 3),
}
# settings in which rivals may differ
HOW = ("policy", "cache", "quantization", "draft_quantization")
QUIET = ConditionLine(
    0, "2026-01-01T00:00:00.000+00:00", 0.5, 0.25, 2500.0, 0.01, 0.004, None, None, None, None
)


def tasks(drawn: list[dict[str, Any]]) -> list[Task]:
    return [Task(str(i), {}, Settings(**cell), "run") for i, cell in enumerate(drawn)]


def work(task: Task) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(task.settings).items()
        if name in Settings.__dataclass_fields__ and name not in HOW
    }


@given(st.lists(st.fixed_dictionaries(VALUES), max_size=6))
def test_every_turn_is_run_once_and_rivals_take_turns(drawn: list[dict[str, Any]]) -> None:
    made = tasks(drawn)
    order = [(task.id, turn) for task, turn in by_turns(made)]
    assert sorted(order) == sorted(
        (task.id, turn) for task in made for turn in range(task.settings.repeats)
    )
    for task in made:
        rivals = [other.id for other in made if work(other) == work(task)]
        rounds = [name for name, _ in order if name in rivals]
        whole = rounds[: len(rivals)]
        assert sorted(whole) == sorted(rivals)
        # nobody is twice in a round, and each round has the same order
        assert rounds == whole * task.settings.repeats


@given(st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=6))
def test_models_are_loaded_once_unless_rivals_need_different_ones(
    drawn: list[dict[str, Any]],
) -> None:
    same = tasks([cell | {"quantization": None, "draft_quantization": None} for cell in drawn])
    works = [work(task) for task, _ in by_turns(same)]
    # a work is finished before the next begins
    assert len(list(itertools.groupby(works))) == len({repr(one) for one in works})
    drafting = [cell | {"policy": "bass", "repeats": 3} for cell in drawn]
    two = tasks(
        [
            cell | {"quantization": q, "draft_quantization": q}
            for cell in drafting
            for q in (None, "int8")
        ]
    )
    loads = [
        key for key, _ in itertools.groupby(task.settings.quantization for task, _ in by_turns(two))
    ]
    assert len(loads) == 6  # two in each round, however many works there are


@pytest.fixture
def recorded(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bass_command: Command
) -> Callable[..., list[str]]:
    """Runs a small ablation, and gives the calls that were recorded, in order.

    It is interrupted after `most`.
    """
    monkeypatch.chdir(tmp_path)
    base = {
        "prompts": ["def f("],
        "max_new_tokens": 3,
        "repeats": 3,
        "target": str(pair.target),
        "draft": str(pair.draft),
    }
    config = {
        "base": base,
        "axes": {"batch": [1, 2], "how": {"plain": {"policy": PLAIN}, "bass": {"policy": "bass"}}},
    }
    (tmp_path / "c.yaml").write_text(json.dumps(config), encoding="utf-8")
    record = cells._record

    def run(most: int = 1000) -> list[str]:
        calls: list[str] = []

        def noted(folder: Path, call: Any, *rest: Any) -> None:
            if len(calls) == most:
                raise KeyboardInterrupt
            record(folder, call, *rest)
            calls.append(f"{folder.name} {call.number}")

        monkeypatch.setattr(cells, "_record", noted)
        said = bass_command("ablate", "c.yaml", "--output", "out", "--table", "table.md")
        assert said.status == (0 if most == 1000 else 130)
        assert ("`bass table out` shows the cells that are done" in said.err) == (most < 1000)
        return calls

    return run


def test_an_interrupted_run_goes_on_in_the_middle_of_a_round(
    recorded: Callable[..., list[str]],
) -> None:
    names = {1: ("0001-b1-bass", "0000-b1-plain"), 2: ("0003-b2-bass", "0002-b2-plain")}
    expected = [f"{name} {turn}" for batch in (1, 2) for turn in range(3) for name in names[batch]]
    assert recorded(3) + recorded(5) + recorded() == expected


def test_an_interrupted_run_compares_the_cells_that_have_ended(
    recorded: Callable[..., list[str]], tmp_path: Path
) -> None:
    recorded(8)  # of batch 1 all
    found = RunFolder(tmp_path / "out").summaries()
    assert "speedup_all" in found["0001-b1-bass"].metrics
    assert "0003-b2-bass" not in found


def test_the_machine_is_noted_for_every_repeat(
    recorded: Callable[..., list[str]], tmp_path: Path
) -> None:
    recorded()
    run = RunFolder(tmp_path / "out")
    for cell in run.cells:
        lines = read_conditions(run.cell_folder(cell.id))
        assert [line.repeat for line in lines] == [0, 1, 2]
        assert all(line.load >= 0 and line.product and line.read for line in lines)
        assert [line.began for line in lines] == sorted(line.began for line in lines)


@pytest.mark.nightly
def test_a_noisy_machine_is_told_first_and_a_quiet_one_not(
    tmp_path: Path, bass_command: Command
) -> None:
    """As the calibrations drift by a share of their median.

    A folder without calibrations says nothing.
    """
    for drift in (None, MOST_SPREAD / 2, 5.0):
        run = write_run(tmp_path / str(drift), batches=(1,), repeats=3)
        for place, cell in enumerate(run.cells if drift is not None else ()):
            for repeat in range(3):
                times = 0.01 * (1 + (drift or 0.0) * (3 * repeat + place) / 8)
                append_line(
                    run.cell_folder(cell.id) / "conditions.jsonl",
                    replace(QUIET, repeat=repeat, product=times),
                )
        said = bass_command("report", str(run.path))
        assert said.status == 0
        assert said.out.startswith("The machine was noisy: a fixed matrix product, ") == (
            drift == 5.0
        )
        page = (run.path / "report.html").read_text(encoding="utf-8")
        assert ("The machine was noisy" in page) == (drift == 5.0)
        assert (
            drift != 5.0
            or "took 15 to 55 ms (10th to 90th percentile), which is 114% of its median" in page
        )


def test_the_noisiest_part_of_a_machine_is_told() -> None:
    lines = [
        replace(QUIET, device_product=0.001 * time, device_read=0.001, others=None)
        for time in (1, 1, 1, 2)
    ]
    [told] = noise(lines)
    assert (
        "a fixed matrix product on the GPU, timed before each of 4 generations, took 1 to 1.7 ms"
        in told
    )
    assert "Other processes" not in told
    assert noise(lines[:3]) == noise([]) == []


def test_on_a_gpu_its_own_calibrations_count_alone() -> None:
    """The processors mostly wait for it: their calibrations vary, and its steps do not."""
    cpu = [replace(QUIET, product=0.01 * time) for time in (1, 2, 9)]
    gpu = [replace(line, device_product=0.01, device_read=0.01) for line in cpu]
    assert noise(cpu)
    assert noise(gpu) == []
    faster = [replace(line, device_read=0.002) for line in gpu]
    found = Speeds.of(gpu, faster)
    assert found.differ == "device_read"
    assert found.seconds == {"device_product": (0.01, 0.01), "device_read": (0.01, 0.002)}
    assert Speeds.of(cpu, gpu) == Speeds()
