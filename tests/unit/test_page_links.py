"""Links of the pages: the file is there, and so is the heading."""

import os
import re
from functools import cache
from pathlib import Path

import pytest

from support.pages import PAST, ROOT, blocks, pages

PAGES = [*pages(), *PAST]
_FENCED = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
# options of other programs; and two pages that still have underscores
UNDERSCORES = ("docs/coming-from.md",)


def prose(page: Path) -> str:
    """The text without its code blocks."""
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def slug(heading: str) -> str:
    """The anchor that a renderer gives to a heading."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", words).strip().lower())


@cache
def anchors(page: Path) -> set[str]:
    text = prose(page)
    headings = [slug(one) for one in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)]
    return {*headings, *re.findall(r'<a id="([^"]+)">', text)}


def is_there(page: Path, target: str) -> bool:
    """Whether a link of a page leads to a file or a folder of the project, and to a heading."""
    name, _, anchor = target.partition("#")
    path = Path(os.path.normpath(page.parent / name)) if name else page
    if not path.exists() or not path.is_relative_to(ROOT):
        return False
    if not anchor or re.search(r"^::: ", path.read_text("utf-8"), re.MULTILINE):
        return True  # `make docs` checks the anchors of what it generates
    return anchor in anchors(path)


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_leads_somewhere(page: str) -> None:
    text = re.sub(r"`[^`\n]*`", "", prose(ROOT / page))
    targets = [one for one in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in one]
    assert [one for one in targets if not is_there(ROOT / page, one)] == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    readme = ROOT / "README.md"
    assert is_there(readme, "docs/tutorial/policy.md#simulate-it")
    assert is_there(readme, "#install")
    for wrong in ("docs/tutorial.md", "docs/tutorial/policy.md#nothing", "#nothing", "../x.md"):
        assert not is_there(readme, wrong)


@pytest.mark.parametrize("page", sorted({*pages()} - {*UNDERSCORES}))
def test_options_of_shown_commands_are_written_with_hyphens(page: str) -> None:
    """As `--help` shows them; both spellings are parsed."""
    text = (ROOT / page).read_text(encoding="utf-8")
    inline = re.findall(r"`([^`\n]*)`", _FENCED.sub("", text))
    shown = [*inline, *(b.text for b in blocks(page) if b.language in ("sh", "console"))]
    # the names of settings, as in `--base.max_new_tokens`, are those of a config
    wrong = [w for one in shown for w in re.findall(r"(?<!\S)--[a-z]+_[a-z_]+", one)]
    assert wrong == []
