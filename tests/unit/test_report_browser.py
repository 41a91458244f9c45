"""The page of `bass report` in a headless browser: its width, and its picture of the batch."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import bass
from bass.analysis.report import report
from support.browser import Page, browser, find_browser
from support.run_folders import write_run

pytestmark = pytest.mark.skipif(
    find_browser() is None,
    reason=(
        "no Chromium was found: install it (Debian: apt-get install chromium), or name one with "
        "BASS_BROWSER"
    ),
)
VALUE = "Number(document.getElementById('step').value)"
TIP = "document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run with a long name and an error of one word."""
    folder = tmp_path_factory.mktemp("pages")
    methods = {"plain": 0, "bass": 4, "a setting with a name that is rather long": 8}
    run = write_run(folder / "run", methods, failed=["plain-b4"], categories=("qa", "math"))
    path = folder / "page.html"
    path.write_text(report(bass.open_run(run)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def shown(tab: Page, written: Path) -> Page:
    """The page, freshly loaded."""
    tab.looks()
    tab.open(written)
    return tab


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
def test_the_page_fits_the_window_and_loads_nothing(
    tab: Page, written: Path, scheme: str, width: int
) -> None:
    tab.complaints.clear()
    tab.requests.clear()
    tab.looks(scheme=scheme, width=width)
    tab.open(written)
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert tab.complaints == []
    assert tab.requests == [written.as_uri()]
    widths = (
        "[...document.querySelectorAll('figure svg')].map((e) => e.getBoundingClientRect().right)"
    )
    assert 0 < max(tab.value(widths)) <= width


def test_every_step_shows_the_letters_of_the_run(shown: Page) -> None:
    painted = """(() => {
        const data = JSON.parse(document.getElementById('pictures').textContent).pictures[0];
        const slider = document.getElementById('step');
        return data.steps.map((step, s) => {
            slider.value = s + 1; slider.dispatchEvent(new Event('input'));
            const rows = [...document.getElementById('window').tBodies[0].rows];
            const letters = rows.map((row) =>
                [...row.querySelectorAll('.token b')].map((b) => b.textContent).join(''));
            return JSON.stringify(letters) === JSON.stringify(step.kinds); }); })()"""
    found = shown.value(painted)
    assert len(found) > 3
    assert all(found)


def test_the_overview_has_every_committed_token(shown: Page) -> None:
    shown.value("document.getElementById('step').focus()")
    shown.press("Home", "ArrowRight", "ArrowRight")
    assert shown.value(VALUE) == 3
    counted = """['accepted', 'correction', 'bonus', 'plain'].reduce((n, name) => n + (document
        .querySelector(`.overview .${name}`).getAttribute('d').match(/M/g) ?? []).length, 0)"""
    emitted = """JSON.parse(document.getElementById('pictures').textContent).pictures[0].steps
        .slice(0, 3).flatMap((step) => step.emitted).reduce((a, b) => a + b)"""
    assert shown.value(counted) == shown.value(emitted)


def test_a_token_is_described_under_the_pointer_and_with_the_focus(shown: Page) -> None:
    assert shown.value(TIP) == ""
    shown.hover("#window .token.accepted")
    for text in (": accepted", "probability of the target: ", "probability of the draft: "):
        assert text in shown.value(TIP)
    shown.value("document.getElementById('step').focus()")
    shown.press("Tab")
    assert "row 0" in shown.value(TIP)
    shown.press("ArrowDown")
    assert "row 1" in shown.value(TIP)
    shown.press("Escape")
    assert shown.value(TIP) == ""


def test_another_setting_can_be_chosen(shown: Page) -> None:
    titles = "[...document.getElementById('cell').options].map((o) => o.textContent)"
    number = shown.value(titles).index("bass, batch 1")
    assert number > 0
    shown.value(
        f"(() => {{ const c = document.getElementById('cell'); c.value = {number}; "
        "c.dispatchEvent(new Event('change')); })()"
    )
    said = "document.getElementById('counts').textContent"
    assert shown.value(said).startswith("bass, batch 1")
    assert shown.value("document.getElementById('window').tBodies[0].rows.length") == 1
