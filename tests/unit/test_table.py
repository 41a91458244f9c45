"""The table of a run: its figures are those of the run, an empty cell has a reason, and what it
says of exactness is true.
"""

import csv
import errno
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bass
from bass.analysis import categories
from bass.analysis.oracle import distance, pooled_rates
from bass.analysis.repeats import Repeat
from bass.api.kinds import KINDS
from bass.engine.requests import StepRecord
from bass.errors import OptionError, RunFolderError
from bass.report.cells import read_cells
from bass.report.exactness import CHECKS, COVERED, PROPERTIES, exactness, registered
from bass.report.table import COLUMNS, table
from bass.report.table_formats import FORMATS
from bass.runs.run_folder import RunFolder
from support.run_folders import entry, write_run, write_run_of
from unit.checkpoints import Said
from unit.test_package import ROOT

Command = Callable[..., Said]
CONFIG: dict[str, Any] = {
    "base": {"max_new_tokens": 24, "prompts": ["a", "b"], "temperature": 0.0},
    "axes": {
        "method": {
            "plain": {"policy": "fixed", "policy.k": 0},
            "slow": {"policy": "fixed", "policy.k": 0, "cache": "split"},
            "bass": {"policy": "bass"},
        },
        "batch": [1, 4],
    },
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return write_run_of(tmp_path_factory.mktemp("runs") / "one", CONFIG)


def test_the_figures_are_those_of_the_summaries(run: RunFolder) -> None:
    found = table(run)
    assert found.labels == ["method", "batch"]
    for row, cell in zip(found.rows, read_cells(run), strict=True):
        for column in COLUMNS:
            if column.metric and column.metric != "exact_match_rate":
                assert row.get(column.name) == cell.value(column.metric), column.name
        assert row["runs"] == 4


def test_a_speed_up_is_over_the_fastest_autoregressive_cell_of_the_batch(run: RunFolder) -> None:
    rows = table(run).rows
    for row in rows:
        plain = [
            other
            for other in rows
            if other["batch"] == row["batch"] and other["method"] in ("plain", "slow")
        ]
        least = min(float(other["seconds_per_token"] or 0) for other in plain)
        assert row["speedup"] == pytest.approx(least / float(row["seconds_per_token"] or 0))
    assert sum(row["speedup"] == 1 for row in rows) == 2
    drafting = [row for row in rows if row["method"] == "bass"]
    assert all(row["speedup_low"] < row["speedup"] < row["speedup_high"] for row in drafting)  # type: ignore[operator]


def test_what_is_not_known_is_empty_with_a_reason_and_no_zero(run: RunFolder) -> None:
    found = table(run)
    notes = " ".join(found.notes)
    for name, reason in (
        ("mbu_data_sheet", "No data sheet is known of cpu"),
        ("mfu_data_sheet", "No data sheet is known of cpu"),
        ("pass_at_k", "An ablation does not score texts"),
        ("oracle_distance", "Nothing is drafted"),
        ("speedup_low", "that others are compared with"),
    ):
        empty = [row for row in found.rows if row.get(name) is None]
        assert empty, name
        assert re.search(rf"Empty[^.]*`{name}`[^.]*\. [^.]*{reason}", notes), name
    assert all(row["tau"] == 1 for row in found.rows if row["method"] == "plain")


def test_fewer_than_three_runs_have_no_interval_of_times(tmp_path: Path) -> None:
    found = table(write_run_of(tmp_path / "run", CONFIG, repeats=2))
    assert all(row.get("seconds_per_token_low") is None for row in found.rows)
    assert all(row.get("speedup_low") is None for row in found.rows)
    assert any("needs 3 or more runs" in note for note in found.notes)


def test_a_data_sheet_gives_the_other_basis(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bass.engine.cost.DATA_SHEETS", {run.manifest.device: 8e9})
    monkeypatch.setattr("bass.engine.cost.DATA_SHEET_FLOPS", {run.manifest.device: 4e12})
    for row, cell in zip(table(run).rows, read_cells(run), strict=True):
        assert cell.summary is not None
        assert cell.summary.facts is not None
        share = cell.summary.facts.bandwidth / 8e9
        assert row["mbu_data_sheet"] == pytest.approx(float(row["mbu"] or 0) * share)
        # two bytes a weight: of a 16-bit dtype
        assert row["mfu_data_sheet"] == pytest.approx(float(row["mfu"] or 0) / 4)


def test_an_unfinished_run_has_the_rows_of_its_finished_cells(tmp_path: Path) -> None:
    found = table(write_run(tmp_path / "part", unfinished=[5], failed=[4], repeats=3))
    assert len(found.rows) == 4
    assert any("1 of 6 cells lack" in note for note in found.notes)
    with pytest.raises(RunFolderError, match="none of its 1 cell is finished"):
        table(write_run(tmp_path / "no", (1,), ("fixed",), unfinished=[0]))


@pytest.mark.parametrize("mixed", [False, True])
def test_categories_split_the_calls_of_a_run(
    mixed: bool, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(line: Any) -> str:
        number = line.request if mixed else line.repeat
        return "code" if number % 2 else "text"

    monkeypatch.setattr(categories, "category_of", of)
    found = table(run)
    assert found.labels[-1] == "category"
    for cell in read_cells(run):
        whole = cell.generations
        parts = [categories.of_category(whole, name) for name in ("code", "text")]
        for count in ("row_steps", "drafted", "accepted", "emitted"):
            assert sum(
                getattr(one.counts, count) for part, _ in parts for one in part.values()
            ) == sum(getattr(one.counts, count) for one in whole)
        assert all(own == (not mixed) for part, own in parts if part) or cell.batch == 1
    of_code = [row for row in found.rows if row["category"] == "code"]
    assert of_code
    assert all(row.get("tau") is not None for row in of_code)
    speeds = [row.get("tokens_per_second") for row in of_code]
    assert all(speed is None for speed in speeds) if mixed else None not in speeds
    assert any("leave `samples` out" in note for note in found.notes) == mixed


@pytest.mark.parametrize("axis", ["category", "tau", "speedup_low", "acceptance_3", "runs"])
def test_an_axis_is_not_named_like_a_column_and_loses_no_label(
    axis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CONFIG | {"axes": {axis: CONFIG["axes"]["method"]}}
    with pytest.raises(OptionError, match=f"The axis `{axis}` has the name of a column"):
        write_run_of(tmp_path / "no", config)
    # an earlier version wrote such runs
    monkeypatch.setattr("bass.experiments.config.refuse_columns", lambda axes, problems: None)
    found = table(write_run_of(tmp_path / "run", config))
    assert found.labels == [f"axes.{axis}"]
    assert [row[found.labels[0]] for row in found.rows] == ["plain", "slow", "bass"]
    assert len(set(found.names())) == len(found.names())


def test_the_note_on_speed_ups_names_the_cells_that_they_are_over_and_no_other(
    tmp_path: Path,
) -> None:
    """A lossy cell has no speed-up, and neither has its autoregressive decoding."""
    methods = CONFIG["axes"]["method"]
    lossy = {"plain, lossy": methods["plain"] | {"verifier": "typical"}}
    lossy["typical"] = methods["bass"] | {"verifier": "typical"}
    axes = {"method": methods | lossy, "batch": [1, 4]}
    found = table(write_run_of(tmp_path / "run", CONFIG | {"axes": axes}))
    [note] = [note for note in found.notes if note.startswith("Speed-up: over")]
    bases = {row["method"] for row in found.rows if row.get("speedup") == 1}
    assert {*re.findall(r"`([^`]*)`", note)} == bases
    assert bases <= {"plain", "slow"}


# exactness


def collected(tests: list[str]) -> list[str]:
    """The ids that pytest runs for these tests, on a GPU, every time."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env=os.environ | {"BASS_TEST_DEVICE": "cuda"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_every_registered_strategy_is_a_value_of_the_tests_that_are_named_for_it() -> None:
    """Both at temperature 0 and above it; a lossy verifier has none."""
    ids = collected(sorted({one.test for one in PROPERTIES}))
    for greedy in (True, False):
        for kind in COVERED:
            registry = KINDS[kind].registry
            for name, cls in registry.items():
                if kind == "verifier" and not cls.lossless:  # type: ignore[attr-defined]
                    continue
                tests = [
                    one.test
                    for one in PROPERTIES
                    if one.greedy == greedy and one.covers(kind, name)
                ]
                assert tests, (kind, name)
                for test in tests:
                    own = [one for one in ids if one.partition("[")[0] == test]
                    assert own, test
                    assert any(is_named(one, name, registry) for one in own), (kind, name, test)


def is_named(id_: str, name: str, names: Iterable[str]) -> bool:
    """Whether an id has the name, and not only a longer one that has it as a part."""
    for longer in sorted(names, key=len, reverse=True):
        if longer != name and name in longer:
            id_ = id_.replace(longer, "")
    return re.search(rf"[\[+ -]{re.escape(name)}[\]+,-]", id_) is not None


def test_the_checks_that_are_named_exist() -> None:
    import bass.testing

    assert {*CHECKS} == {*COVERED}
    assert all(callable(getattr(bass.testing, name)) for name in CHECKS.values())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"policy": "bass"}, "covered by tests/laws/"),
        ({"policy": {"class_path": "bass.policies.Fixed", "init_args": {"k": 3}}}, "covered by"),
        ({"policy": "mine:OneMore"}, "(mine:OneMore): run bass.testing.check_policy(...)"),
        (
            {"policy": {"class_path": "clamped", "init_args": {"policy": "mine:OneMore"}}},
            "(mine:OneMore): run bass.testing.check_policy(...)",
        ),
        ({"drafter": "mine.Drafter", "verifier": "mine:V"}, "not covered by the project's tests"),
        ({"policy": "bass", "quantization": "int8", "family": None}, "covered by tests/laws/"),
        (
            {"policy": "mine:A", "family": "mine:Llama"},
            "(mine:A, mine:Llama): run bass.testing.check_policy(...), and compare its logits",
        ),
        (
            {"policy": "bass", "draft_quantization": {"class_path": "mine:Q"}},
            "(mine:Q): compare its logits with a reference",
        ),
        ({}, "unknown"),
    ],
)
def test_exactness_of_a_cell(settings: dict[str, Any], says: str) -> None:
    assert says in exactness(entry("0000", {}), {"temperature": 0.0} | settings)


def test_a_lossy_verifier_is_not_called_exact() -> None:
    said = exactness(entry("0000", {}, caveat="biased on purpose"), {"policy": "bass"})
    assert said == "not lossless: biased on purpose"
    assert registered("policy", "bass.policies:BatchAdaptive") == "bass"


# the oracle


def generation(would: np.ndarray, k: int) -> Repeat:
    """One row that drafts k tokens in each step."""
    steps = []
    for one in would:
        accepted = np.array([min(int(one), k)])
        steps.append(
            StepRecord(k, 8, 8, np.array([0]), np.array([k]), accepted, accepted + 1, 0.1, 0.0, 1.0)
        )
    return Repeat(steps, [])


def test_the_distance_to_the_oracle_is_the_true_one() -> None:
    """Of 20,000 calls, half with a long draft: the estimate for the short ones is within 2 %, and
    its standard error is 0.7 %.
    """
    random = np.random.default_rng(0)
    would = np.minimum(random.geometric(0.3, (2, 10_000)) - 1, 12)
    short, long = generation(would[0], 3), generation(would[1], 12)
    found = distance([short], pooled_rates([short, long]))
    assert found is not None
    assert found.longest == 12
    assert found.over == pytest.approx(np.maximum(3 - would[0], 0).mean())
    assert found.under == pytest.approx(np.maximum(would[0] - 3, 0).mean(), rel=0.05)
    exact = distance([long], pooled_rates([long]))
    assert exact is not None
    assert exact.under == 0
    assert distance([generation(would[0], 0)], pooled_rates([long])) is None


# formats and commands


def test_csv_has_every_value_and_the_others_its_rows(run: RunFolder) -> None:
    found = table(run)
    read = list(csv.DictReader(io.StringIO(FORMATS["csv"](found))))
    assert [*read[0]] == found.names()
    for row, own in zip(read, found.rows, strict=True):
        assert {name for name, value in row.items() if value} == {
            name for name, value in own.items() if value is not None
        }
        assert float(row["tau"]) == own["tau"]
    lines = FORMATS["markdown"](found).splitlines()
    pipes = {line.count("|") for line in lines if line.startswith("|")}
    assert len(pipes) == 1
    tex = FORMATS["latex"](found)
    ends = [line for line in tex.splitlines() if line.endswith(r" \\")]
    assert len(ends) == len(found.rows) + 3  # the caption, and the headings of two pages
    assert not re.search(r"(?<!\\)[%#_]", tex.split("\n", 2)[2])


def test_without_pandas_the_error_says_what_to_install(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(OptionError, match=r"needs pandas, which is not installed: pip install"):
        bass.open_run(run.path).to_pandas()


def test_a_data_frame_has_the_rows_and_the_notes(run: RunFolder) -> None:
    pytest.importorskip("pandas", reason="pandas is an optional extra")
    frame = bass.open_run(run.path).to_pandas()
    assert list(frame.columns) == table(run).names()
    assert frame.attrs["notes"] == table(run).notes
    assert len(frame) == 6


def test_the_command_writes_the_format_of_the_name(
    run: RunFolder, tmp_path: Path, bass_command: Command
) -> None:
    said = bass_command("table", str(run.path))
    assert said.status == 0
    assert said.out == FORMATS["markdown"](table(run))
    for suffix, kind in ((".md", "markdown"), (".tex", "latex"), (".csv", "csv")):
        path = tmp_path / f"table{suffix}"
        assert bass_command("table", str(run.path), "--output", str(path)).status == 0
        assert path.read_text(encoding="utf-8") == FORMATS[kind](table(run))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--format", "html"], "Unknown format `html`. Known: csv, latex, markdown."),
        (["--output", "x.html"], "is no name of a table: give one that ends in .md, .tex, .csv"),
        (["--format", "csv", "--output", "x.md"], "contradicts `--output x.md`"),
        (["--output", "none/x.md"], "is in a folder that does not exist"),
        (["--evaluation", "bass"], "must be METHOD=FOLDER"),
    ],
)
def test_bad_input_is_one_sentence(
    options: list[str], says: str, run: RunFolder, bass_command: Command
) -> None:
    said = bass_command("table", str(run.path), *options)
    assert said.status == 2
    assert said.err.count("\n") == 1
    assert says in said.err


def test_one_command_runs_and_writes_the_table(tmp_path: Path, bass_command: Command) -> None:
    page = tmp_path / "table.csv"
    assert "no name of a table" in bass_command("ablate", "comparison", "--table", "x.html").err
    command = (
        "ablate", "comparison", "--quick", "--axes.batch", "[1]", "--axes.temperature", "[0.0]",
        "--max_new_tokens", "4", "--num_prompts", "1", "--output", str(tmp_path / "run"),
        "--table", str(page),
    )  # fmt: skip
    assert bass_command(*command).status == 0
    first = page.read_bytes()
    page.unlink()
    assert bass_command(*command).status == 0  # nothing is run again
    assert page.read_bytes() == first
    read = list(csv.DictReader(io.StringIO(first.decode())))
    assert [row["method"] for row in read] == ["autoregressive", "fixed-4", "bass"]
    assert {row["exact_match_rate"] for row in read} == {"", "1.0"}
    assert all(row["exactness"].startswith("covered by tests/laws/") for row in read)


def test_a_disk_that_is_full_is_one_sentence(
    run: RunFolder, tmp_path: Path, bass_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("bass.cli.output.write_atomically", full)
    monkeypatch.setattr("bass.analysis.traces.write_atomically", full)
    for command, name in ((("table",), "a.md"), (("trace", "export"), "a.jsonl")):
        said = bass_command(*command, str(run.path), "--output", str(tmp_path / name))
        assert said.status == 2
        assert (
            f"{name}` cannot be written (No space left on device): name another file." in said.err
        )
