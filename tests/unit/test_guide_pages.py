"""The pages of the guide agree with the source that they describe."""

import re
from pathlib import Path

from support import shapes_page

DOCS = Path(__file__).parents[2] / "docs"


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """The text below a heading, up to the next one of its level."""
    level = heading.split(" ")[0]
    _, _, rest = text_of(page).partition(f"\n{heading}\n")
    assert rest, f"{page} has no `{heading}`"
    return re.split(rf"^#{{1,{len(level)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def first_column(text: str) -> list[str]:
    """The first cells of all rows of the tables in a text, without heads."""
    cells = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")]
    return [
        cell
        for i, cell in enumerate(cells)
        if not cell.startswith("--") and cells[i + 1 : i + 2] != ["---"]
    ]


def test_the_tables_of_shapes_are_those_of_the_annotations() -> None:
    text = text_of("shapes.md")
    assert shapes_page.filled(text) == text, "run `make options`"


def test_the_page_of_shapes_explains_every_axis_and_no_other() -> None:
    cells = first_column(section("shapes.md", "## The axes"))
    numbers = ["`span`", "capacity", "`lens[b]`", "`AttentionRule.window`"]
    assert cells[-len(numbers) :] == numbers
    explained = {name for cell in cells[: -len(numbers)] for name in re.findall(r"`(\w+)`", cell)}
    assert explained == shapes_page.all_axes() | {"requests"}


def test_the_page_of_shapes_names_every_record_and_interface() -> None:
    assert {one.__name__ for one in shapes_page.RECORDS} == {*shapes_page.LIVES}
    owners = {key.partition(".")[0] for key in shapes_page.CALLERS}
    assert {one.__name__ for one in shapes_page.INTERFACES} == owners
