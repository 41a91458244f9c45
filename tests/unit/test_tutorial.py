"""The tutorial: its notebook and its picture are those that its pages make."""

import ast
import json
import re
from pathlib import Path

import pytest

from support import notebook
from unit.test_package import TRAINED

CHAPTERS = notebook.chapters()


def test_the_notebook_and_the_picture_are_what_the_pages_make() -> None:
    """`make notebook` writes both."""
    assert notebook.FILE.read_text(encoding="utf-8") == notebook.written()
    assert notebook.PICTURE.read_text(encoding="utf-8") == notebook.picture()


def test_the_first_page_lists_every_chapter_and_each_leads_to_the_next() -> None:
    every = {path.name for path in notebook.FOLDER.glob("*.md")}
    assert {path.name for path in CHAPTERS} == every - {"index.md"}
    for number, page in enumerate(CHAPTERS, 1):
        lines = page.read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith(f"# {number}. ")
        neighbours = CHAPTERS[number - 2 : number + 1] if number > 1 else CHAPTERS[:2]
        linked = set(re.findall(r"\]\(([\w-]+\.md)\)", lines[2]))
        assert {one.name for one in neighbours} - {page.name} <= linked


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
