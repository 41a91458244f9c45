"""The pages of the guide agree with the source that they describe."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import bass
from bass.api.options import COUNTERPARTS, KINDS, ChatOptions, LoadOptions
from bass.option import help_of

SOURCE = Path(bass.__file__).parent
DOCS = Path(__file__).parents[2] / "docs"
OPTIONS = help_of(LoadOptions) | help_of(ChatOptions)
SHORT = ("gamma", "k", "b", "temp")  # symbols of papers, and letters
ENGINES = ("## vLLM", "## SGLang", "## llama.cpp", "## transformers")


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def rows_of(page: str, heading: str) -> list[list[str]]:
    """The cells of the tables below a heading of level 2, without the heads."""
    _, _, rest = text_of(page).partition(f"\n{heading}\n")
    assert rest, f"{page} has no `{heading}`"
    lines = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line, after in zip(lines, [*lines[1:], ""], strict=True)
        if not line.startswith("|--") and not after.startswith("|--")
    ]


def translated() -> Iterator[tuple[list[str], list[str]]]:
    """Of each row of the tables of options: the names there, and those in bass."""
    for heading in ENGINES:
        for elsewhere, ours, *_ in rows_of("coming-from.md", heading):
            theirs = re.findall("`(.*?)`", elsewhere)
            plain = [re.sub(r"\(.*|=.*|^--", "", name) for name in theirs]
            here = plain if ours == "the same names" else re.findall("`(.*?)`", ours)
            assert here or ours == "not here", elsewhere
            yield re.findall(r"\w+", " ".join(theirs)), here


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


def test_every_name_on_our_side_of_the_engines_page_exists() -> None:
    names = {name for _, ours in translated() for name in ours}
    assert len(names) > 30
    assert [name for name in names if not is_ours(name)] == []


def test_every_foreign_name_that_has_an_error_of_its_own_is_on_the_engines_page() -> None:
    """Next to the option that the error gives."""
    rows = [*translated()]
    for foreign, ours in COUNTERPARTS.items():
        if foreign in OPTIONS or foreign in SHORT:  # settings of ablations
            continue
        option = ours.partition("=")[0]
        assert any(
            foreign in theirs and any(re.match(rf"{option}\b", name) for name in here)
            for theirs, here in rows
        ), f"`{foreign}`, which means `{option}`, is in no row"


def test_every_name_in_the_glossary_is_in_the_source() -> None:
    """So that an entry does not outlive what it explains."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    terms = text_of("glossary.md").partition("\n## ")[2]
    codes = re.findall(r"`([^`]+)`", terms)
    names = {name for code in codes for name in re.findall(r"[A-Za-z_]\w+", code)}
    assert names <= {*re.findall(r"[A-Za-z_]\w+", source)}
