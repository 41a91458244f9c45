"""Writes the table of docs/correctness.md:

`python -m models.table` (in tests/) measures every case again.
"""

import tempfile
from pathlib import Path

from transformers import __version__

from models.cases import CASES
from models.reference import deviation, make

PAGE = Path(__file__).parents[2] / "docs" / "correctness.md"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"


def rows() -> list[str]:
    """Of each family: how many variants it has, and the worst deviation among them."""
    found = []
    for family in dict.fromkeys(case.family for case in CASES):
        cases = [case for case in CASES if case.family == family]
        worst = 0.0
        for case in cases:
            with tempfile.TemporaryDirectory() as folder:
                model = make(case)
                model.save_pretrained(folder)
                worst = max(worst, deviation(case, Path(folder), model))
        found.append(f"{family:18}{len(cases):2}  {worst:.1e}")
    length = -(-len(found) // 3)
    lines = ["     ".join(found[i::length]) for i in range(length)]
    fenced = ["<!-- not run: measured -->", "```text", *lines, "```"]
    return [*fenced, "", f"Measured against `transformers` {__version__}."]


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(
        before + BEGIN + "\n".join(rows()) + "\n" + END + rest.split(END)[1], encoding="utf-8"
    )
