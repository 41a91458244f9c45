"""A cell has one speed-up, wherever it is shown."""

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bass.analysis.statistics import interval
from bass.analysis.units import number
from bass.cli.ablate_table import results
from bass.experiments.config import plan
from bass.report.cells import read_cells
from bass.report.page import figures
from bass.report.summary import winners
from bass.report.table import table
from bass.report.table_rows import Part
from support.run_folders import write_run_of
from unit.test_table import CONFIG


@pytest.mark.parametrize("repeats", [2, 4])
def test_every_table_shows_the_same_speed_ups_with_the_same_intervals(
    repeats: int, tmp_path: Path
) -> None:
    """At the end of `bass ablate`, in `bass table` and in the report: the ratio of the means that
    they show.
    """
    run = write_run_of(tmp_path / "run", CONFIG, repeats)
    rows, cells = table(run).rows, read_cells(run)
    ended = results(plan(run.manifest.config), run.summaries())
    shown = {str(column.header): [str(x) for x in column._cells] for column in ended.columns}
    page = figures(cells, winners(cells))
    at = [head["text"] for head in page["heads"]].index("speed-up")
    on_page = {(row["cells"][0], row["cells"][1]): row["cells"][at] for row in page["rows"]}
    for cell, row, at_end in zip(cells, rows, shown["speed-up, ratio"], strict=True):
        texts = [number(row.get(f"speedup{end}"), "ratio") for end in ("", "_low", "_high")]  # type: ignore[arg-type]
        if row.get("speedup_low") is None:
            assert at_end == texts[0]
            shown_there = on_page[cell.label, cell.batch]
            assert float(shown_there["text"]) == pytest.approx(float(row["speedup"]), abs=0.006)  # type: ignore[arg-type]
            assert "–" not in shown_there.get("small", "")
            continue
        assert at_end == f"{texts[0]} ({texts[1]} to {texts[2]})"
        bounds = on_page[cell.label, cell.batch]["small"].split(" over ")[0].split("–")
        values = [on_page[cell.label, cell.batch]["text"], *bounds]
        assert [float(value) for value in values] == pytest.approx(
            [float(row[f"speedup{end}"]) for end in ("", "_low", "_high")],  # type: ignore[arg-type]
            abs=0.006,
        )


def test_the_last_table_cuts_no_value_of_an_axis_off(tmp_path: Path) -> None:
    run = write_run_of(tmp_path / "run", CONFIG, 2)
    ended = results(plan(run.manifest.config), run.summaries())
    with (tmp_path / "shown").open("w+", encoding="utf-8") as file:
        Console(file=file, width=40).print(ended)
        file.seek(0)
        first = [line.split("│")[1].strip() for line in file if "│" in line]
    axis = [str(label) for label in ended.columns[0]._cells]
    assert "".join(axis) in "".join(first)
    assert all(column.overflow == "fold" for column in ended.columns)


def test_no_interval_of_tau_is_below_one(tmp_path: Path) -> None:
    """Of few prompts that differ much: Student's t alone would go below what tau can be."""
    cell = read_cells(write_run_of(tmp_path / "run", CONFIG, 2))[0]
    wide = [{"tau": 1.0}, {"tau": 1.2}, {"tau": 8.0}]
    assert interval(np.array([one["tau"] for one in wide])).low < 1
    low, high = Part(cell, None, {}, True, [], wide).interval("tau", 2) or (0.0, 0.0)
    assert low == 1 < high
