"""The options of `bass ablate`, files that are no configs, and checkpoints that cannot serve."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from bass.errors import BassError
from bass.experiments.checkpoints import check_checkpoints
from bass.experiments.config import plan
from bass.runs.settings import DEFAULTS
from unit.checkpoints import Pair, Said

Command = Callable[..., Said]


def test_the_command_line_overrides_a_config(bass_command: Command, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        (
            "base: {policy: fixed}\naxes: {batch: [1, 2], seed: [1]}\nquick: {base: {repeats: 1}, "
            "axes: {seed: null}}\n"
        ),
        "utf-8",
    )
    said = bass_command(
        "ablate",
        str(file),
        "--quick",
        "--policy.k",
        "3",
        "--base.temperature=1e-1",
        "--axes.batch",
        "[4]",
        "--max-new-tokens",
        "9",
        "--print-config",
    )
    assert said.status == 0, said.err
    made = yaml.safe_load(said.out)
    assert made["axes"] == {"batch": [4]}
    base = {
        "policy": {"class_path": "fixed", "init_args": {"k": 3}},
        "temperature": 0.1,
        "max_new_tokens": 9,
        "repeats": 1,
    }
    assert made["base"] == DEFAULTS | base
    assert made["name"] == "mine"


REFUSED = {
    "an unknown option": (["--tempreture", "1"], "Unknown option `--tempreture`"),
    "an unknown setting": (["--base.tempreture", "1"], "Unknown option `--base.tempreture`"),
    "another library's name": (
        ["--max-tokens", "4"],
        "Unknown option `--max-tokens`: give `--max-new-tokens` (most",
    ),
    "another library's name for the base run": (
        ["--base.n", "4"],
        "Unknown setting `n`: give `samples` (of each",
    ),
    "another library's name for an axis": (
        ["--axes.n", "[4]"],
        "In `axes.n`: Unknown key `n`: give `samples` (of each",
    ),
    "a short name of `bass generate`": (
        ["-n", "4"],
        "Unknown option `-n`: give `--samples` (of each",
    ),
    "no value": (["--batch"], "`--batch` lacks its value"),
    "an axis": (
        ["--batch", "2"],
        "`batch` is an axis of the config, and would be overridden by it: give `--axes.batch [2]`",
    ),
    "no quick part": (["--quick"], "The config has no `quick` part"),
    "a wrong kind": (["--seed", "x"], "`seed: 'x'` is of the wrong type"),
    "no YAML": (["--stop", "[a"], "`--stop [a` is not YAML"),
    "a cluster without Ray": (["--address", "x"], "`--address` needs a Ray cluster"),
    "less than no processor": (
        ["--executor", "ray", "--cpus_per_cell", "-1"],
        "`--cpus-per-cell -1` must be a fraction below 1",
    ),
    "a GPU and a half": (
        ["--executor", "ray", "--gpus_per_cell", "1.5"],
        "`--gpus-per-cell 1.5` must be a fraction below 1, or a whole number",
    ),
    "another executor": (["--executor", "slurm"], "is of the wrong type"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_do_not_fit_are_refused(
    bass_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("axes: {batch: [1]}", encoding="utf-8")
    argv, words = REFUSED[case]
    said = bass_command("ablate", "mine.yaml", *argv)
    assert (said.status, said.out) == (2, "")
    assert re.fullmatch(r"bass: [^\n]+\.\n", said.err), said.err
    assert words in said.err
    assert not Path("runs").exists()


def test_files_that_are_no_configs_are_refused(bass_command: Command, tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- a", encoding="utf-8")
    (tmp_path / "no.yaml").write_text("a: [", encoding="utf-8")
    for name, words in (
        ("paper-latncy", "Unknown config `paper-latncy`. Did you mean `paper-latency`"),
        (str(tmp_path / "absent.yaml"), "cannot be read (No such file"),
        (str(tmp_path), "cannot be read (it is a folder, not a regular file)"),
        (str(tmp_path / "list.yaml"), "which is no config"),
        (str(tmp_path / "no.yaml"), "is not YAML"),
    ):
        said = bass_command("ablate", name)
        assert said.status == 2
        assert words in said.err


CHECKPOINTS = {
    "none": ({"target": "/nowhere", "draft": "/nowhere"}, "/nowhere"),
    "no draft": ({}, "needs a draft: give `--draft`"),
    "too long": ({"max_new_tokens": 64, "drafter": "ngram"}, "exceeds the context of 64"),
    "too many layers": (
        {"drafter": {"class_path": "self", "init_args": {"layers": 2}}},
        "needs a larger target than one of 2",
    ),
}


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_checkpoints_that_cannot_serve_are_refused_before_anything_runs(
    pair: Pair, case: str
) -> None:
    said, words = CHECKPOINTS[case]
    base = {"target": str(pair.target), "prompts": ["def double("], "max_new_tokens": 8} | said
    with pytest.raises(BassError) as caught:
        check_checkpoints(plan({"name": "x", "base": base}))
    assert words in str(caught.value)
