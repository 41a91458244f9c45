"""The pages: all in the navigation, every public name in the reference, nothing cut off."""

import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.browser import Page, browser, find_browser

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = {
    name: path
    for path in (DOCS / "reference").glob("*.md")
    for name in re.findall(r"^::: ([\w.]+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
}


def pages(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [
        page for entry in (nav.values() if isinstance(nav, dict) else nav) for page in pages(entry)
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


def test_the_navigation_has_every_page_once() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    found = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    months = {name for name in found if re.match(r"log/\d", name)}  # reached from their index
    assert sorted(pages(nav)) == sorted(found - months)


def test_every_name_of_the_reference_exists() -> None:
    assert {"bass.load", "bass.LLM", "bass.interfaces", "bass.records", "bass.testing"} <= {
        *REFERENCE
    }
    for name in REFERENCE:
        named(name)


def test_a_decision_says_why_and_with_which_figure() -> None:
    for path in (DOCS / "decisions").glob("*.md"):
        text = path.read_text(encoding="utf-8")
        if path.stem != "index":
            parts = re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE)
            assert parts == ["Context", "Decision", "Consequence", "Figure"], path
            assert len(text.splitlines()) <= 16, path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` builds it, which says nothing where all is well."""
    pytest.importorskip("material", reason="the theme is not installed: pip install -e '.[docs]'")
    pytest.importorskip("mkdocstrings")
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", out],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return out


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if find_browser() is None:
        pytest.skip("no browser was found; `BASS_BROWSER` names one")
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.mark.nightly
def test_the_reference_has_every_public_name(site: Path) -> None:
    for spec, path in REFERENCE.items():
        html = (site / "reference" / path.with_suffix(".html").name).read_text(encoding="utf-8")
        one = named(spec)
        parts = public(one) if inspect.ismodule(one) else []
        names = [f"{spec}.{name}" for name in parts] or [spec]
        wanted = [name for name in names if spec != "bass.errors" or name.endswith("Error")]
        assert wanted
        assert [name for name in wanted if f'id="{name}"' not in html] == []


@pytest.mark.nightly
def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    loads = re.compile(
        r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^>]*"
    )
    for path in site.rglob("*.html"):
        assert loads.findall(path.read_text(encoding="utf-8")) == []
    for path in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", path.read_text(encoding="utf-8"))


OUTSIDE = """(() => {
  const wide = innerWidth >= 1000, found = []
  if (document.documentElement.scrollWidth > innerWidth) found.push("the page")
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-content pre > code")) {
    const picture = box.matches("code") && !box.closest("[class*=language-]:not(.language-text)")
    const scrolls = box.scrollWidth > box.clientWidth + 1
    const reached = getComputedStyle(box).overflowX === "auto" &&
      box.getBoundingClientRect().right <= innerWidth
    if (scrolls && (wide || !reached || (box.matches("code") && !picture)))
      found.push(box.textContent.trim().slice(0, 60))
  }
  return found
})()"""


@pytest.mark.nightly
@pytest.mark.parametrize("width", [1400, 400])
def test_no_table_and_no_code_is_cut_off(site: Path, page: Page, width: int) -> None:
    """In a wide window all of it is there. In a narrow one lines of code are broken, and tables of
    many figures and pictures made of text are scrolled within the page.
    """
    page.looks(width=width)
    found = {}
    for path in sorted(set(site.rglob("*.html")) - {site / "404.html"}):  # for servers alone
        page.open(path)
        found[str(path.relative_to(site))] = page.value(OUTSIDE)
    assert len(found) > 30
    assert {name: cut for name, cut in found.items() if cut} == {}
    assert page.complaints == []
    assert {request.partition(":")[0] for request in page.requests} <= {"file", "data"}
