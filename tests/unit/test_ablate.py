"""`bass ablate` as a command: plan, run, table, and what it says of states and mistakes."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from bass.api.options import ModelOptions
from bass.cli import ablate
from bass.cli.ablate import FAILED, INTERRUPTED
from bass.experiments import grid
from bass.experiments.cell import Worker
from bass.experiments.grid import plan
from bass.experiments.settings import CONFIGS, SETTINGS
from bass.sampling_params import SamplingParams
from unit.checkpoints import Pair, Said

Command = Callable[..., Said]
CONFIG: dict[str, Any] = {
    "about": "An example",
    "base": {
        "prompts": ["def f(", "for item"], "batch": 2, "max_new_tokens": 8, "repeats": 1,
        "policy": "fixed",
    },
    "axes": {"policy.k": [0, 2]},
    "quick": {"base": {"max_new_tokens": 4}},
}  # fmt: skip


@pytest.fixture
def here(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a config of a tiny pair."""
    monkeypatch.chdir(tmp_path)
    models = {"target": str(pair.target), "draft": str(pair.draft)}
    config = CONFIG | {"base": CONFIG["base"] | models}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return tmp_path


def test_a_config_is_planned_run_extended_and_tabled(here: Path, bass_command: Command) -> None:
    said = bass_command("ablate", "small.yaml", "--dry-run")
    assert (said.status, said.err) == (0, "")
    *lines, last = said.out.splitlines()
    assert [line.split()[1:] for line in lines] == [["new"], ["new"]]
    assert last == "2 of 2 cells to run into `runs/small`."
    assert not (here / "runs").exists()
    said = bass_command("ablate", "small.yaml")
    assert said.status == 0
    assert said.out.startswith("**An example**")
    assert said.out.splitlines()[4].startswith("| 0 | yes | 1 |")
    assert [line.split(":")[1].split(",")[0] for line in said.err.splitlines()[1:3]] == [
        " done"
    ] * 2
    said = bass_command("ablate", "small.yaml", "--axes.policy.k", "[0, 2, 3]", "--dry-run")
    *lines, last = said.out.splitlines()
    assert [line.split()[1:] for line in lines] == [["finished"], ["finished"], ["new"]]
    assert last == "1 of 3 cells to run into `runs/small`."
    said = bass_command("ablate", "small.yaml", "--axes.policy.k=[0, 2, 3]")
    assert said.err.startswith("1 of 3 cells to run")
    assert len(said.out.splitlines()) > 6


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("--base.temperature", "0.8"), {"temperature": 0.8}),
        (("--temperature=0.8",), {"temperature": 0.8}),
        (("--max-new-tokens", "3", "--policy.k", "5"), {"max_new_tokens": 3}),
        (("--stop", "['a', \"b\"]"), {"stop": ["a", "b"]}),
        (("--policy", "{class_path: bass, init_args: {start: 2}}"), {"batch": 2}),
    ],
)
def test_the_command_line_overrides_the_config(
    here: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], wanted: dict[str, Any]
) -> None:
    planned = []
    monkeypatch.setattr(grid, "plan", lambda raw: planned.append(raw) or plan(raw))
    assert ablate.run(["small.yaml", "--axes.policy.k", "null", *words, "--dry-run"]) == 0
    [cell] = plan(planned[0]).cells
    assert {name: getattr(cell.settings, name) for name in wanted} == wanted


def test_quick_applies_its_part_into_a_folder_of_its_own(here: Path, bass_command: Command) -> None:
    said = bass_command("ablate", "small.yaml", "--quick", "--dry-run")
    assert said.out.splitlines()[-1] == "2 of 2 cells to run into `runs/small-quick`."


def test_failures_and_interruptions_have_their_status(
    here: Path, bass_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Worker, cell: Any, *_: Any) -> None:
        if cell.labels["policy.k"] == 2:
            raise raised[0]

    raised: list[BaseException] = [KeyboardInterrupt()]
    monkeypatch.setattr(Worker, "_repeat", fails)
    said = bass_command("ablate", "small.yaml")
    assert said.status == INTERRUPTED
    assert "The same command continues" in said.err
    raised[0] = ValueError("oh no")
    said = bass_command("ablate", "small.yaml")
    assert said.status == FAILED
    assert "FAILED: ValueError: oh no" in said.err
    monkeypatch.undo()
    monkeypatch.chdir(here)
    said = bass_command("ablate", "small.yaml", "--dry-run")
    assert [line.split()[1] for line in said.out.splitlines()[:2]] == ["0", "failed"]
    assert bass_command("ablate", "small.yaml").status == FAILED
    assert bass_command("ablate", "small.yaml", "--retry-failed").status == 0


def test_a_wrong_name_is_one_sentence_and_a_report_that_cannot_be_written_too(
    here: Path, bass_command: Command
) -> None:
    said = bass_command("ablate", "small.yaml", "--temprature", "1")
    assert said.status == 2
    assert "Unknown option `--temprature`. Did you mean `--temperature`" in said.err
    said = bass_command("ablate", "small.yaml", "--max-tokens", "1")
    assert "give `--max-new-tokens`" in said.err
    said = bass_command("ablate", "small.yml")
    assert "(No such file or directory, but `small.yaml` is next to it): give" in said.err
    assert bass_command("ablate", "small.yaml").status == 0
    said = bass_command("report", "runs/small", "--output", "no/x.html")
    assert "`--output no/x.html` cannot be written (No such file or directory)" in said.err


def test_the_help_has_the_packaged_configs_and_the_page_has_every_setting_of_its_own(
    bass_command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bass_command("ablate", "--help")
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) <= 60
    page = (Path(__file__).parents[2] / "docs" / "ablations.md").read_text(encoding="utf-8")
    for name in CONFIGS:
        assert name in shown
        assert f"`{name}`" in page
    of_generate = {f.name for options in (ModelOptions, SamplingParams) for f in fields(options)}
    for name in SETTINGS.keys() - of_generate:
        assert f"`{name}`" in page, name
