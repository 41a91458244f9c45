"""The summary of a run: which setting wins, by how much, at which confidence, whatever kind of run
it is.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bass.analysis.metrics import METRICS
from bass.analysis.statistics import Comparison, Interval
from bass.engine.cost import NO_WORK
from bass.report import page as pages
from bass.report.cells import Cell, read_cells
from bass.report.compared import Line
from bass.report.contrast import Lead, lead
from bass.report.page import comparison, page
from bass.report.summary import sentences, winners
from bass.runs.records import StepLine, Summary
from bass.runs.run_folder import CellLines, RunFolder
from support.run_folders import entry, write_run
from unit.test_report import Text

NONE = CellLines([], [], [], [])


@pytest.fixture
def drawn() -> None:
    """Asked for by tests that look at plots; for the others none are drawn, which takes most of a
    page's time.
    """


@pytest.fixture(autouse=True)
def _no_plots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr(pages, "plots", lambda cells, first: [])


def told(run: RunFolder) -> list[str]:
    return sentences(winners(read_cells(run)))


def changed(run: RunFolder, change: Any) -> RunFolder:
    """The run with another manifest, made by a function of it."""
    path = run.path / "manifest.json"
    path.write_text(
        json.dumps(change(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8"
    )
    return RunFolder(run.path)


def with_temperatures(manifest: dict[str, Any]) -> dict[str, Any]:
    """`plain`, `fixed`, `bass` become two settings at three temperatures, the batch staying as it
    is.
    """
    names = {"plain": ("mine", 0.2), "fixed": ("other", 0.2), "bass": ("mine", 1.0)}
    for cell in manifest["cells"]:
        method, temperature = names[cell["settings"]["policy"]]
        cell["settings"] = {
            "method": method,
            "temperature": temperature,
            "batch": cell["settings"]["batch"],
        }
    manifest["config"]["axes"] = {
        "method": {"mine": {"policy": "bass"}, "other": {"policy": "fixed"}},
        "temperature": [0.2, 1.0],
    }
    return manifest | {"axes": ["method", "temperature", "batch"]}


def test_only_settings_that_decode_the_same_are_rivals(tmp_path: Path) -> None:
    run = changed(write_run(tmp_path / "run", batches=(1, 4)), with_temperatures)
    found = winners(read_cells(run))
    assert list(found) == [
        "batch 1, temperature=0.2",
        "batch 1, temperature=1.0",
        "batch 4, temperature=0.2",
        "batch 4, temperature=1.0",
    ]
    assert [winner.best.choice for winner in found.values()] == ["other", "mine", "other", "mine"]
    assert [len(winner.others) for winner in found.values()] == [1, 0, 1, 0]
    said = sentences(found)
    assert said[0].startswith(
        "other is the fastest setting at (batch 1, temperature=0.2) and (batch 4, "
        "temperature=0.2), "
    )
    assert "is the only setting there" in said[2]
    assert "batch and work" in page(run)[0]


def test_where_nothing_but_the_work_varies_nothing_has_a_rival(tmp_path: Path) -> None:
    def only_temperatures(manifest: dict[str, Any]) -> dict[str, Any]:
        for cell, temperature in zip(manifest["cells"], (0.2, 0.8, 1.0), strict=True):
            cell["settings"] = {"temperature": temperature, "batch": cell["settings"]["batch"]}
        return manifest | {"axes": ["temperature", "batch"]}

    said = told(changed(write_run(tmp_path / "run", batches=(4,), repeats=4), only_temperatures))
    assert said[0] == "No two settings have the same place."
    assert said[1].startswith("Batch 4, temperature=0.2: this setting takes ")
    assert "times as fast" not in " ".join(said)


@pytest.mark.parametrize(("repeats", "spread"), [(2, 0.1), (3, 0.4), (6, 0.1)])
def test_the_interval_of_a_lead_misses_the_ratio_of_means_as_often_as_it_says(
    repeats: int, spread: float
) -> None:
    """Of 400 intervals at 95 % no more than 43 miss, which happens to a right one once in a million
    times.
    """
    random, missed = np.random.default_rng(repeats), 0
    for _ in range(400):
        drawn = [
            scale * np.exp(random.normal(-(spread**2) / 2, spread, repeats)) for scale in (1.0, 2.0)
        ]
        own, other = (
            Cell(
                entry("x", {}),
                "x",
                "x",
                "",
                {},
                1,
                Summary("x", {}, "done", None, {}, [{"all": float(value)} for value in x], 1.0),
                NONE,
            )
            for x in drawn
        )
        found = lead(own, other, METRICS["all"], 1)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        assert found.low <= found.times <= found.high
        missed += not found.low <= 2 <= found.high
    assert missed <= 43


def test_a_lead_is_told_with_its_size_and_its_confidence(tmp_path: Path) -> None:
    said = told(write_run(tmp_path / "run", policies=("plain", "bass"), repeats=6, tokens=60))
    assert re.match(
        r"bass is the fastest setting at every batch, \d\.\d\d to \d\.\d\d times as fast as "
        r"autoregressive decoding: a lead beyond the noise \(95 %\)\.",
        said[0],
    )
    assert not any("within the noise" in sentence for sentence in said)


def test_a_lead_that_is_noise_is_called_so_in_the_first_sentence(tmp_path: Path) -> None:
    said = told(write_run(tmp_path / "run", policies=("same", "same too"), repeats=3))
    assert "within the noise: take more repeats" in said[0]


def measured(label: str, batch: int, times: list[float], drafted: bool) -> Cell:
    """A cell of these times per token, one for each repeat."""
    summary = Summary(label, {}, "done", None, {}, [{"all": time / 100} for time in times], 1.0)
    step = StepLine([0], 2, 8, 1, [2 if drafted else 0], [0], [1], 0.1, 0.0, 0.1, 0, NO_WORK)
    return Cell(
        entry(label, {}), label, label, "", {}, batch, summary, CellLines([step], [], [0], [])
    )


# Batch: times of autoregressive decoding and of two that draft. At batch 8 the best is 2.13 times
# as fast as autoregressive decoding, for sure; at batch 1 and 4 its lead may be noise; at batch 16
# nothing was run beside it.
TIMES = {
    1: {"plain": [1.06, 1.3, 0.9], "near": [1.1, 1.2, 0.95], "bass": [0.8, 1.2, 1.05]},
    4: {"plain": [1.2, 1.0, 1.04], "near": [1.07, 1.1, 1.0], "bass": [1.0, 1.02, 1.1]},
    8: {"plain": [2.13, 2.14, 2.12], "near": [1.5, 1.51, 1.49], "bass": [1.0, 1.001, 0.999]},
    16: {"bass": [1.0, 1.1, 1.2]},
}


def test_the_summary_opens_with_nothing_that_may_be_noise() -> None:
    cells = [
        measured(name, batch, times, name != "plain")
        for batch, all_ in TIMES.items()
        for name, times in all_.items()
    ]
    found = winners(cells)
    said = sentences(found)
    assert said[0] == (
        "bass is the fastest setting at batch 8, 2.13 times as fast as autoregressive decoding: "
        "a lead beyond the noise (95 %); "
        "at batch 1 and 4 the lead of the fastest is within the noise."
    )
    assert [place for place, winner in found.items() if winner.clear] == ["batch 8"]
    # every ratio has its interval, and what may be noise is called so
    for place, winner in found.items():
        sentence = next(one for one in said[1:] if one.startswith(f"{place.capitalize()}: "))
        ratios = re.findall(
            (
                r"times as fast \((\S+) to (\S+)\) as [^,]*?(, which is within the "
                r"noise)?(?=[,.]\s|[,.]$)"
            ),
            sentence,
        )
        assert len(ratios) == min(len(winner.others), 2)
        assert all(
            bool(noise) == (float(low) <= 1 <= float(high)) for low, high, noise in ratios
        ), sentence
    assert said[-1].startswith("A is x times as fast as B: the time per token of B over that of A")


def test_only_a_sure_lead_over_a_rival_is_bold_and_every_figure_has_its_interval() -> None:
    cells = [
        measured(name, batch, times, name != "plain")
        for batch, all_ in TIMES.items()
        for name, times in all_.items()
    ]
    found = winners(cells)
    table = pages.figures(cells, found)
    assert [row["cells"][:2] for row in table["rows"] if row["best"]] == [["bass", 8]]
    heads = [head["text"] for head in table["heads"]]
    speedups = {}
    for row in table["rows"]:
        told = dict(zip(heads, row["cells"], strict=True))
        low, high = map(float, told["all"]["small"].split("–"))
        assert low <= float(told["all"]["text"]) <= high
        speedups[told["setting"], told["batch"]] = told["speed-up"]
    assert speedups["plain", 8] == {"text": "1"}
    assert speedups["bass", 16] == {"text": "–"}
    lead = found["batch 8"].over(found["batch 8"].others[-1])
    assert lead is not None
    assert speedups["bass", 8]["text"] == f"{lead.times:.2f}"  # as the summary says it
    assert speedups["bass", 8]["small"].endswith(" over plain")
    low, high = map(float, speedups["bass", 8]["small"].split(" ")[0].split("–"))
    assert float(lead.within.split(" to ")[0]) < low < lead.times < high  # of one comparison


def test_a_page_has_one_ratio_of_speeds_and_says_once_what_it_is(tmp_path: Path) -> None:
    words = " ".join(
        Text(page(write_run(tmp_path / "run", batches=(1,), repeats=3))[0]).words.split()
    )
    assert words.count("A is x times as fast as B") == 1
    assert not re.search(r"speedup|speed-up ratio", words)


def test_where_plain_decoding_wins_it_is_said(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", policies=("plain", "bass"), batches=(4,), repeats=2)
    for cell in run.cells:
        path = run.cell_folder(cell.id) / "summary.json"
        summary = json.loads(path.read_text(encoding="utf-8"))
        for repeat in summary["repeats"]:
            repeat["all"] *= 0.1 if cell.settings["policy"] == "plain" else 1
        path.write_text(json.dumps(summary), encoding="utf-8")
    said = told(run)
    assert said[0].startswith("plain is the fastest setting at batch 4")
    assert "At batch 4 no drafting setting is faster than autoregressive decoding." in said


def test_a_speed_up_that_cannot_be_opens_the_report_and_is_no_lead(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", policies=("plain", "bass"), batches=(1, 4), repeats=2)
    for cell in (one for one in run.cells if one.settings == {"policy": "bass", "batch": 1}):
        path = run.cell_folder(cell.id) / "summary.json"
        summary = json.loads(path.read_text(encoding="utf-8"))
        for repeat in summary["repeats"]:
            repeat |= {"all": repeat["all"] / 9, "speedup_limit": 2.5}
            repeat["speedup_tokens_per_second"] = 9.0
        path.write_text(json.dumps(summary), encoding="utf-8")
    said = page(run)[2]
    assert said[0].startswith(
        "bass, batch 1: a speed-up of 9.00 (`speedup_tokens_per_second`) is impossible"
    )
    assert said[1].startswith("At batch 1 the speed-up of the fastest setting is impossible")
    assert "batch 4" in said[2]
    assert "batch 1" not in said[2]
    assert any("which is impossible" in one for one in said if one.startswith("Batch 1:"))


def test_one_cell_and_cells_without_a_rival_are_not_called_the_fastest(tmp_path: Path) -> None:
    one = told(write_run(tmp_path / "one", batches=(4,), policies=("bass",)))
    assert one[0] == "Only one setting was run: there is nothing to compare."
    assert "ms per token" in one[1]
    apart = told(write_run(tmp_path / "apart", batches=(1, 4), policies=("bass",)))
    assert "fastest" not in "".join(apart)


def test_failed_and_missing_cells_stand_before_the_summary_and_win_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", failed=[2], unfinished=[5])  # both of `bass`
    html, _, said = page(run)
    assert [sentence.split(":")[0] for sentence in said[:1]] == ["The run is not finished"]
    assert "Out of memory" in said[1]
    assert said[2].startswith("fixed is the fastest setting at every batch")
    assert "bass is" not in Text(html).words


def test_a_run_without_a_time_per_token_is_reported_and_says_why_nothing_wins(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "run", batches=(1,), repeats=1)
    for cell in run.cells:
        path = run.cell_folder(cell.id) / "summary.json"
        summary = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(summary | {"repeats": [{"tau": 2.0}]}), encoding="utf-8")
    assert "no setting is the fastest" in page(run)[2][0]


@pytest.mark.parametrize("better", ["lower", "higher", "neither"])
def test_a_difference_is_better_worse_or_neither_as_its_metric_says(better: str) -> None:
    metric = next(metric for metric in METRICS.values() if metric.better == better)

    def verdict(low: float, high: float) -> str:
        return Line(
            metric,
            1.0,
            2.0,
            Comparison(Interval((low + high) / 2, low, high, 0.95, "student"), 1.0, True, 3),
            same_work=True,
        ).verdict

    rising = {"lower": "B is worse", "higher": "B is better", "neither": "differs"}[better]
    falling = {"lower": "B is better", "higher": "B is worse", "neither": "differs"}[better]
    assert [verdict(0.5, 1.5), verdict(-1.5, -0.5), verdict(-1, 2)] == [
        rising,
        falling,
        "within the noise",
    ]
    assert Line(metric, 1.0, 2.0, None, same_work=True).verdict == "too few values"


def test_bounds_that_say_nothing_are_not_written_out() -> None:
    assert Lead(1.5, 0.001, 1e20).in_words() == "1.50 times as fast (0.00 to more than 100)"


def test_a_run_of_many_places_has_a_short_summary(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        batches=tuple(range(1, 11)),
        policies=("plain", "bass"),
        repeats=2,
        tokens=4,
    )
    said = told(run)
    assert len(said) < 12
    assert any(sentence.startswith("The table has 4 more places") for sentence in said)
    words = comparison(run, run)[1]
    assert len(words) == 20 + 1


def test_pictures_are_left_out_before_a_page_grows_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run", batches=(4,), policies=("fixed", "bass"), repeats=1)
    whole = len(page(run)[0].encode())
    monkeypatch.setattr(pages, "MOST_BYTES", whole - 100)
    html = page(run)[0]
    assert "1 picture left out" in html
    assert len(html.encode()) < whole
    monkeypatch.setattr(pages, "MOST_BYTES", 1000)
    with pytest.raises(pages.RunFolderError, match="more than 1,000"):
        page(run)


def test_a_comparison_of_many_settings_keeps_to_the_metrics_that_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run", batches=(1,), repeats=2)
    assert "host_share (" in comparison(run, run)[0]
    monkeypatch.setattr(pages, "MOST_COMPARED", 2)
    html = comparison(run, run)[0]
    assert "host_share (" not in html
    assert "Of 3 settings only the 8 main metrics are shown." in html


@pytest.mark.usefixtures("drawn")
def test_of_too_many_settings_plots_show_those_of_one_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_two_temperatures(manifest: dict[str, Any]) -> dict[str, Any]:
        for i, cell in enumerate(manifest["cells"]):
            cell["settings"] = {
                "temperature": (0.2, 1.0)[i % 2],
                "policy": f"p{i // 2}",
                "batch": 1,
            }
        return manifest | {"axes": ["temperature", "policy", "batch"]}

    monkeypatch.setattr("bass.report.plots.MOST_SETTINGS", 4)
    many = write_run(
        tmp_path / "many", batches=(1,), policies=[f"p{i}" for i in range(6)], repeats=1, tokens=8
    )
    latency = page(changed(many, at_two_temperatures))[1][0]
    shown = [axes.get_title() for axes in latency.figure.axes]
    assert sum("temperature=0.2" in label for label in shown) == 3
    assert len(shown) == 4


@pytest.mark.usefixtures("drawn")
def test_the_parts_of_a_step_are_those_that_were_measured(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", batches=(1,), repeats=1)
    [plot] = [plot for plot in page(run)[1] if plot.name == "step-parts"]
    bars = {
        str(row.get_label()): [bar.get_width() for bar in row]
        for row in plot.figure.axes[0].containers
    }  # pyright: ignore
    expected = {"draft": [0, 2, 2], "verify": [3, 3, 3], "sample": [0, 0.5, 0.5], "host": [0.4] * 3}
    assert {name: pytest.approx(widths) for name, widths in bars.items()} == expected
