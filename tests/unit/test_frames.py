"""The reader of run folders: frames of lines, and what a cell is compared with."""

import json
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given

import bass
from bass.analysis.frames import read_lines, request_lines, requests_frame, step_lines, steps_frame
from bass.analysis.metrics import METRICS, Measurement, mean, measure
from bass.analysis.statistics import interval
from bass.errors import OptionError
from support.drawn_calls import Drawn, runs
from support.run_folders import METHODS, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> bass.Run:
    folder = tmp_path_factory.mktemp("runs") / "run"
    # autoregressive decoding with another layout comes first, and is slower
    cells = {"failed": ["bass-b4"], "new": ["fixed-b4"], "slower": {"split": 1.3}}
    return bass.open_run(
        write_run(folder, {"split": 0} | METHODS, categories=("qa", "math"), **cells)
    )


@given(runs())
def test_lines_of_a_file_make_the_frames_that_a_result_makes(drawn: Drawn) -> None:
    m = drawn.measurement()
    from bass.api.results import Completion
    from bass.engine.requests import StepRecord

    steps = step_lines((StepRecord(*one) for one in drawn.steps), repeat=0, call=0)
    requests = request_lines((Completion(**one) for one in drawn.requests), repeat=0, call=0)
    read = [json.loads(json.dumps(lines)) for lines in (steps, requests)]
    other = Measurement(steps_frame(read[0]), requests_frame(read[1]), m.facts)
    assert measure(other) == measure(m)


def test_an_incomplete_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    assert read_lines(path) == []
    path.write_text('{"step": 0}\n{"step": 1}\n{"st')
    assert read_lines(path) == [{"step": 0}, {"step": 1}]


def test_a_run_is_three_frames(run: bass.Run) -> None:
    assert [*run.cells.index] == [f"{m}-b{b}" for b in (1, 4) for m in run.cells["method"].unique()]
    assert dict(run.cells["state"]) == dict.fromkeys(run.cells.index, "done") | {
        "bass-b4": "failed",
        "fixed-b4": "not finished",
    }
    methods = ["split-b1", "autoregressive-b1", "fixed-b1", "bass-b1"]
    assert run.finished == [*methods, "split-b4", "autoregressive-b4"]
    own = run.steps[run.steps["cell"] == "bass-b1"]
    assert run.measurement("bass-b1").counts.accepted == sum(map(sum, own["accepted"]))
    assert len(run.requests) == 3 * 2 * (4 * 1 + 2 * 4)  # repeats x calls x rows
    assert run.requests["category"].unique().tolist() == ["qa", "math"]


def test_a_cell_is_compared_with_the_fastest_autoregressive_one_of_its_work(run: bass.Run) -> None:
    row = run.cells.loc["bass-b1"]
    plain = run.cells.loc["autoregressive-b1"]
    assert row["plain"] == "autoregressive-b1"
    assert row["speedup_all"] == pytest.approx(plain["all"] / row["all"])
    assert row["speedup"] == pytest.approx(row["tokens_per_second"] / plain["tokens_per_second"])
    assert plain["speedup"] == plain["speedup_all"] == 1
    assert run.speedup("autoregressive-b1") is None
    slower = run.speedup("split-b1", "all")
    assert slower is not None
    assert slower.ratio == pytest.approx(plain["all"] / run.cells.loc["split-b1", "all"])
    assert 1 / 1.4 < slower.ratio < 1 / 1.2
    assert 0 < row["exact_match_rate"] < 1 or row["exact_match_rate"] in (0, 1)
    found = run.speedup("bass-b1", "all")
    assert found is not None
    assert found.n == 3
    assert found.low < found.ratio < found.high


def test_of_two_autoregressive_cells_the_fastest_is_compared_with(tmp_path: Path) -> None:
    methods = {"slow": 0, "quick": 0, "slower": 0, "fixed": 2}
    factors = {"slow": 2.0, "slower": 3.0}
    run = bass.open_run(write_run(tmp_path / "run", methods, (1,), slower=factors))
    assert set(run.cells["plain"]) == {"quick-b1"}


def test_a_cell_has_the_mean_of_its_independent_values_and_the_metrics_of_its_parts(
    run: bass.Run,
) -> None:
    values = run.values("fixed-b1", "tau")
    assert list(values.index) == [0, 1]  # prompts
    assert run.cells.loc["fixed-b1", "tau"] == pytest.approx(values.mean())
    assert mean(run.values("fixed-b1", "all")).n == 3
    m = run.measurement("fixed-b1")
    parts = [m.where(category=name) for name in m.categories]
    assert sum(part.counts.emitted for part in parts) == m.counts.emitted
    assert sum(len(part.steps) for part in parts) == len(m.steps)
    assert [measure(part)["tau"] for part in parts] == pytest.approx(values.tolist())
    with pytest.raises(OptionError, match=r"Unknown category `history`\. Known: math, qa"):
        m.where(category="history")


def test_an_interval_holds_values_that_the_metric_can_have(tmp_path: Path) -> None:
    """Two values far apart: Student's interval alone would reach below zero."""
    run = bass.open_run(write_run(tmp_path / "run", {"bass": 8}, [1], repeats=2, tokens=4))
    for name, least in (("all", 0.0), ("tau", 1.0)):
        found = mean(run.values("bass-b1", name))
        around = interval(run.values("bass-b1", name).to_numpy())
        assert (found.mean, found.high, found.n) == (around.mean, around.high, 2)
        assert found.low == max(around.low, least)
    far = pd.Series([0.5, 1.0], name="acceptance_rate")
    assert (mean(far).low, mean(far).high) == (0.0, 1.0)
    assert mean(far.rename("draft_cost_ratio")).low < 0


def test_a_run_says_what_it_is_and_an_unknown_metric_is_an_error(run: bass.Run) -> None:
    assert repr(run) == f"<Run {str(run.folder)!r}: lengths, 6 of 8 cells finished>"
    with pytest.raises(OptionError, match=r"Unknown metric `tokens_per_secnd`\. Did you mean"):
        run.compare("bass-b1", "fixed-b1", "tokens_per_secnd")


def test_metrics_that_do_not_apply_are_nan(run: bass.Run) -> None:
    row = run.cells.loc["autoregressive-b4"]
    assert pd.isna(row["acceptance_rate"])
    assert pd.isna(row["goodput"])
    assert {*METRICS} <= {*run.cells.columns}
