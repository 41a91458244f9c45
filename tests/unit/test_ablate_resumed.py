"""`bass ablate` goes on with a run that was interrupted, and names what it cannot go on with."""

import fcntl
import json
import os
import re
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bass.runs.records import EndLine
from bass.runs.run_folder import RunFolder
from support.evaluation_folders import write_evaluation
from unit.ablations import texts, tokens
from unit.checkpoints import Said

Command = Callable[..., Said]

BROKEN = """
from dataclasses import dataclass
from bass.policies import Fixed
from bass.interfaces import DraftLengthPolicy

@dataclass(frozen=True)
class Broken(DraftLengthPolicy):
    max_length: int = 4
    def init(self, batch_size): return batch_size
    def lengths(self, state): raise KeyError("lost")
    def update(self, state, feedback): return state
"""


def refused(said: Said, words: str) -> None:
    assert said.status == 2
    assert re.fullmatch(r"bass: [^\n]+\.\n", said.err), said.err
    assert words in said.err


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["requests.jsonl", "steps.jsonl"])
def test_a_finished_cell_without_its_lines_is_named_and_runs_again_once_deleted(
    ablate: Command, copied_run: Path, bass_command: Command, name: str
) -> None:
    cell = copied_run / "cells" / "0000-plain-padded"
    (cell / name).write_bytes(b"".join((cell / name).read_bytes().splitlines(True)[:-1]))
    for path in copied_run.glob("cells/*/against_plain.json"):
        path.unlink()
    words = (
        "when its cell ended: restore it, or delete the cell's folder and give the run's command"
    )
    refused(ablate(), words)
    refused(bass_command("report", str(copied_run)), words)
    shutil.rmtree(cell)
    assert ablate().status == 0
    assert (
        "speedup_tokens_per_second" in RunFolder(copied_run).summaries()["0002-bass-padded"].metrics
    )


def unfinished(copied_run: Path, cell: str) -> Path:
    """The cell as a process leaves it that is ended in its last repeat."""
    folder = copied_run / "cells" / cell
    (folder / "summary.json").unlink()
    path = folder / "requests.jsonl"
    path.write_text(path.read_text().rpartition('{"repeat": 3, "end"')[0], encoding="utf-8")
    return folder


def test_a_cell_goes_on_with_its_first_unfinished_repeat(
    ablate: Command, copied_run: Path, whole_run: Path
) -> None:
    before = texts(copied_run)
    folder = unfinished(copied_run, "0003-bass-split")
    asked = folder.joinpath("requests.jsonl").read_text().count('"tokens"')
    assert asked == 8  # the last repeat's requests are there, its end is not
    assert ablate().status == 0
    assert tokens(copied_run) == tokens(whole_run)
    after = texts(copied_run)
    changed = {name for name in before if before[name] != after[name]}
    files = (
        "requests.jsonl",
        "steps.jsonl",
        "conditions.jsonl",
        "summary.json",
        "against_plain.json",
    )
    assert changed == {f"cells/0003-bass-split/{name}" for name in files}
    # the ended repeats are those of the first process, to the byte
    for name in ("requests.jsonl", "steps.jsonl"):
        old, new = before[f"cells/0003-bass-split/{name}"], after[f"cells/0003-bass-split/{name}"]
        assert [x for x in old.splitlines() if b'"repeat": 3' not in x] == [
            x for x in new.splitlines() if b'"repeat": 3' not in x
        ]


@pytest.mark.parametrize("name", ["requests.jsonl", "steps.jsonl"])
def test_a_line_that_was_cut_by_a_crash_is_dropped(
    ablate: Command, copied_run: Path, whole_run: Path, name: str
) -> None:
    folder = unfinished(copied_run, "0002-bass-padded")
    (folder / name).write_bytes((folder / name).read_bytes()[:-30])
    assert ablate().status == 0
    assert tokens(copied_run) == tokens(whole_run)
    assert RunFolder(copied_run).lines("0002-bass-padded").notes == []


def test_a_process_that_ended_before_the_summary_repeats_nothing(
    ablate: Command, copied_run: Path
) -> None:
    before = texts(copied_run)
    (copied_run / "cells/0001-plain-split/summary.json").unlink()
    assert ablate().status == 0
    after = texts(copied_run)
    held = {f"cells/{cell}/against_plain.json" for cell in ("0003-bass-split", "0005-ngram-split")}
    assert {name for name in before if before[name] != after[name]} == {
        "cells/0001-plain-split/summary.json",
        *held,
    }
    assert all(
        json.loads(before[name])["repeats"] == json.loads(after[name])["repeats"] for name in held
    )


@pytest.mark.parametrize("cut", [0, 30])
def test_the_drafts_of_a_repeat_that_did_not_end_are_written_anew(
    ablate: Command, copied_run: Path, whole_run: Path, cut: int
) -> None:
    folder = copied_run / "cells/0002-bass-padded"
    (folder / "summary.json").unlink()
    for name, mark in (("requests.jsonl", '{"repeat": 0, "end"'), ("steps.jsonl", "")):
        (folder / name).write_text(
            (folder / name).read_text().partition(mark)[0] if mark else "", encoding="utf-8"
        )
    drafts = (folder / "drafts.jsonl").read_bytes()
    (folder / "drafts.jsonl").write_bytes(drafts[: len(drafts) - cut])
    assert ablate().status == 0
    assert (folder / "drafts.jsonl").read_bytes() == drafts
    assert tokens(copied_run) == tokens(whole_run)


def test_a_damaged_line_is_told_and_kept(ablate: Command, copied_run: Path) -> None:
    folder = unfinished(copied_run, "0002-bass-padded")
    lines = (folder / "steps.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "steps.jsonl").write_bytes(lines[0] + b"garbage\n" + b"".join(lines[1:]))
    before = texts(copied_run)
    refused(ablate(), "steps.jsonl, line 2 is damaged")
    assert texts(copied_run) == before


def test_a_cell_that_fails_is_recorded_and_the_others_run(ablate: Command, tmp_path: Path) -> None:
    (tmp_path / "broken_policy.py").write_text(BROKEN, encoding="utf-8")
    axes = (
        "--axes.method",
        "null",
        "--axes.cache",
        "null",
        "--axes.policy",
        "[broken_policy:Broken, fixed]",
    )
    said = ablate(*axes)
    assert said.status == 2
    assert "0000-Broken FAILED: KeyError: 'lost'" in said.err
    summaries = RunFolder(tmp_path / "out").summaries()
    assert {cell: (s.state, s.error) for cell, s in summaries.items()} == {
        "0000-Broken": ("failed", "KeyError: 'lost'"),
        "0001-fixed": ("done", None),
    }
    assert "broken_policy.py" in (tmp_path / "out/cells/0000-Broken/error.txt").read_text(
        encoding="utf-8"
    )
    before = texts(tmp_path / "out")
    assert ablate(*axes).status == 2  # it is not tried again, and not forgotten
    assert texts(tmp_path / "out") == before
    (tmp_path / "broken_policy.py").write_text(
        BROKEN.replace('raise KeyError("lost")', "import numpy; return numpy.ones(state, int)")
    )
    sys.modules.pop("broken_policy")
    assert ablate(*axes, "--retry_failed").status == 0


def test_a_second_process_is_refused(ablate: Command, copied_run: Path) -> None:
    with (copied_run / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused(ablate(), f"`out` is being written by process {os.getpid()} on")
    assert ablate().status == 0


OTHER = {
    "settings": (["--seed", "4"], "`base.seed` is 3 in the folder and 4 in the config"),
    "axes": (
        ["--axes.cache", "[padded]"],
        "`axes.cache` is ['padded', 'split'] in the folder and ['padded'] in the config",
    ),
}


@pytest.mark.parametrize("case", OTHER)
def test_the_folder_of_another_run_is_refused(ablate: Command, copied_run: Path, case: str) -> None:
    argv, words = OTHER[case]
    before = texts(copied_run)
    refused(ablate(*argv), words)
    assert texts(copied_run) == before


VERSIONS = {
    "format": ({"format": 2}, "has the format version 2, and this `bass` reads versions 4 and 5"),
    "bass": ({"bass": "0.0.1"}, "(bass was 0.0.1 and is "),
    "device": ({"device": "a GPU"}, "the device was a GPU and is "),
}


@pytest.mark.parametrize("case", VERSIONS)
def test_the_folder_of_another_version_is_refused(
    ablate: Command, copied_run: Path, case: str
) -> None:
    change, words = VERSIONS[case]
    manifest = json.loads((copied_run / "manifest.json").read_text())
    (copied_run / "manifest.json").write_text(json.dumps(manifest | change))
    before = texts(copied_run)
    refused(ablate(), words)
    assert texts(copied_run) == before


def test_a_folder_that_cannot_be_written_is_told(ablate: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(ablate("--output", "file/run"), "cannot be written (Not a directory)")
    refused(
        ablate("--output", "file"), "`file` exists and is no folder: name another with `--output`."
    )
    write_evaluation(tmp_path / "evaluation", ("plain",), problems=2)
    refused(
        ablate("--output", "evaluation"),
        "manifest.json is that of an evaluation, which `bass eval` wrote, and not of a run of "
        "`bass ablate`: name another folder.",
    )
    refused(
        ablate("--output", "/proc/run"),
        "cannot be written (No such file or directory): name another folder with `--output`",
    )


@contextmanager
def full(size: int) -> Iterator[None]:
    """No file may become larger than this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [pytest.param(100, marks=pytest.mark.nightly), 6000])
def test_a_full_disk_is_told_and_nothing_is_lost(
    ablate: Command, tmp_path: Path, whole_run: Path, size: int
) -> None:
    with full(size):
        said = ablate()
    assert said.status == 2
    assert re.search(
        r"cannot be written \(File too large\): free disk space .*finished results are kept",
        said.err,
    )
    folder = RunFolder(tmp_path / "out")
    ended = {c.id: folder.lines(c.id).repeats for c in folder.cells} if size > 3000 else {}
    before = texts(tmp_path / "out")
    assert ablate().status == 0
    assert tokens(tmp_path / "out") == tokens(whole_run)
    after = texts(tmp_path / "out")
    for cell, repeats in ended.items():
        name = f"cells/{cell}/requests.jsonl"
        marks = [EndLine(repeat).to_json().encode() for repeat in repeats]
        assert all(mark in after[name].splitlines() for mark in marks)
        until = before.get(name, b"").rfind(marks[-1]) if marks else 0
        assert after[name][:until] == before.get(name, b"")[:until]
