"""Runs that are unfinished or cannot be reported, and the commands of the page."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bass.report.page import page
from support.run_folders import WORDS, write_run
from unit.checkpoints import Said
from unit.test_package import ROOT
from unit.test_report import Text

Command = Callable[..., Said]


def damaged(folder: Path, **changes: Any) -> Path:
    """A manifest with other values."""
    path = folder / "manifest.json"
    path.write_text(
        json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8"
    )
    return folder


def test_an_unfinished_run_is_reported_as_far_as_it_is(tmp_path: Path) -> None:
    part = write_run(tmp_path / "part", unfinished=[5], failed=[4], repeats=2)
    words = Text(page(part)[0]).words
    assert "The run is not finished: 1 of 6 cells have no figures yet." in words
    assert "1 of 6 cells failed" in words
    assert "Out of memory: lower the batch." in words


@pytest.mark.parametrize(
    "kind",
    [
        "no folder",
        "no run",
        "version",
        "empty",
        "all failed",
        "nothing in common",
        "plots of two",
        "no place",
    ],
)
def test_what_cannot_be_reported_is_said_in_one_sentence(
    kind: str, tmp_path: Path, bass_command: Command
) -> None:
    def written(**options: Any) -> str:
        return str(
            write_run(
                tmp_path / f"run{len(list(tmp_path.iterdir()))}",
                **({"batches": (1,), "policies": ("fixed",), "repeats": 1} | options),
            ).path
        )

    arguments, expected = {
        "no folder": lambda: ([str(tmp_path / "none")], "is no folder"),
        "no run": lambda: ([str(tmp_path)], "no run folder"),
        "version": lambda: ([str(damaged(Path(written()), format=1))], "format version 1"),
        "empty": lambda: ([written(unfinished=[0])], "none of its 1 cell is finished"),
        "all failed": lambda: ([written(failed=[0])], "Out of memory"),
        "nothing in common": lambda: (
            [written(), written(policies=("bass",))],
            "share no setting",
        ),
        "plots of two": lambda: ([written(), written(), "--plots", str(tmp_path / "p")], "--plots"),
        "no place": lambda: (
            [written(), "--output", str(tmp_path / "no/where.html")],
            "folder that does not exist",
        ),
    }[kind]()
    said = bass_command("report", *arguments)
    assert said.status == 2
    assert said.out == ""
    assert expected in said.err
    assert said.err.count("\n") == 1


def test_without_texts_and_drafts_the_page_still_has_its_picture(tmp_path: Path) -> None:
    bare = write_run(tmp_path / "bare", batches=(2,), policies=("bass",), repeats=1, watched=0)
    html = page(bare)[0]
    data = json.loads(
        re.findall(r'<script type="application/json" id="pictures">(.*?)</script>', html, re.S)[0]
    )
    assert data["pieces"] == {}
    assert "blanks" in data["pictures"][0]["note"]


@pytest.mark.nightly
def test_the_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bass_command: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for name in ("lengths", "lengths-again"):
        write_run(Path("runs") / name, batches=(1,), repeats=2)
    shell = "\n".join(
        re.findall(
            r"^```sh\n(.*?)^```", (ROOT / "docs/report.md").read_text(encoding="utf-8"), re.M | re.S
        )
    )
    commands = [shlex.split(line) for line in shell.splitlines()]
    assert len(commands) == 3
    for program, *arguments in commands:
        assert program == "bass"
        said = bass_command(*arguments)
        assert said.status == 0, said.err
    for file in ("runs/lengths/report.html", "lengths.html", "runs/lengths-again/comparison.html"):
        Text(Path(file).read_text(encoding="utf-8"))
    assert len(list(Path("plots").glob("*.svg"))) == len(list(Path("plots").glob("*.png"))) == 10
    assert len(WORDS) > 20
