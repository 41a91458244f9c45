"""The pictures of the README and of the documentation: each is drawn by the code that is here."""

import json
import re
from types import ModuleType
from xml.etree import ElementTree

import pytest

from bass.report.picture import kinds
from support.pictures import PICTURES, layouts, lossless, noise
from support.pictures.svg import data_of
from unit.test_package import ROOT, TRAINED

NAMESPACE = "{http://www.w3.org/2000/svg}"
WITHOUT_PAIR = {"lossless", "cost", "layouts"}
every_picture = pytest.mark.parametrize("picture", PICTURES.values(), ids=PICTURES)


def svg_of(picture: ModuleType) -> str:
    return picture.FILE.read_text(encoding="utf-8")


def test_the_readme_opens_with_the_picture_of_a_run() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    before, found, _ = text.partition(f"]({PICTURES['run'].FILE.relative_to(ROOT)})")
    assert found
    assert "\n#" not in before  # no section


@every_picture
def test_each_picture_is_on_a_page_with_an_alternative_text(picture: ModuleType) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = re.compile(rf"!\[([^\]]{{40,}})\]\([./a-z]*assets/{picture.FILE.name}\)")
    assert any(shown.search(page.read_text(encoding="utf-8")) for page in pages)


@every_picture
def test_a_picture_is_what_the_code_draws(picture: ModuleType) -> None:
    """Byte for byte: from its own data, so that no processor matters. `make picture` writes it."""
    svg = svg_of(picture)
    assert picture.drawn(data_of(svg)) == svg


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_shows_what_the_code_does(name: str) -> None:
    """Token for token; `support.pictures.run` has the margin by which rounding changes none."""
    if name not in WITHOUT_PAIR and not TRAINED:
        pytest.skip("the embedded pair is not there")
    picture = PICTURES[name]
    assert json.loads(json.dumps(picture.measured())) == data_of(svg_of(picture))


def test_each_row_has_one_token_from_the_target_and_the_headings_count() -> None:
    svg = svg_of(PICTURES["run"])
    for number, rows in enumerate(data_of(svg), 1):
        for _, letters, texts in rows:
            accepted, drafted = letters.count("A"), len(letters) - 1
            assert letters == kinds(drafted, accepted, accepted + 1)
            assert len(texts) == len(letters)
        tokens = "".join(letters for _, letters, _ in rows)
        accepted = tokens.count("A")
        said = f"{len(tokens) - len(rows)} drafted, {accepted} accepted, "
        assert f"step {number}: {said}{accepted + len(rows)} emitted<" in svg


def test_the_row_has_stale_keys_that_the_next_window_overwrites() -> None:
    first, second = data_of(svg_of(PICTURES["row"]))
    start, end = second["positions"][0], first["positions"][-1] + 1
    assert first["before"][first["lens"] - 1] is None  # the last committed token was not fed
    assert second["lens"] - 1 == start < end  # a stale key is at or above the next window's start
    assert second["before"][:start] == second["committed"][:start]
    assert second["after"][start : start + 5] == second["window"]


def test_a_step_is_launched_before_the_report_only_with_a_constant_length() -> None:
    learns, constant = data_of(svg_of(PICTURES["overlap"])).values()
    assert learns.index(["update", 1]) < learns.index(["launch", 2]) < learns.index(["emit", 1])
    assert constant.index(["launch", 2]) < constant.index(["report", 1])


def test_the_three_mistakes_are_biased_and_rejection_sampling_is_not() -> None:
    right, *wrong = data_of(svg_of(PICTURES["lossless"])).values()
    assert right == list(lossless.TARGET)
    for law in wrong:
        assert sum(law) == pytest.approx(1, abs=1e-5)
        assert sum(abs(p - t) for p, t in zip(law, right, strict=True)) / 2 > 0.1


def test_the_verdict_follows_from_the_uniforms_that_are_marked_as_used() -> None:
    for step in data_of(svg_of(PICTURES["noise"]))["steps"]:
        marked = [
            [noise.used(step["accepted"], slot, stream) for stream in range(3)]
            for slot in range(noise.K + 1)
        ]
        judged = min(step["accepted"] + 1, noise.K)
        assert [sum(stream) for stream in zip(*marked, strict=True)] == [noise.K, judged, 1]


def test_the_layouts_hold_every_position_and_read_no_padding_but_pads() -> None:
    everything = {(row, p) for row, n in enumerate(layouts.LENGTHS) for p in range(n)}
    for way in data_of(svg_of(PICTURES["layouts"])):
        held = [tuple(place) for slot in way["slots"] for place in slot]
        assert sorted(held) == sorted(everything)
        read = [sum(row) for row in zip(*way["launches"], strict=True)]
        padded = [max(layouts.LENGTHS)] * 3
        assert read == (padded if "PAD" in way["name"] else list(layouts.LENGTHS))


@every_picture
def test_a_picture_is_readable_in_both_schemes_and_loads_nothing(picture: ModuleType) -> None:
    svg = svg_of(picture)
    root = ElementTree.fromstring(svg)
    assert "@media (prefers-color-scheme: dark)" in svg
    assert 'class="page"' in svg  # a background of its own: the page's scheme may be another
    assert set(re.findall(r"var\((--[\w-]+)\)", svg)) <= set(re.findall(r"(--[\w-]+):", svg))
    assert not re.search(r'href="[^#]|url\([^#]|@import|<script|<image', svg)
    assert all(root.findtext(f"{NAMESPACE}{name}") for name in ("title", "desc"))
    for box in root.iter(f"{NAMESPACE}rect"):
        right = float(box.attrib["x"]) + float(box.attrib["width"])
        assert right <= float(root.attrib["width"])
