"""The pages are in the navigation, their links lead somewhere, their sentences are short, names of
the reference exist, and the site builds.
"""

import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.pages import PAST, ROOT, pages

DOCS = ROOT / "docs"
LONGEST = 40  # words of a sentence
_FENCED = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
REFERENCE = {
    name: path
    for path in (DOCS / "reference").glob("*.md")
    for name in re.findall(r"^::: ([\w.]+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
}


def in_nav(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [
        page for entry in (nav.values() if isinstance(nav, dict) else nav) for page in in_nav(entry)
    ]


def named(spec: str) -> Any:
    """The module or the object that a dotted name stands for."""
    try:
        return importlib.import_module(spec)
    except ModuleNotFoundError:
        module, _, name = spec.rpartition(".")
        return getattr(named(module), name)


def public(module: Any) -> list[str]:
    """The classes and functions that a module declares, or those that it has itself."""
    declared = getattr(module, "__all__", None)
    return [
        name
        for name in declared or vars(module)
        if (inspect.isclass(one := getattr(module, name)) or inspect.isfunction(one))
        and (declared or (one.__module__ == module.__name__ and name[0] != "_"))
    ]


def prose(page: Path) -> str:
    """The text without its code blocks."""
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def slug(heading: str) -> str:
    """The anchor that a renderer gives to a heading."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", words).strip().lower())


@cache
def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ +(.+?) *$", prose(page), re.MULTILINE)
    return {*map(slug, headings), *re.findall(r'<a id="([^"]+)">', prose(page))}


def is_there(page: Path, target: str) -> bool:
    """Whether a link of a page leads to a file or a folder of the project, and to a heading."""
    name, _, anchor = target.partition("#")
    path = Path(os.path.normpath(page.parent / name)) if name else page
    if not path.exists() or not path.is_relative_to(ROOT):
        return False
    if not anchor or re.search(r"^::: ", path.read_text("utf-8"), re.MULTILINE):
        return True  # `make docs` checks the anchors of what it generates
    return anchor in anchors(path)


@pytest.mark.parametrize("page", [*pages(), *PAST])
def test_every_relative_link_leads_somewhere(page: str) -> None:
    text = re.sub(r"`[^`\n]*`", "", prose(ROOT / page))
    targets = [one for one in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in one]
    assert [one for one in targets if not is_there(ROOT / page, one)] == []


def sentences(page: Path) -> Iterator[str]:
    """Those of paragraphs and lists: without tables, headings, formulas, and targets of links."""
    text = re.sub(r"<!--.*?-->|^(#|\||:::| {4}).*$", "", prose(page), flags=re.MULTILINE)
    text = re.sub(r"`[^`]+`", "code", re.sub(r"\]\([^)]*\)", "", text))
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) )", text):
        yield from re.split(r"(?<=[.!?])[)*\"]*\s+", paragraph)


def test_no_sentence_is_long() -> None:
    found = [
        f"{page.name}: {' '.join(sentence.split())}"
        for page in (ROOT / "README.md", *DOCS.rglob("*.md"))
        if "log" not in page.parts
        for sentence in sentences(page)
        if len(re.findall(r"\S*\w\S*", sentence)) > LONGEST
    ]
    assert found == []


def test_the_navigation_has_every_page_once() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    found = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    months = {name for name in found if re.match(r"log/\d", name)}  # reached from their index
    assert sorted(in_nav(nav)) == sorted(found - months)


def test_every_name_of_the_reference_exists() -> None:
    assert {"bass.load", "bass.LLM", "bass.interfaces", "bass.records", "bass.testing"} <= {
        *REFERENCE
    }
    for name in REFERENCE:
        named(name)


@pytest.mark.nightly
def test_the_site_builds_and_loads_nothing_from_another_host(tmp_path: Path) -> None:
    """As `make docs` builds it, which says nothing where all is well."""
    pytest.importorskip("material", reason="the theme is not installed: pip install -e '.[docs]'")
    pytest.importorskip("mkdocstrings")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    tag = r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^>]*"
    loads = re.compile(rf"{tag}|url\([\"']?(?:https?:)?//")
    for path in (*tmp_path.rglob("*.html"), *tmp_path.rglob("*.css")):
        assert loads.findall(path.read_text(encoding="utf-8")) == []
