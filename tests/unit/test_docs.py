"""The pages are in the navigation, names of the reference exist, and the site builds."""

import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

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
