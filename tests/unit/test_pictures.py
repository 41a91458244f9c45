"""The pictures of the README and of the documentation."""

import json
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from support.pictures import PICTURES
from support.pictures.svg import ASSETS, data_of
from unit.test_package import ROOT, TRAINED

FILES = [path for path in sorted(ASSETS.glob("*.svg")) if path.stem != "favicon"]
drawn = pytest.mark.parametrize("picture", PICTURES.values(), ids=PICTURES)


@drawn
def test_a_picture_is_what_the_code_draws(picture: ModuleType) -> None:
    """Byte for byte: from its own data, so that no processor matters. `make picture` writes it."""
    svg = picture.FILE.read_text(encoding="utf-8")
    assert picture.drawn(data_of(svg)) == svg


@pytest.mark.parametrize(
    "picture",
    [
        pytest.param(one, id=name, marks=pytest.mark.nightly if name == "ablation" else ())
        for name, one in PICTURES.items()
    ],
)
@pytest.mark.skipif(not TRAINED, reason="the embedded pair is not there")
def test_a_picture_shows_what_the_code_does(picture: ModuleType) -> None:
    """Token for token; `support.pictures.run` has the margin by which rounding changes none."""
    shown = data_of(picture.FILE.read_text(encoding="utf-8"))
    assert json.loads(json.dumps(picture.measured())) == shown


@pytest.mark.parametrize("file", FILES, ids=[path.stem for path in FILES])
def test_a_picture_is_on_a_page_and_loads_nothing(file: Path) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert any(f"assets/{file.name})" in page.read_text(encoding="utf-8") for page in pages)
    svg = file.read_text(encoding="utf-8")
    ElementTree.fromstring(svg)
    assert not re.search(r'href="[^#]|url\([^#]|@import|<script|<image', svg)
