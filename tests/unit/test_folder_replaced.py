"""A run whose folder is deleted, or becomes another run's, writes nothing more; nor does one whose
lines could not be read again.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bass import files
from bass.experiments import cells
from bass.runs import evaluation_folder
from bass.runs.run_folder import RunFolder
from unit.checkpoints import Pair, Said

Command = Callable[..., Said]
REPLACED = "has been deleted or replaced while this run wrote it"


def at_call(number: int, work: Callable[[], None], plain: Callable[..., Any]) -> Callable[..., Any]:
    """`plain`, which does `work` first at one of its calls."""
    calls = []

    def call(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == number:
            work()
        return plain(*arguments)

    return call


def another_run(folder: Path) -> Callable[[], None]:
    """What another process does that deletes the folder and begins a run of its name."""

    def replace() -> None:
        shutil.rmtree(folder)
        folder.mkdir()
        (folder / "lock").write_text("process 1 on another machine")

    return replace


@pytest.mark.parametrize("moment", [2, 3, 5])
@pytest.mark.parametrize("again", [False, True])
def test_an_ablation_ends_where_its_folder_is_replaced(
    ablate: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int, again: bool
) -> None:
    folder = tmp_path / "out"
    work = another_run(folder) if again else lambda: shutil.rmtree(folder)
    monkeypatch.setattr(cells, "check_inputs", at_call(moment, work, cells.check_inputs))
    said = ablate()
    assert (said.status, REPLACED in said.err) == (2, True), said.err
    assert [path.name for path in tmp_path.glob("out/*")] == (["lock"] if again else [])


@pytest.fixture
def evaluate(pair: Pair, tmp_path: Path, bass_command: Command) -> Callable[[], Said]:
    data = tmp_path / "q.jsonl"
    data.write_text(json.dumps({"question": "1+1?", "answer": "#### 2"}) + "\n", "utf-8")
    options = ("--task", "gsm8k", "--data", str(data), "--output", str(tmp_path / "ev"))
    return lambda: bass_command(
        "eval", *pair.options[:4], *options, "-n", "3", "--max_new_tokens", "4"
    )


def test_an_evaluation_ends_where_its_folder_is_replaced(
    evaluate: Callable[[], Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = another_run(tmp_path / "ev")
    plain = evaluation_folder.Folder.add_samples
    monkeypatch.setattr(evaluation_folder.Folder, "add_samples", at_call(1, work, plain))
    said = evaluate()
    assert (said.status, REPLACED in said.err) == (2, True), said.err
    assert not list(tmp_path.glob("ev/*/samples.jsonl"))


@pytest.mark.parametrize(("limit", "value"), [("MOST_RUN_LINES", 20), ("LARGEST_RUN_BYTES", 4000)])
def test_a_cell_whose_lines_could_not_be_read_again_fails_alone(
    ablate: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(files, limit, value)
    said = ablate()
    summaries = RunFolder(tmp_path / "out").summaries()
    states = [summary.state for summary in summaries.values()]
    assert said.status == 2, said.err
    assert (len(states), "failed" in states) == (6, True)
    errors = [str(summary.error) for summary in summaries.values() if summary.state == "failed"]
    assert all("that cannot be read again" in error for error in errors), errors


def test_an_evaluation_ends_before_lines_that_could_not_be_read_again(
    evaluate: Callable[[], Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_RUN_LINES", 3)
    said = evaluate()
    assert (said.status, "that cannot be read again" in said.err) == (2, True), said.err
    assert list(files.file_lines(tmp_path / "ev" / "batched" / "samples.jsonl")) == []
