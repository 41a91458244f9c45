"""The problems at the embedded pair's level: the same for a seed, solved by their solutions."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bass.evaluation.sandbox import Sandbox
from bass.evaluation.small_problems import small_problems
from bass.evaluation.tasks import read_problems
from bass.prompts.published import DATA
from unit.checkpoints import Said
from unit.test_package import ROOT, TRAINED

BassCommand = Callable[..., Said]


def test_problems_are_the_same_for_a_seed() -> None:
    drawn = list(small_problems(2, 0))
    assert drawn == list(small_problems())
    assert drawn != list(small_problems(2, 1))
    assert len({one["prompt"] for one in drawn}) == len(drawn) == 106


def test_they_are_a_task_and_a_file_of_them_is_the_same_problems(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    script = ROOT / "examples/widen_pair/problems.py"
    subprocess.run([sys.executable, script, "--out", path], check=True, capture_output=True)
    assert read_problems("small-problems") == read_problems("humaneval", path)


@pytest.mark.skipif(not TRAINED, reason="the embedded pair is not there")
def test_the_command_needs_no_file(tmp_path: Path, bass_command: BassCommand) -> None:
    output = tmp_path / "run"
    said = bass_command(
        "eval", "--task", "small-problems", "--output", str(output), "--limit", "2", "-n", "2",
        "--max_new_tokens", "16", "--json",
    )  # fmt: skip
    assert said.status == 0, said.err
    assert json.loads(said.out)["problems"] == 2
    assert json.loads((output / "manifest.json").read_text())["config"]["task"] == "small-problems"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["small-problems", "--data", "a.jsonl"], "built in, and `--data a.jsonl` names others"),
        (["humaneval"], "`--data` is missing: name the data"),
    ],
)
def test_a_file_is_either_needed_or_refused(
    options: list[str],
    says: str,
    tmp_path: Path,
    bass_command: BassCommand,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(DATA, raising=False)
    said = bass_command("eval", "--output", str(tmp_path / "run"), "--task", *options)
    assert (said.status, says in said.err) == (2, True), said.err
    assert not (tmp_path / "run").exists()


@pytest.mark.nightly
def test_the_solutions_pass_and_an_empty_completion_does_not() -> None:
    read = read_problems("small-problems")[::2]
    programs = [one.program(text) for one in read for text in (one.solution, " pass\n")]
    passed = [Sandbox().check(program).passed for program in programs]
    assert passed == [True, False] * len(read)
