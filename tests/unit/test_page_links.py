"""Links of the pages: the file is there, and so is the heading."""

import os
import re
from functools import cache
from pathlib import Path

import pytest

from support.pages import PAST, ROOT, pages

_FENCED = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)


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
