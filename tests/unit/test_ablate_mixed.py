"""Results of another run, or of another cell, in the place of a cell's own."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from unit.checkpoints import Pair, Said

Command = Callable[..., Said]


@pytest.fixture
def runs(pair: Pair, tmp_path: Path, bass_command: Command) -> Path:
    """Two runs with the same cells, at other temperatures."""
    base = {
        "batch": 2, "max_new_tokens": 4, "repeats": 1, "warm_up": False, "policy": "fixed",
        "prompts": ["def f("], "samples": 2, "target": str(pair.target), "draft": str(pair.draft),
    }  # fmt: skip
    for name, temperature in (("a", 0.2), ("b", 1.5)):
        config = {"base": base | {"temperature": temperature}, "axes": {"policy.k": [0, 3]}}
        (tmp_path / f"{name}.yaml").write_text(json.dumps(config), encoding="utf-8")
        assert ablate(bass_command, tmp_path, name).status == 0
    return tmp_path


def ablate(bass_command: Command, runs: Path, name: str, *more: str) -> Said:
    return bass_command("ablate", str(runs / f"{name}.yaml"), "--output", str(runs / name), *more)


@pytest.mark.nightly
@pytest.mark.parametrize("source", ["b/cells/0001-policy.k-3", "a/cells/0000-policy.k-0"])
@pytest.mark.parametrize("finished", [True, False])
def test_results_of_another_cell_are_not_taken_for_a_cells_own(
    source: str, finished: bool, runs: Path, bass_command: Command
) -> None:
    cell = runs / "a" / "cells" / "0001-policy.k-3"
    shutil.rmtree(cell)
    shutil.copytree(runs / source, cell)
    if not finished:
        (cell / "summary.json").unlink()
    for said in (
        bass_command("report", str(runs / "a")),
        ablate(bass_command, runs, "a"),
        ablate(bass_command, runs, "a", "--redo_changed"),
    ):
        assert said.status == 2, said
        assert "holds results of another run or cell: delete it, and " in said.err
        assert len(said.err.splitlines()) == 1
    shutil.rmtree(cell)
    assert ablate(bass_command, runs, "a").status == 0
    assert bass_command("report", str(runs / "a")).status == 0


@pytest.mark.nightly
def test_a_run_that_moved_and_one_that_goes_on_are_their_own(
    runs: Path, bass_command: Command
) -> None:
    (runs / "a").rename(runs / "c")
    (runs / "c" / "cells" / "0001-policy.k-3" / "summary.json").unlink()
    (runs / "a.yaml").rename(runs / "c.yaml")
    text = (runs / "c" / "manifest.json").read_text(encoding="utf-8")
    (runs / "c" / "manifest.json").write_text(text.replace('"name": "a"', '"name": "c"'))
    assert ablate(bass_command, runs, "c").status == 0
    assert bass_command("report", str(runs / "c")).status == 0


def test_a_folder_of_other_files_is_left_as_it_is(
    pair: Pair, tmp_path: Path, bass_command: Command
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/texts.json").write_text("mine", encoding="utf-8")
    said = bass_command(
        "ablate",
        "paper-latency",
        *pair.options,
        "--prompts",
        "[a]",
        "--output",
        str(tmp_path / "out"),
        "--max-new-tokens",
        "4",
    )
    assert said.status == 2
    assert "holds files that are not of a run: name a new folder with `--output`" in said.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["texts.json"]
