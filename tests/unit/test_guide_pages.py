"""The pages of the guide agree with the source that they describe."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bass.api.elsewhere import ALIASES, ELSEWHERE, NOT_HERE
from bass.api.kinds import KINDS
from bass.api.options import (
    ChatOptions,
    LoadOptions,
    RequestOptions,
    help_of,
    unknown_option,
)
from support import shapes_page
from unit.checkpoints import Said

DOCS = Path(__file__).parents[2] / "docs"


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """The text below a heading, up to the next one of its level."""
    level = heading.split(" ")[0]
    _, _, rest = text_of(page).partition(f"\n{heading}\n")
    assert rest, f"{page} has no `{heading}`"
    return re.split(rf"^#{{1,{len(level)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


OPTIONS = help_of(LoadOptions) | help_of(ChatOptions)
ENGINES = ("## vLLM", "## SGLang", "## transformers", "## gpt-fast")


def table_rows(text: str) -> list[list[str]]:
    """The cells of all rows of the tables in a text, without heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [
        row
        for row, line, after in zip(rows, lines, [*lines[1:], ""], strict=True)
        if not line.startswith("|--") and not after.startswith("|--")
    ]


def is_ours(name: str) -> bool:
    """Whether it is an option, `kind: strategy`, or `kind.parameter` of some strategy."""
    kind, _, strategy = name.partition(": ")
    if strategy:
        return strategy in KINDS[kind].registry
    kind, _, parameter = name.partition(".")
    if parameter:
        registry = KINDS[kind].registry
        return any(parameter in inspect.signature(one).parameters for one in registry.values())
    return name in OPTIONS


def translated() -> list[tuple[list[str], list[str]]]:
    """Of each row of the tables of options: the names there, and those in bass."""
    found = []
    for heading in ENGINES:
        for elsewhere, ours, *_ in table_rows(section("coming-from.md", heading)):
            theirs = [
                re.sub(r"\(.*|=.*|^--", "", name) for name in re.findall("`(.*?)`", elsewhere)
            ]
            here = theirs if ours == "the same names" else re.findall("`(.*?)`", ours)
            assert here or ours == "not here", elsewhere
            found.append((re.findall(r"\w+", " ".join(re.findall("`(.*?)`", elsewhere))), here))
    return found


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


def test_every_name_on_our_side_of_the_engines_page_exists() -> None:
    names = {name for _, ours in translated() for name in ours}
    assert len(names) > 30
    assert [name for name in names if not is_ours(name)] == []


def test_every_foreign_name_that_has_an_error_of_its_own_is_on_the_engines_page() -> None:
    """Next to the option that the error gives."""
    rows = translated()
    meant = {name: one.option for name, one in ELSEWHERE.items()} | ALIASES
    for foreign, ours in meant.items():
        if foreign in OPTIONS or foreign == "gamma":  # settings of ablations; the papers' symbol
            continue
        assert any(
            foreign in theirs and any(re.match(rf"{ours}\b", name) for name in here)
            for theirs, here in rows
        ), f"`{foreign}`, which means `{ours}`, is in no row"
    assert "`gamma`" in text_of("coming-from.md")
    absent = {name for theirs, ours in rows if not ours for name in theirs}
    assert {*NOT_HERE} <= absent


def names_there(cell: str) -> list[str]:
    """The names of options in a cell, without their values: `name`: `value`; `value`."""
    names = cell.partition("`: `")[0]
    found = [re.sub(r"^\w*\((\w+)=.*", r"\1", one) for one in re.findall("`(.*?)`", names + "`")]
    return [re.sub(r"=.*|^--", "", name) for name in found if name]


def answers() -> dict[str, list[str]]:
    """Of each option of another engine: its names here; none for one that is not here."""
    found: dict[str, list[str]] = {}
    for heading in ENGINES:
        for elsewhere, ours, *_ in table_rows(section("coming-from.md", heading)):
            for name in names_there(elsewhere):
                same = ours == "the same names"
                found.setdefault(name, []).extend([name] if same else re.findall("`(.*?)`", ours))
    return found


@pytest.mark.parametrize("name", sorted(answers()))
@pytest.mark.parametrize("way", ["load", "generate", "command"])
def test_every_name_of_another_engine_gets_the_answer_of_the_page(
    name: str, way: str, bass_command: Callable[..., Said]
) -> None:
    here = answers()[name]
    if way == "command":
        if name in OPTIONS:  # it is an option here too
            return
        text = bass_command("generate", "def f(", f"--{name}", "1").err
    else:
        options = LoadOptions if way == "load" else RequestOptions
        if name in help_of(options) or (name in ALIASES and way == "load"):
            return
        text = str(unknown_option(name, options))
    assert f"`{name}`" in text or f"`--{name.replace('_', '-')}`" in text
    assert "Known: " not in text
    assert "Did you mean" not in text
    if not here:
        assert "it is not here, since " in text
        return
    [said] = re.findall(r"give (.*?) \(", text)
    given = re.search(r"\w+", said.replace("it to", name).replace("-", "_").lstrip("`_"))
    assert given is not None
    assert given[0] in {re.split(r"[.:]", one)[0] for one in here}
    if (chosen := [one for one in here if ": " in one]) and len(chosen) == 1:
        assert chosen[0].partition(": ")[2] in said


def test_the_page_of_scope_has_what_the_readme_says_is_not_here() -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8").replace("\n", " ")
    [(out, today)] = re.findall(
        r"\*\*Out of scope:\*\* (.*?)\. Not supported today: (.*?)\.(?= )", readme
    )
    for items, heading in ((out, "## Out of scope"), (today, "## Not supported today")):
        cells = [cell.replace("-", " ") for cell in first_column(section("scope.md", heading))]
        for item in items.replace("-", " ").split(", "):
            assert any(item in cell for cell in cells), f"`{item}` is not in {heading}"


def test_every_link_to_the_glossary_finds_its_term() -> None:
    anchors = re.findall(r'<a id="([\w-]+)"></a>', text_of("glossary.md"))
    assert len(anchors) == len({*anchors}) > 60
    rows = table_rows(text_of("glossary.md"))
    assert [row[0] for row in rows if not row[0].startswith("<a id=")] == []
    pages = [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]
    linked = {
        term
        for page in pages
        for term in re.findall(r"glossary\.md#([\w-]+)", page.read_text(encoding="utf-8"))
    }
    assert linked - {*anchors} == set()


def test_every_name_in_the_glossary_is_in_the_source() -> None:
    """So that an entry does not outlive what it explains."""
    source = "\n".join(
        path.read_text(encoding="utf-8") for path in (DOCS.parent / "src/bass").rglob("*.py")
    )
    terms = text_of("glossary.md").partition("\n## ")[2]
    names = {
        name
        for code in re.findall(r"`([^`]+)`", terms)
        for name in re.findall(r"[A-Za-z_]\w+", code)
    }
    words = {*re.findall(r"[A-Za-z_]\w+", source)}
    assert names - words == set()
