"""What is no regular file, or a link that leads elsewhere: one sentence within two seconds of
processor time.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bass.api.loading import Checkpoint
from bass.checkpoints.folder import INDEX, SINGLE
from bass.errors import CheckpointError, OptionError, RunFolderError
from bass.files import append, write_atomically
from bass.runs.prompts import read_prompts
from bass.runs.run_folder import RunFolder
from support.run_folders import write_run
from unit.checkpoints import Pair, Said
from unit.test_hostile_files import at_once

Command = Callable[..., Said]
pytestmark = pytest.mark.timeout(60)


def no_file(path: Path, kind: str) -> None:
    """In the place of a file, what would hang or fill the memory."""
    if path.is_file():
        path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, 1 << 40)


KINDS = ("pipe", "loop", "device", "folder", "terabyte")
NAMES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json",
    "chat_template.jinja", "additional_chat_templates/x.jinja", SINGLE, INDEX, "tokenizer.model",
    "vocab.json", "merges.txt",
)  # fmt: skip


def refusal(folder: Path) -> str:
    try:
        return str(Checkpoint.read(folder).eos)
    except CheckpointError as error:
        return str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_of_a_checkpoint_is_told_at_once(
    pair: Pair, tmp_path: Path, kind: str
) -> None:
    for name in NAMES:
        folder = pair.copy(tmp_path / name).target
        (folder / name).parent.mkdir(exist_ok=True)
        if name == INDEX:
            (folder / SINGLE).unlink()
        if name in ("tokenizer.model", "vocab.json", "merges.txt"):
            (folder / "tokenizer.json").unlink()
        if name == "merges.txt":
            (folder / "vocab.json").write_text('{"a": 0}')
        no_file(folder / name, kind)
        with at_once():
            said = refusal(folder)
        # a link that leads nowhere is as good as no file
        assert said.endswith(".") or kind == "loop", name


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_of_a_user_s_is_told_at_once(
    bass_command: Command, tmp_path: Path, kind: str
) -> None:
    place = tmp_path / "place.yaml"
    no_file(place, kind)
    for arguments in (
        ["generate", "--file", str(place)],
        ["generate", "--config", str(place), "x"],
        ["ablate", str(place)],
        ["report", str(place)],
    ):
        with at_once():
            said = bass_command(*arguments)
        assert (said.status, said.out) == (2, ""), said
        assert said.err.count("\n") == 1
    with at_once(), pytest.raises(OptionError, match="cannot be read"):
        read_prompts(str(place))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_of_a_run_is_told_at_once(
    bass_command: Command, tmp_path: Path, kind: str
) -> None:
    run = write_run(tmp_path / "run", batches=(1,), repeats=1)
    cell = run.cell_folder(run.cells[0].id)
    files = [run.path / "manifest.json", cell / "steps.jsonl", cell / "requests.jsonl"]
    # which need not be there
    for path in files + (
        [] if kind == "loop" else [run.path / "texts.json", cell / "summary.json"]
    ):
        kept = path.rename(tmp_path / "kept") if path.exists() else None
        no_file(path, kind)
        with at_once():
            said = bass_command("report", str(run.path))
        assert said.status == 2, (path, said)
        assert said.err.count("\n") == 1
        path.rmdir() if kind == "folder" else path.unlink()
        if kept is not None:
            kept.rename(path)


@pytest.mark.parametrize(
    "cell", ["../../x", "..", ".", "/etc", "a/b", "a\0b", "a\\b", "\x1b", "", ".hidden", "x" * 1000]
)
def test_a_cell_s_id_leads_nowhere_else(bass_command: Command, tmp_path: Path, cell: str) -> None:
    run = write_run(tmp_path / "deep" / "run", batches=(1,), repeats=1)
    manifest = json.loads((run.path / "manifest.json").read_text())
    manifest["cells"][0]["id"] = cell
    (run.path / "manifest.json").write_text(json.dumps(manifest))
    said = bass_command("report", str(run.path))
    assert said.status == 2
    assert "is no name of a folder" in said.err
    with pytest.raises(RunFolderError, match="is no name of a folder"):
        RunFolder(run.path).summary(cell)


def test_links_of_a_run_lead_nowhere_else(bass_command: Command, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", batches=(1,), repeats=1)
    for i, place in enumerate(
        (
            "cells",
            f"cells/{other.cells[0].id}",
            f"cells/{other.cells[0].id}/steps.jsonl",
            "manifest.json",
        )
    ):
        run = write_run(tmp_path / str(i), batches=(1,), repeats=1)
        (run.path / place).rename(tmp_path / f"kept{i}")
        (run.path / place).symlink_to(other.path / place)
        said = bass_command("report", str(run.path))
        assert said.status == 2, place
        assert "is a symbolic link" in said.err


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    for name in ("report.html", "report.html.part", "steps.jsonl"):
        (tmp_path / name).symlink_to(victim)
    write_atomically(tmp_path / "report.html", "page")
    with pytest.raises(OSError, match="symbolic links"):
        append(tmp_path / "steps.jsonl", "line")
    assert victim.read_text() == "kept"
    assert (tmp_path / "report.html").read_text() == "page"
    assert not (tmp_path / "report.html").is_symlink()
