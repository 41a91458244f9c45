"""The tables of options in the documentation, which `make options` writes from the dataclasses."""

import json
import re
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from bass.api.options import LoadOptions, ModelOptions, RequestOptions, TemplateOptions
from bass.experiments.settings import BenchOptions, Settings
from bass.sampling_params import PER_PROMPT, SamplingParams

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (DOCS / "reference/options.md", DOCS / "ablations.md", DOCS / "bench.md")
_INHERITED = {f.name for options in (ModelOptions, SamplingParams) for f in fields(options)}
TABLES: dict[str, list[Field[Any]]] = {
    "load": [*fields(LoadOptions)],
    "generate": [*fields(RequestOptions)],
    "chat": [*fields(TemplateOptions)],
    "bench": [*fields(BenchOptions)],
    "ablations": [f for f in fields(Settings) if f.name not in _INHERITED],
}
_MARK = re.compile(r"(<!-- options of (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(name: str) -> str:
    """A row for each option; defaults as they are written in Python, or in YAML."""
    write = json.dumps if name in ("ablations", "bench") else repr
    listed = name == "generate"  # Python alone takes lists of one value per prompt
    head = ["option", "default", *(["one per prompt"] if listed else []), "meaning"]
    rows = [head]
    for f in TABLES[name]:
        takes_list = ["list" if f.name in PER_PROMPT else ""] if listed else []
        rows.append([f"`{f.name}`", f"`{write(f.default)}`", *takes_list, f.metadata["help"]])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def filled(text: str) -> str:
    """The page with its tables as they have to be."""
    return _MARK.sub(lambda found: f"{found[1]}\n{table(found[2])}\n\n{found[3]}", text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
