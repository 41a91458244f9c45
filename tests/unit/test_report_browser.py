"""The page of `bass report` in a headless browser: it paints without a complaint, and answers to
pointer and keyboard.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bass.analysis.evaluated import read_evaluation
from bass.report.evaluation import page as page_of_evaluation
from bass.report.page import comparison, page
from support.browser import Page, browser, find_browser
from support.evaluation_folders import write_evaluation
from support.run_folders import write_run

pytestmark = pytest.mark.skipif(
    find_browser() is None,
    reason=(
        "no Chromium was found: install it (Debian: apt-get install chromium), or name one with "
        "BASS_BROWSER"
    ),
)
DATA = "JSON.parse(document.getElementById('pictures').textContent)"
VALUE = "Number(document.getElementById('step').value)"
TIP = "document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of a whole run, of one without texts and drafts, of two runs, and of an evaluation."""
    folder = tmp_path_factory.mktemp("pages")
    run = write_run(
        folder / "run", batches=(1, 4), policies=("plain", "bass"), repeats=2, tokens=40
    )
    bare = write_run(folder / "bare", batches=(4,), policies=("bass",), repeats=1, watched=0)
    evaluated = read_evaluation(write_evaluation(folder / "evaluated"))
    long = write_run(
        folder / "long",
        batches=(1,),
        policies=[f"a setting of {i} with a name that is long" for i in range(6)],
        repeats=1,
    )
    (folder / "long.html").write_text(page(long)[0], encoding="utf-8")
    pages = {
        "run": page(run)[0],
        "bare": page(bare)[0],
        "both": comparison(run, run)[0],
        "evaluated": page_of_evaluation(evaluated)[0],
    }
    for name, html in pages.items():
        (folder / f"{name}.html").write_text(html, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def shown(tab: Page, written: Path) -> Page:
    """The whole run's page, freshly loaded."""
    tab.looks()
    tab.open(written / "run.html")
    return tab


@pytest.mark.parametrize("name", ["run", "bare", "both", "evaluated"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_loads_without_a_complaint_and_asks_the_network_for_nothing(
    tab: Page, written: Path, name: str, scheme: str
) -> None:
    tab.complaints.clear()
    tab.requests.clear()
    tab.looks(scheme=scheme)
    tab.open(written / f"{name}.html")
    assert tab.value("document.querySelectorAll('h1').length") == 1
    assert tab.complaints == []
    assert tab.requests == [(written / f"{name}.html").as_uri()]


def test_a_broken_page_would_be_noticed(tab: Page, tmp_path: Path) -> None:
    tab.complaints.clear()
    (tmp_path / "bad.html").write_text(
        "<script>console.error('first'); second()</script>", encoding="utf-8"
    )
    tab.open(tmp_path / "bad.html")
    assert [("first" in said, "second" in said) for said in tab.complaints] == [
        (True, False),
        (False, True),
    ]
    tab.complaints.clear()


def test_the_slider_goes_through_the_steps_by_keyboard(shown: Page) -> None:
    steps = int(shown.value("document.getElementById('step').max"))
    shown.value("document.getElementById('step').focus()")
    shown.press("Home")
    assert shown.value(VALUE) == 1
    first = shown.value("document.getElementById('window').textContent")
    shown.press("ArrowRight", "ArrowRight")
    assert shown.value(VALUE) == 3
    assert f"step 3 of {steps}" in shown.value("document.getElementById('told').textContent")
    assert f"step 3 of {steps}" in shown.value(
        "document.getElementById('step').getAttribute('aria-valuetext')"
    )
    assert shown.value("document.getElementById('window').textContent") != first
    shown.press("End")
    assert shown.value(VALUE) == steps
    shown.value("document.getElementById('back').click()")
    assert shown.value(VALUE) == steps - 1


def test_every_step_shows_the_letters_of_the_run(shown: Page) -> None:
    painted = """(() => { const data = JSON.parse(document.getElementById('pictures').textContent).pictures[0], found = [];
        const slider = document.getElementById('step');
        data.steps.forEach((step, s) => { slider.value = s + 1; slider.dispatchEvent(new Event('input'));
            const rows = [...document.getElementById('window').tBodies[0].rows];
            const letters = rows.map((row) => [...row.querySelectorAll('.token b')].map((b) => b.textContent).join(''));
            found.push(JSON.stringify(letters) === JSON.stringify(step.kinds)); });
        return found; })()"""
    found = shown.value(painted)
    assert len(found) > 5
    assert all(found)


def test_the_overview_has_every_committed_token_and_a_ragged_edge(shown: Page) -> None:
    shown.value("document.getElementById('step').focus()")
    shown.press("Home", "ArrowRight", "ArrowRight")
    counted = """['accepted', 'correction', 'bonus', 'plain'].reduce((n, name) =>
        n + (document.querySelector(`.overview .${name}`).getAttribute('d').match(/M/g) ?? []).length, 0)"""
    emitted = (
        f"{DATA}.pictures[0].steps.slice(0, 3).flatMap((step) => step.emitted).reduce((a, b) => a "
        "+ b)"
    )
    assert shown.value(counted) == shown.value(emitted)
    frames = "document.querySelector('.overview .now').getAttribute('d').match(/M[0-9]+/g)"
    assert len(set(shown.value(frames))) > 1


def test_a_token_tells_of_itself_under_the_pointer_and_with_the_focus(shown: Page) -> None:
    assert shown.value(TIP) == ""
    shown.hover("#window .token.accepted")
    assert ": accepted" in shown.value(TIP)
    assert "probability of the target: " in shown.value(TIP)
    assert "probability of the draft: " in shown.value(TIP)
    shown.hover("h1")
    assert shown.value(TIP) == ""
    shown.value("document.getElementById('step').focus()")
    shown.press("Tab")
    assert shown.value("document.activeElement.classList.contains('token')")
    before = shown.value(TIP)
    assert "row 0" in before
    shown.press("ArrowDown")
    assert "row 1" in shown.value(TIP)
    shown.press("ArrowUp", "End")
    assert shown.value(TIP) != before
    assert shown.value(TIP).replace("\n", ", ") == shown.value(
        "document.activeElement.getAttribute('aria-label')"
    )
    shown.press("Escape")
    assert shown.value(TIP) == ""
    assert shown.value("document.querySelectorAll('#window [tabindex=\"0\"]').length") == 1


def test_a_click_in_the_overview_goes_to_the_step_of_the_token(shown: Page) -> None:
    shown.value("document.getElementById('step').focus()")
    shown.press("End")
    shown.value("document.getElementById('overview').scrollIntoView()")
    place = f"""(() => {{ const picture = {DATA}.pictures[0], overview = document.getElementById('overview');
        const last = picture.steps[picture.steps.length - 1].requests, index = last.find((r) => r >= 0);
        const view = overview.viewBox.baseVal, box = overview.getBoundingClientRect();
        return [box.x + (picture.requests[index].prompt + 0.5 - view.x) / view.width * box.width,
                box.y + (last.indexOf(index) + 0.6) * 16 / view.height * box.height,
                1 + picture.steps.findIndex((step) => step.requests.includes(index))]; }})()"""
    x, y, step = shown.value(place)
    for kind in ("mousePressed", "mouseReleased"):
        shown.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    assert shown.value(VALUE) == step


def test_another_setting_can_be_chosen(shown: Page) -> None:
    titles = shown.value("[...document.getElementById('cell').options].map((o) => o.textContent)")
    assert titles == ["bass, batch 4", "bass, batch 1", "plain, batch 4", "plain, batch 1"]
    shown.value(
        "(() => { const c = document.getElementById('cell'); c.value = 2; c.dispatchEvent(new "
        "Event('change')); })()"
    )
    assert shown.value("document.getElementById('told').textContent").startswith("plain, batch 4")
    assert shown.value(
        "[...document.querySelectorAll('#window .token b')].every((b) => b.textContent === 'P')"
    )


@pytest.mark.parametrize("width", [360, 1200])
def test_what_the_target_adds_is_in_sight_however_long_the_drafts_are(
    shown: Page, width: int
) -> None:
    shown.looks(width=width)
    edges = (
        "[...document.querySelectorAll('#window .added')].map((cell) => "
        "cell.getBoundingClientRect().right)"
    )
    assert max(shown.value(edges)) <= width
    assert shown.value("document.querySelectorAll('#window .added .token').length") > 1


def test_rejected_tokens_that_were_not_noted_are_blanks(tab: Page, written: Path) -> None:
    tab.looks()
    tab.open(written / "bare.html")
    tab.hover("#window .token.rejected")
    assert "not recorded" in tab.value(TIP)
    assert (
        tab.value("document.querySelector('#window .token.rejected span').textContent.trim()") == ""
    )


def test_light_dark_and_print_have_their_colours(shown: Page) -> None:
    page_colour = "getComputedStyle(document.body).backgroundColor"
    line = "getComputedStyle(document.querySelector('figure svg text')).fill"
    seen = {}
    for media, scheme in (("screen", "light"), ("screen", "dark"), ("print", "dark")):
        shown.looks(media, scheme)
        seen[media, scheme] = (shown.value(page_colour), shown.value(line))
    assert seen["screen", "light"] == seen["print", "dark"] != seen["screen", "dark"]
    assert seen["screen", "light"][0] == "rgb(255, 255, 255)"


@pytest.mark.parametrize("name", ["run", "both", "evaluated"])
@pytest.mark.parametrize("width", [360, 1200])
def test_a_page_is_never_wider_than_the_window(
    tab: Page, written: Path, name: str, width: int
) -> None:
    tab.looks(width=width)
    tab.open(written / f"{name}.html")
    assert tab.value("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", ["run", "evaluated", "long"])
def test_no_words_of_a_plot_lie_on_each_other_or_outside(
    tab: Page, written: Path, name: str
) -> None:
    """Words of one figure whose boxes share more than a pixel in both directions, or that its box
    cuts off.
    """
    tab.looks()
    tab.open(written / f"{name}.html")
    found = """[...document.querySelectorAll('figure')].flatMap((figure) => {
        const boxes = [...figure.querySelectorAll('svg text')].map((text) => [text.textContent.trim(), text.getBoundingClientRect()]);
        return boxes.flatMap(([a, x], i) => boxes.slice(i + 1).filter(([b, y]) => a && b &&
            Math.min(x.right, y.right) - Math.max(x.left, y.left) > 1 && Math.min(x.bottom, y.bottom) - Math.max(x.top, y.top) > 1)
            .map(([b]) => `${figure.querySelector('h3').textContent}: ${a} / ${b}`)); })"""
    assert tab.value("document.querySelectorAll('figure svg text').length") > 40
    assert tab.value(found) == []
    outside = """[...document.querySelectorAll('figure svg')].flatMap((svg) => { const box = svg.getBoundingClientRect();
        return [...svg.querySelectorAll('text')].map((text) => [text.textContent, text.getBoundingClientRect()])
            .filter(([_, x]) => x.left < box.left - 1 || x.right > box.right + 1 || x.bottom > box.bottom + 1).map(([said]) => said); })"""
    assert tab.value(outside) == []


def test_it_prints(shown: Page, tmp_path: Path) -> None:
    shown.looks("print")
    shown.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").stat().st_size > 20_000
