"""The picture at the top of the README: a real run, drawn by the code that is here."""

import re
from xml.etree import ElementTree

import pytest

from bass.report.picture import kinds
from support import readme_picture
from unit.test_package import ROOT, TRAINED

SVG = readme_picture.FILE.read_text(encoding="utf-8")
NAMESPACE = "{http://www.w3.org/2000/svg}"


def test_the_readme_opens_with_the_picture() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    before, found, _ = text.partition(f"]({readme_picture.FILE.relative_to(ROOT)})")
    assert found
    assert "\n#" not in before  # no section


def test_the_picture_is_what_the_code_draws() -> None:
    """Byte for byte: from its own data, so that no processor matters. `make picture` writes it."""
    assert readme_picture.drawn(readme_picture.data_of(SVG)) == SVG


@pytest.mark.skipif(not TRAINED, reason="the embedded pair is not there")
def test_the_picture_shows_the_run_that_the_embedded_pair_makes() -> None:
    """Token for token: rows, steps, outcomes and texts; `support.readme_picture` has the margin by
    which rounding changes none.
    """
    assert readme_picture.run() == readme_picture.data_of(SVG)


def test_each_row_has_one_token_from_the_target_and_the_headings_count() -> None:
    for number, rows in enumerate(readme_picture.data_of(SVG), 1):
        for row in rows:
            accepted, drafted = row.kinds.count("A"), len(row.kinds) - 1
            assert row.kinds == kinds(drafted, accepted, accepted + 1)
            assert len(row.texts) == len(row.kinds)
        tokens = "".join(row.kinds for row in rows)
        accepted = tokens.count("A")
        said = f"{len(tokens) - len(rows)} drafted, {accepted} accepted, "
        assert f"step {number}: {said}{accepted + len(rows)} emitted<" in SVG


def test_the_picture_is_readable_in_both_schemes_and_loads_nothing() -> None:
    root = ElementTree.fromstring(SVG)
    assert "@media (prefers-color-scheme: dark)" in SVG
    assert 'class="page"' in SVG  # a background of its own: the page's scheme may be another
    assert not re.search(r"href|url\(|@import|<script|<image", SVG)
    assert all(root.findtext(f"{NAMESPACE}{name}") for name in ("title", "desc"))
    for box in root.iter(f"{NAMESPACE}rect"):
        right = float(box.attrib["x"]) + float(box.attrib["width"])
        assert right <= float(root.attrib["width"])
