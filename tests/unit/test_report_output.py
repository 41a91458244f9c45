"""The files that `bass report` writes replace pages and plots, and nothing else."""

import os
import stat
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from bass.files import write_atomically
from bass.report import drawing
from support.evaluation_folders import write_evaluation
from support.matrix import night
from support.run_folders import write_run
from unit.checkpoints import Said

Command = Callable[..., Said]


def special(path: Path, kind: str) -> tuple[int, int]:
    """Makes a node; returns its type and number."""
    if kind == "a named pipe":
        os.mkfifo(path)
    else:
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        except OSError:
            pytest.skip("only root may make a device")
    return node(path)


def node(path: Path) -> tuple[int, int]:
    return path.lstat().st_mode, path.lstat().st_ino


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_evaluation(
        tmp_path_factory.mktemp("evaluations") / "one", ("batched",), problems=3, budgets=(1.0,)
    )


@pytest.mark.parametrize("kind", ["a named pipe", "a device"])
def test_a_device_or_pipe_in_the_place_of_an_output_stays(
    kind: str, folder: Path, tmp_path: Path, bass_command: Command
) -> None:
    found = {name: special(tmp_path / name, kind) for name in ("node", "node.html", "plots")}
    (tmp_path / "link.html").symlink_to("node.html")
    for name, says in (
        ("node", "is no name of a page: give one that ends in .html"),
        ("node.html", f"(it is {kind}, not a regular file): name another file"),
        ("link.html", f"(it is {kind}, not a regular file): name another file"),
    ):
        said = bass_command("report", str(folder), "--output", str(tmp_path / name))
        assert (said.status, said.out, said.err.count("\n")) == (2, "", 1)
        assert says in said.err
        with pytest.raises(OSError, match=f"it is {kind}"):
            write_atomically(tmp_path / name, "text")
    said = bass_command("report", str(folder), "--plots", str(tmp_path / "plots"))
    assert (said.status, "name a folder" in said.err) == (2, True)
    assert {name: node(tmp_path / name) for name in found} == found
    assert sorted(os.listdir(tmp_path)) == ["link.html", "node", "node.html", "plots"]


def test_a_pipe_in_the_place_of_a_plot_stays(
    folder: Path, tmp_path: Path, bass_command: Command
) -> None:
    plot = tmp_path / "budget-start.png"
    found = special(plot, "a named pipe")
    said = bass_command(
        "report", str(folder), "--output", str(tmp_path / "x.html"), "--plots", str(tmp_path)
    )
    assert (said.status, "it is a named pipe" in said.err, said.err.count("\n")) == (2, True, 1)
    assert node(plot) == found


@pytest.mark.parametrize("kind", [night("run"), "evaluation"])
def test_no_file_of_a_run_is_replaced_by_a_page(
    kind: str, tmp_path: Path, bass_command: Command
) -> None:
    path = tmp_path / "folder"
    if kind == "run":
        write_run(path, batches=(1,), repeats=1)
    else:
        write_evaluation(path, ("batched",), problems=3, budgets=(1.0,))
    (path / "lock").touch()
    before = {file: file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
    assert len(before) > 5
    for file in before:
        said = bass_command("report", str(path), "--output", str(file))
        assert (said.status, said.out, said.err.count("\n")) == (2, "", 1), file
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    for _ in range(2):  # its own page is replaced
        assert bass_command("report", str(path), "--plots", str(path / "plots")).status == 0
    assert (path / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_a_label_in_another_script_gives_no_warning() -> None:
    """The fonts are those of the reader's browser."""
    with drawing.style():
        figure, [ax] = drawing.new_figure()
        ax.set_title("日本")
    plot = drawing.Plot("a", "title", "caption", figure)
    with warnings.catch_warnings(action="error"):
        assert "日本" in plot.svg()
        assert plot.file("png")
