"""Ablations whose process is killed, at any moment: what was finished stays, what was not is done
once.
"""

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bass.errors import install
from bass.runs.drafts import DRAFTS
from bass.runs.run_folder import RunFolder
from unit.checkpoints import Pair

CONFIG = """
name: killed
base: {prompts: [def f(, "for item"], batch: 2, max_new_tokens: 6, repeats: 2, temperature: 0.8,
       warm_up: false}
axes: {policy: [fixed, hf-heuristic], cache: [padded, split]}
"""
# A process that has loaded everything, and becomes `bass ARGUMENTS` for each line that it reads:
# starting Python takes seconds.
BECOME = """
import json, os, sys
import bass.cli.ablate, torch
from bass.cli import main
torch.set_num_threads(1)
for line in iter(sys.stdin.readline, ""):
    if (pid := os.fork()) == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os._exit(main(json.loads(line)))
    print(pid, flush=True)
    sys.stdin.readline()  # it is not forgotten before it was killed
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
# It kills its own process once, in the third step.
KILLER = """
import os, pathlib, signal
from dataclasses import dataclass
import numpy as np
from bass.interfaces import DraftLengthPolicy

@dataclass(frozen=True)
class Killer(DraftLengthPolicy):
    mark: str
    max_length: int = 2
    def init(self, batch_size): return np.zeros(batch_size)
    def lengths(self, state): return np.full(len(state), 2, dtype=np.int32)
    def update(self, state, feedback):
        if state[0] == 2 and not pathlib.Path(self.mark).exists():
            pathlib.Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return state + 1
"""
Become = Callable[[list[str], float | None], int]


@pytest.fixture
def become(tmp_path: Path) -> Iterator[Become]:
    """`bass ARGUMENTS` in a process of its own, killed after so many seconds; its exit status."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        [sys.executable, "-c", BECOME], cwd=tmp_path, env=environment, **pipes
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def run(arguments: list[str], seconds: float | None) -> int:
            process.stdin.write(json.dumps(arguments) + "\n")
            process.stdin.flush()
            pid = int(process.stdout.readline())
            if seconds is not None:
                time.sleep(seconds)
                os.kill(pid, signal.SIGKILL)
            process.stdin.write("\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield run
        process.stdin.close()


def finished(folder: Path) -> dict[str, bytes]:
    """What must not change any more: summaries, and the lines of repeats that have ended."""
    if not (folder / "manifest.json").exists():
        return {}
    run, found = RunFolder(folder), {}
    for cell in run.cells:
        path = run.cell_folder(cell.id)
        if (path / run.SUMMARY).exists():
            found[f"{cell.id} summary"] = (path / run.SUMMARY).read_bytes()
        for repeat in run.lines(cell.id).repeats:
            for name in (run.STEPS, run.REQUESTS, DRAFTS):
                lines = [
                    line
                    for line in (path / name).read_bytes().splitlines()
                    if json.loads(line)["repeat"] == repeat
                ]
                found[f"{cell.id} {name} {repeat}"] = b"\n".join(lines)
    return found


def tokens(folder: Path) -> dict[str, list[tuple[int, int, list[int]]]]:
    run = RunFolder(folder)
    return {
        cell.id: [(line.repeat, line.request, line.tokens) for line in run.lines(cell.id).requests]
        for cell in run.cells
    }


@pytest.mark.nightly
@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.nightly)])
def test_a_run_that_is_killed_at_any_moment_loses_nothing_and_repeats_nothing(
    pair: Pair, tmp_path: Path, become: Become, kills: int
) -> None:
    (tmp_path / "killed.yaml").write_text(CONFIG, encoding="utf-8")
    options = ["--target", str(pair.target), "--draft", str(pair.draft)]

    def ablate(folder: str, seconds: float | None) -> int:
        return become(["ablate", "killed.yaml", "--output", folder, *options], seconds)

    began = time.perf_counter()
    assert ablate("whole", None) == 0, (tmp_path / "said").read_text()
    takes = time.perf_counter() - began
    draw, done, folder = random.Random(kills), 0, 0
    while done < kills:
        before = finished(tmp_path / str(folder))
        status = ablate(str(folder), draw.uniform(0.05, 0.7) * takes)
        assert status in (-signal.SIGKILL, 0), (tmp_path / "said").read_text()
        done += status != 0
        after = finished(tmp_path / str(folder))
        assert {name: after.get(name) for name in before} == before
        folder += status == 0
    for i in range(folder + 1):
        assert ablate(str(i), None) == 0, (tmp_path / "said").read_text()
        assert tokens(tmp_path / str(i)) == tokens(tmp_path / "whole")
        assert set(finished(tmp_path / str(i))) == set(finished(tmp_path / "whole"))


RAY = importlib.util.find_spec("ray") is not None


@pytest.mark.nightly  # Ray itself takes half a minute to start
@pytest.mark.skipif(not RAY, reason=f"Ray is not installed: {install('ray')}")
def test_on_a_ray_cluster_a_cell_goes_on_when_its_worker_is_killed(
    pair: Pair, tmp_path: Path
) -> None:
    (tmp_path / "killer.py").write_text(KILLER, encoding="utf-8")
    killer = {"class_path": "killer.Killer", "init_args": {"mark": str(tmp_path / "mark")}}
    base = {
        "prompts": ["def f("],
        "batch": 2,
        "max_new_tokens": 12,
        "repeats": 2,
        "target": str(pair.target),
        "draft": str(pair.draft),
    }
    config = {
        "name": "x",
        "base": base,
        "axes": {"policy": {"fixed": "fixed", "killer": killer, "bass": "bass"}},
    }
    (tmp_path / "x.yaml").write_text(json.dumps(config), encoding="utf-8")
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": str(tmp_path),
    }
    for output, more in (("there", ["--executor", "ray"]), ("here", [])):
        command = [sys.executable, "-m", "bass", "ablate", "x.yaml", "--output", output, *more]
        said = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert said.returncode == 0, said.stdout + said.stderr
        assert (tmp_path / "mark").exists()  # the worker was killed, once
    assert tokens(tmp_path / "there") == tokens(tmp_path / "here")
    assert {summary.state for summary in RunFolder(tmp_path / "there").summaries().values()} == {
        "done"
    }
