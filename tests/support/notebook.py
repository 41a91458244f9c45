"""The tutorial as a notebook, which `make notebook` writes from the pages of `docs/tutorial`.

A block of Python becomes a cell, commands of `bass` a cell of shell, and a block that begins with
the name of a file a cell that writes it. All else, what is not run included, stays text.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs/tutorial"
FILE = FOLDER / "tutorial.ipynb"
START = """# The tutorial of bass, as a notebook

`make notebook` writes it from the chapters of the [tutorial](index.md). It runs from top to bottom
without a GPU, in some minutes. In a checkout, in a virtual environment:

```sh
pip install -e '.[testing]' jupyterlab -c constraints.txt
jupyter lab docs/tutorial/tutorial.ipynb
```

The cells write files. The first one chooses a new folder for them:"""
PLACE = """import os
import tempfile

os.chdir(tempfile.mkdtemp(prefix="bass-tutorial-"))
print(os.getcwd())"""
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- ([^\n]*?) -->\n*")
_IS_FILE = re.compile(r"# ([\w-]+\.\w+)\n")
_DRAWS = re.compile(r"""savefig\("([\w-]+)\.png"\)""")


def chapters() -> list[Path]:
    """The pages in the order of the first one's table."""
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    return [FOLDER / name for name in re.findall(r"^\| \[\d.*?\]\((.*?)\)", index, re.MULTILINE)]


def code_cells(language: str, text: str) -> list[str]:
    """The cells of a block, none if it is not one to run."""
    file = _IS_FILE.match(text)
    written = [f"%%writefile {file[1]}\n{text}"] if file else []
    if language == "python":
        runs = [f"from {file[1].removesuffix('.py')} import *"] if file else [text]
        shown = [
            f'from IPython.display import Image\n\nImage("{name}.png")'
            for name in _DRAWS.findall(text)
        ]
        return [*written, *runs, *shown]
    return [f"%%sh\n{text}"] if language == "sh" and text.startswith("bass ") else written


def parts(text: str) -> Iterator[tuple[str, str]]:
    """The cells of a page: `markdown` or `code`, and the text of each."""
    begin, kept = 0, ""
    for block in _FENCE.finditer(text):
        before = text[begin : block.start()]
        skipped = any(mark.startswith("not run") for mark in _MARK.findall(before))
        code = [] if skipped else code_cells(*block.groups())
        kept += _MARK.sub("", before) + ("" if code else block[0])
        if code:
            yield "markdown", kept
            yield from (("code", one) for one in code)
            kept = ""
        begin = block.end()
    yield "markdown", kept + text[begin:]


def written() -> str:
    """The text of the file, in the format 4.5, without output."""
    found = [("start", "markdown", START), ("start", "code", PLACE)]
    for page in chapters():
        text = page.read_text(encoding="utf-8")
        found += [(page.stem, kind, part.strip()) for kind, part in parts(text) if part.strip()]
    cells = []
    for i, (page, kind, text) in enumerate(found):
        of_code = {"execution_count": None, "outputs": []} if kind == "code" else {}
        source = text.splitlines(keepends=True)
        cells.append(
            {"cell_type": kind, "id": f"{page}-{i}", "metadata": {}, **of_code, "source": source}
        )
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    notebook = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, ensure_ascii=False, indent=1) + "\n"


def executed(file: Path, folder: Path) -> Any:
    """The notebook after a run from top to bottom, by a kernel of this environment, whose commands
    it finds; its files go into the folder. Raises the error of the first cell that fails.
    """
    import nbclient  # pyright: ignore[reportMissingImports]
    import nbformat  # pyright: ignore[reportMissingImports]

    found = nbformat.read(file, as_version=4)
    nbformat.validate(found)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    client = nbclient.NotebookClient(found, timeout=1200, kernel_name="python3")
    client.execute(env=os.environ | {"PATH": path, "TMPDIR": str(folder)})
    return found


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
    print(FILE)
