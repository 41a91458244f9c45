"""The tutorial: its notebook and its picture are those that its pages make."""

import ast
import json
from pathlib import Path

import pytest

from support import notebook
from unit.test_package import TRAINED


def test_the_notebook_is_what_the_pages_make() -> None:
    """`make notebook` writes it."""
    every = {path.name for path in notebook.FOLDER.glob("*.md")}
    assert {path.name for path in notebook.chapters()} == every - {"index.md"}
    assert notebook.FILE.read_text(encoding="utf-8") == notebook.written()


def test_the_python_of_every_cell_is_valid() -> None:
    for cell in json.loads(notebook.FILE.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and not source.startswith("%%"):
            ast.parse(source)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not TRAINED, reason="the embedded pair is not there")
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="nbclient is not installed: pip install -e '.[docs]'")
    code = [one for one in notebook.executed(notebook.FILE, tmp_path).cells if "outputs" in one]
    printed = "".join(output.get("text", "") for cell in code for output in cell.outputs)
    for said in (
        "`Careless` violates a property",
        "`Sure` violates a property",
        "8 of 8 cells to run into `runs/ablation`",
        "report.html",
    ):
        assert said in printed
