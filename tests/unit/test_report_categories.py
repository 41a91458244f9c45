"""Categories in the report and the table: figures of each are those of its requests alone."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bass.analysis.categories import of_category
from bass.analysis.metrics import measure
from bass.analysis.repeats import Repeat
from bass.report.by_category import by_category, parts_of
from bass.report.cells import read_cells
from bass.report.page import page
from bass.report.plots import plots
from bass.report.table import table
from bass.runs.records import RequestLine
from bass.runs.run_folder import RunFolder
from support.run_folders import write_run

NAMES = ("code", "text")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Four generations of each cell, the categories of which alternate."""
    return recategorised(tmp_path_factory.mktemp("runs") / "one", [*NAMES])


def test_the_page_has_a_row_for_each_setting_and_category(run: RunFolder) -> None:
    cells = read_cells(run)
    found = by_category(cells)
    assert found is not None
    heads = [head["text"] for head in found["heads"]]
    assert [row["cells"][:3] for row in found["rows"]] == [
        [cell.label, cell.batch, name] for cell in cells for name in NAMES
    ]
    for part, row in zip(parts_of(cells), found["rows"], strict=True):
        shown = row["cells"][heads.index("tau")]["text"]
        own = of_category(part.cell.generations, part.category)[0]
        together = [step for one in own.values() for step in one.steps]
        tau = measure(Repeat(together, []), ["tau"])["tau"]
        assert float(shown) == pytest.approx(tau, abs=0.006)
        times = row["cells"][heads.index("speed-up")]
        assert (times["text"] == "1") == (not part.cell.speculative)
    html, drawn, _ = page(run)
    assert "Figures by category" in html
    assert {"tau-by-category", "latency-by-category"} <= {plot.name for plot in drawn}


def test_the_plots_have_a_mark_for_each_category(run: RunFolder) -> None:
    cells = read_cells(run)
    drawn = {plot.name: plot for plot in plots(cells)}
    values = {
        (part.cell.label, part.category): part.value("tau")
        for part in parts_of(cells)
        if part.cell.batch == 4
    }
    for axes in drawn["tau-by-category"].figure.axes:
        assert [label.get_text() for label in axes.get_xticklabels()] == [*NAMES]
        marks = np.asarray(axes.lines[0].get_ydata(), dtype=float)
        assert marks == pytest.approx([values[axes.get_title(), name] for name in NAMES])
    assert "tau-by-category" not in [
        plot.name for plot in plots([cell for cell in cells if not cell.speculative])
    ]


def test_a_category_is_a_row_of_the_table_with_the_values_of_its_prompt(run: RunFolder) -> None:
    found = table(run)
    assert found.labels == ["policy", "batch", "category"]
    for row in found.rows:
        if row["category"] != "all":
            # one prompt with two generations is one value, without an interval
            assert (row.get("tau_low"), row["runs"]) == (None, 2)


def recategorised(path: Path, names: list[str], **how: Any) -> RunFolder:
    """A run whose generations have these categories in turn."""
    run = write_run(path, repeats=4, **how)
    for cell in run.cells:
        file = run.cell_folder(cell.id) / run.REQUESTS
        lines = []
        for text in file.read_text(encoding="utf-8").splitlines():
            if "end" not in json.loads(text):
                line = RequestLine.from_json(text)
                number = line.repeat % len(names)
                own = names[number]
                text = dataclasses.replace(line, prompt=number, category=own).to_json()
            lines.append(text + "\n")
        file.write_text("".join(lines), encoding="utf-8")
    return run


def test_a_category_may_be_called_all(tmp_path: Path) -> None:
    """It has rows of its own, next to those of all prompts."""
    found = table(recategorised(tmp_path / "run", ["all", "text"], batches=(1,)))
    names = [row["category"] for row in found.rows]
    assert names == ["(all)", "all", "text"] * 3
    own, whole = found.rows[1], found.rows[0]
    assert (own["runs"], whole["runs"]) == (2, 4)


def test_requests_without_a_category_are_counted_in_a_note(tmp_path: Path) -> None:
    found = table(recategorised(tmp_path / "run", ["code", ""], batches=(1,)))
    assert [row["category"] for row in found.rows] == ["all", "code"] * 3
    [note] = [note for note in found.notes if "without a category" in note]
    count, of = map(int, re.findall(r"\d+", note))
    assert 0 < count < of


def test_a_run_without_categories_has_none_of_it(tmp_path: Path) -> None:
    cells = read_cells(write_run(tmp_path / "run", batches=(1,), repeats=1))
    assert by_category(cells) is None
    assert not [plot.name for plot in plots(cells) if "category" in plot.name]
