"""Folders of runs and evaluations that somebody filled with links: nothing outside of them is
written, whatever is linked.
"""

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bass.analysis.evaluated import read_evaluation
from bass.errors import BassError
from bass.runs.evaluation_folder import Sample, Score, digest, opened
from bass.runs.run_folder import RunFolder
from unit.checkpoints import Pair, Said

Command = Callable[..., Said]
SAMPLE = Sample("t", 0, "text", [1], -1.0, "eos", 1.0, 1.0)


def evaluate(path: Path) -> None:
    with opened(path, {"task": "gsm8k"}, {}) as folder:
        folder.samples("batched")
        folder.scores("batched")
        folder.add_samples("batched", "t", [SAMPLE])
        folder.add_score("batched", Score("t", 0, digest(SAMPLE.text), 1.0))
        folder.finish({"methods": {}})


def tree(path: Path) -> dict[str, bytes | None]:
    return {
        str(one.relative_to(path)): one.read_bytes() if one.is_file() else None
        for one in path.rglob("*")
    }


def linked(sound: Path, made: Path, place: str, dangling: bool) -> tuple[Path, Path]:
    """A copy of a folder in which `place` is a link that leads out of it; and the folder that it
    leads to, without its end where `dangling`.
    """
    folder, outside = made / "folder", made / "outside"
    shutil.copytree(sound, folder)
    outside.mkdir(parents=True)
    if dangling:
        target = folder / place
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    else:
        (folder / place).rename(outside / "end")
    (folder / place).symlink_to(outside / "end")
    return folder, outside


@pytest.mark.parametrize("dangling", [False, True], ids=["to what is there", "dangling"])
def test_an_evaluation_writes_nothing_through_a_link(tmp_path: Path, dangling: bool) -> None:
    sound = tmp_path / "sound"
    evaluate(sound)
    places = [str(path.relative_to(sound)) for path in sorted(sound.rglob("*"))]
    assert {"lock", "batched", "batched/samples.jsonl"} <= {*places}
    for i, place in enumerate(places):
        folder, outside = linked(sound, tmp_path / str(i), place, dangling)
        before = tree(outside)
        with contextlib.suppress(BassError):
            evaluate(folder)
        assert tree(outside) == before, place
        if place != "summary.json":  # which is written again
            with pytest.raises(BassError, match=r"symbolic link.*\.$"):
                evaluate(folder)
        if not dangling and place != "lock":
            with pytest.raises(BassError, match=r"symbolic link.*\.$"):
                read_evaluation(linked(sound, tmp_path / f"read{i}", place, dangling)[0])


def test_an_ablation_writes_nothing_through_a_link(
    bass_command: Command, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base = {"target": str(pair.target), "draft": str(pair.draft), "prompts": ["def f("]}
    base |= {"max_new_tokens": 2, "repeats": 1, "warm_up": False}
    (tmp_path / "c.yaml").write_text(json.dumps({"base": base}), encoding="utf-8")
    sound = tmp_path / "sound"
    assert bass_command("ablate", "c.yaml", "--output", str(sound)).status == 0
    [cell] = RunFolder(sound).cells
    home = f"cells/{cell.id}"
    (sound / home / RunFolder.SUMMARY).unlink()  # so that there is something to do
    places = {"cells": True, home: False, f"{home}/steps.jsonl": False, "lock": True}
    for place, dangling in (places | {"manifest.json": False}).items():
        folder, outside = linked(sound, tmp_path / "other" / place, place, dangling)
        before = tree(outside)
        said = bass_command("ablate", "c.yaml", "--output", str(folder))
        assert tree(outside) == before, place
        assert (said.status, "is a symbolic link" in said.err) == (2, True), (place, said.err)
