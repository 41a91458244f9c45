"""In which order the methods of an evaluation sample, and what is noted of the machine."""

import json
from pathlib import Path
from typing import Any

import pytest

from bass.analysis.evaluated import read_evaluation
from bass.report.evaluation import page
from bass.runs.evaluation_folder import CONDITIONS, Folder, opened, read_conditions
from support.evaluation_folders import machine, write_evaluation
from unit.checkpoints import Pair
from unit.test_eval_runs import BassCommand, arguments
from unit.test_report import Text

METHODS = ("batched", "plain", "single")
NOISY = "The machine was noisy: a fixed matrix product, timed before each of 20 requests"
UNKNOWN = "The state of the machine was not recorded"


def test_methods_take_turns_problem_by_problem_also_after_an_interruption(
    pair: Pair, tmp_path: Path, bass_command: BassCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [*arguments(pair, tmp_path, count=4), "--methods", f"[{','.join(METHODS)}]"]
    add, order = Folder.add_samples, list[tuple[str, str]]()

    def run(most: int) -> None:
        before = len(order)

        def noted(folder: Folder, method: str, task_id: str, *rest: Any) -> None:
            if len(order) - before == most:
                raise KeyboardInterrupt
            add(folder, method, task_id, *rest)
            order.append((method, task_id))

        monkeypatch.setattr(Folder, "add_samples", noted)
        said = bass_command(*asked)
        assert said.status == (0 if most == 12 else 130), said.err

    for most in (2, 5, 12):
        run(most)
    rounds = [[m for m, task in order if task == f"GSM8K/{i}"] for i in range(4)]
    assert [task for _, task in order] == [f"GSM8K/{i}" for i in range(4) for _ in METHODS]
    assert rounds == [[*METHODS[i % 3 :], *METHODS[: i % 3]] for i in range(4)]
    for method in METHODS:
        assert [line.repeat for line in read_conditions(tmp_path / "out", method)] == [0, 1, 2, 3]


@pytest.mark.nightly
def test_a_noisy_or_unknown_machine_is_named_before_any_figure(
    tmp_path: Path, bass_command: BassCommand
) -> None:
    methods = METHODS[:2]
    quiet, noisy, unknown = (
        write_evaluation(tmp_path / name, methods, problems=10, products=products)
        for name, products in (("quiet", (0.01,)), ("noisy", (0.01, 0.02)), ("unknown", ()))
    )
    for folder, words in ((quiet, None), (noisy, NOISY), (unknown, UNKNOWN)):
        read = read_evaluation(folder)
        assert [note.startswith(str(words)) for note in read.notes] == [True] * (words is not None)
        html, _, told = page(read)
        assert (words is None) or told[0].startswith(words)
        assert (words is None) or words in Text(html).words
        said = bass_command("report", str(folder))
        assert said.out.startswith(words or "Within"), said.out
    with (noisy / "plain" / CONDITIONS).open("a") as file:
        file.write("nonsense\n")
    said = bass_command("report", str(noisy))
    assert (said.status, "Line 11 of" in said.err, said.err.count("\n")) == (2, True, 1)


def test_the_state_of_the_machine_is_that_of_the_last_samples_of_each_problem(
    tmp_path: Path,
) -> None:
    path = write_evaluation(tmp_path / "out", ("batched",), problems=2)
    file = path / "batched" / CONDITIONS
    file.write_bytes(file.read_bytes()[:-1])  # as after a crash
    manifest = json.loads((path / "manifest.json").read_text())
    with opened(path, manifest["config"], {}) as folder:
        folder.samples("batched")
        for product in (0.02, 0.03):
            folder.add_conditions("batched", machine(2, product))
        folder.add_samples("batched", "P/2", [])
    found = read_conditions(path, "batched")
    assert [(line.repeat, line.product) for line in found] == [(0, 0.01), (2, 0.03)]


def test_another_platform_for_later_samples_is_named(tmp_path: Path) -> None:
    path = write_evaluation(tmp_path / "out", ("batched",), problems=2)
    config = json.loads((path / "manifest.json").read_text())["config"]
    for platform in ("Linux", "Another", "Another"):
        with opened(path, config, {"platform": platform}):
            pass
    note = "The platform was Linux for the first results and is Another for later ones."
    assert read_evaluation(path).notes == [note]
