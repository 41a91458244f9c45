"""`bass report`: the page, its picture of the batch, its plots and its summary."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bass.analysis.metrics import METRICS
from bass.errors import RunFolderError
from bass.report.cells import read_cells
from bass.report.contrast import lead
from bass.report.drawing import Plot
from bass.report.page import MOST_BYTES, comparison, page
from bass.report.picture import LETTERS, embedded, kinds, picture
from bass.report.plots import plots
from bass.report.summary import sentences, winners
from bass.runs.drafts import TEXTS, DraftLine, read_texts, write_texts
from bass.runs.run_folder import RunFolder
from bass.text import Tokenizer
from support.run_folders import write_run
from unit.checkpoints import byte_tokenizer, write_checkpoint


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return write_run(tmp_path_factory.mktemp("runs") / "lengths", repeats=4)


@pytest.fixture(scope="module")
def html(run: RunFolder) -> str:
    return page(run)[0]


class Text(HTMLParser):
    """The words of a page; an element that is closed and was not open, or stays open, is an
    error.
    """

    VOID = ("meta", "input", "br")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.words = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open += [] if tag in self.VOID else [tag]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href")
        ]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.words += data


@given(drafted=st.integers(0, 40), data=st.data())
def test_every_drafted_and_every_emitted_token_has_a_letter(
    drafted: int, data: st.DataObject
) -> None:
    accepted = data.draw(st.integers(0, drafted))
    for emitted in (accepted, accepted + 1):
        letters = kinds(drafted, accepted, emitted)
        assert set(letters) <= set(LETTERS)
        assert sum(letter in "ARU" for letter in letters) == drafted
        assert sum(letter in "ACBP" for letter in letters) == emitted
        assert letters.count("A") == accepted
        assert letters == "".join(
            sorted(letters, key=lambda letter: letter not in "A" and 1 + (letter in "CBP"))
        )


def test_the_letters_of_a_step() -> None:
    assert [kinds(5, 3, 4), kinds(2, 2, 3), kinds(0, 0, 1), kinds(4, 2, 2), kinds(3, 0, 1)] == [
        "AAARRC",
        "AAB",
        "P",
        "AAUU",
        "RRRC",
    ]


def test_the_picture_accounts_for_every_token_of_every_request(run: RunFolder) -> None:
    for cell in read_cells(run):
        steps = [step for step in cell.lines.steps if step.repeat == 0]
        painted = picture(cell.title, steps, cell.generations[0].requests, {})
        committed: dict[int, int] = {}
        for step in painted["steps"]:
            for index, letters in zip(step["requests"], step["kinds"], strict=True):
                committed[index] = committed.get(index, 0) + sum(
                    letter in "ACBP" for letter in letters
                )
        committed.pop(-1, None)
        assert committed == {
            line.request: len(line.tokens) for line in cell.generations[0].requests
        }
        assert {index: request["tokens"] for index, request in painted["requests"].items()} == {
            line.request: line.tokens for line in cell.generations[0].requests
        }


def test_a_picture_of_a_long_run_is_its_beginning_and_says_so(run: RunFolder) -> None:
    cell = read_cells(run)[-1]
    steps = [step for step in cell.lines.steps if step.repeat == 0]
    whole, part = (
        picture("", steps, cell.generations[0].requests, {}, size) for size in (10**9, 1500)
    )
    count = len(part["steps"])
    assert 0 < count < len(whole["steps"]) == len(steps)
    assert part["steps"] == whole["steps"][:count]
    assert f"The first {count} of {len(steps)} steps are shown." in part["note"]
    assert sum(len(request["tokens"]) for request in part["requests"].values()) == sum(
        sum(step.emitted) for step in steps[:count]
    )


def test_rejected_tokens_are_told_where_they_were_noted(run: RunFolder) -> None:
    cell = read_cells(run)[-1]
    [step, *_] = [step for step in cell.lines.steps if step.repeat == 0]
    line = DraftLine(
        0, 0, [list(range(d)) for d in step.drafted], [[0.5] * d for d in step.drafted]
    )
    assert (
        picture("", [step], cell.generations[0].requests, {0: line})["steps"][0]["tokens"]
        == line.tokens
    )
    assert "blanks" not in picture("", [step], cell.generations[0].requests, {0: line})["note"]
    assert "blanks" in picture("", [step], cell.generations[0].requests, {})["note"]
    with pytest.raises(RunFolderError, match=r"drafts\.jsonl"):
        picture(
            "",
            [step],
            cell.generations[0].requests,
            {0: DraftLine(0, 0, [[] for _ in step.drafted], None)},
        )


def test_no_text_of_a_token_leaves_the_data_of_the_page() -> None:
    texts = ["</script><b>", "<!--", "\u2028", "&"]
    shown = [{"requests": {0: {"tokens": [0, 1, 2, 3]}}, "steps": []}]
    data = embedded(shown, texts)
    assert "<" not in data
    assert json.loads(data)["pieces"] == dict(zip("0123", texts, strict=True))


def test_the_texts_of_tokens_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = Tokenizer.read(
        write_checkpoint(
            tmp_path / "target", byte_tokenizer(), 16, 1, byte_tokenizer().get_vocab_size()
        )
    )
    assert tokenizer is not None
    write_texts(tmp_path, tokenizer)
    texts = read_texts(tmp_path)
    for text in ("def f(n):\n", "  a  b"):
        assert (
            "".join(texts[token] for token in tokenizer.encode(text, add_special_tokens=False))
            == text
        )
    assert all(texts[index] for index in tokenizer.silent)
    for bad in ('{"a": 1}', "[1]", "[", ""):
        (tmp_path / TEXTS).write_text(bad, encoding="utf-8")
        with pytest.raises(RunFolderError, match="shown by their ids"):
            read_texts(tmp_path)


def test_the_page_stands_alone_and_is_well_formed(html: str) -> None:
    text = Text(html)
    assert len(html.encode()) < MOST_BYTES
    assert all(link.startswith("#") for link in text.links)
    assert not re.findall(r"url\((?!#)|@import", html)
    assert len(text.ids) == len(set(text.ids))
    assert set(re.findall(r"url\(#(.*?)\)", html)) | {link[1:] for link in text.links} <= set(
        text.ids
    )


def test_the_page_shows_all_that_it_promises(html: str) -> None:
    words = Text(html).words
    for title in ("Latency by batch", "tau by batch", "Acceptance by position",
        "Draft length over time", "Time by part",
                  "Time of a step by part",
                  "Share of the bound (MBU)", "MFU", "Finished within a time budget",
                  "Tokens within a time budget",
                  "The batch, step by step", "Figures", "Summary"):  # fmt: skip
        assert title in words
    assert "times as fast" in words


def test_the_summary_names_the_fastest_setting_with_its_lead(run: RunFolder) -> None:
    cells = read_cells(run)
    for place, winner in winners(cells).items():
        of_batch = [cell for cell in cells if place == f"batch {cell.batch}"]
        assert len(of_batch) == 3
        means = {cell.label: cell.value("all") for cell in of_batch}
        assert winner.best.label == min(means, key=means.__getitem__)
        assert winner.plain is not None
        found = winner.over(winner.plain)
        assert found is not None
        assert found.times == pytest.approx(means["plain"] / min(means.values()))
        assert found.low is not None
        assert found.high is not None
        assert found.low < found.times < found.high
        assert any(
            f"{place.capitalize()}: {winner.best.label}" in said
            and f"{found.times:.2f} times as fast" in said
            for said in sentences({place: winner})
        )


def test_a_lead_is_no_lead_over_itself_and_one_repeat_has_no_interval(
    run: RunFolder, tmp_path: Path
) -> None:
    cell = read_cells(run)[0]
    same = lead(cell, cell, METRICS["all"], 1)
    assert same is not None
    assert same.times == 1
    assert not same.clear
    once = write_run(tmp_path / "once", repeats=1)
    assert any("one repeat" in sentence for sentence in sentences(winners(read_cells(once))))
    assert "times as fast (" not in "".join(sentences(winners(read_cells(once))))


def panels(plot: Plot) -> dict[str, Any]:
    """The axes of a plot, by the setting that they show."""
    return {axes.get_title(): axes for axes in plot.figure.axes}


def lines(axes: Any) -> dict[str, Any]:
    return {str(line.get_label()): line for line in axes.lines}


def test_every_setting_has_a_panel_of_its_own_and_a_line_means_the_same_in_all_of_them(
    tmp_path: Path,
) -> None:
    policies = ("plain", "fixed", "bass", *(f"other {i}" for i in range(5)))
    run = write_run(
        tmp_path / "eight", policies=policies, batches=(1, 2), repeats=1, tokens=6, watched=0
    )
    for plot in plots(read_cells(run)):
        if plot.name in ("parts", "step-parts"):
            continue
        titles = [axes.get_title() for axes in plot.figure.axes]
        assert titles == [policy for policy in policies if policy in titles]
        assert len(titles) >= 7
        seen: dict[str, set[Any]] = {}
        for axes in plot.figure.axes:
            assert len(axes.lines) <= 4, plot.name
            assert axes.get_ylim() == plot.figure.axes[0].get_ylim()
            for line in axes.lines:
                seen.setdefault(str(line.get_label()), set()).add(
                    (line.get_color(), line.get_marker())
                )
        assert all(len(styles) == 1 for styles in seen.values())
        assert len(set.union(*seen.values())) == len(seen)


def test_what_a_plot_shows_is_in_the_lines_of_the_run(run: RunFolder) -> None:
    cells = read_cells(run)
    drawn = {plot.name: plot for plot in plots(cells)}
    latency = panels(drawn["latency"])
    assert lines(latency["plain"])["first"].get_ydata() == pytest.approx(
        [1e3 * cell.value("first") for cell in cells if cell.label == "plain"]
    )
    assert lines(latency["bass"])["plain, all"].get_ydata() == pytest.approx(
        lines(latency["plain"])["all"].get_ydata()
    )
    for axes in drawn["budget"].figure.axes:
        assert all(np.asarray(line.get_ydata())[-1] == pytest.approx(100) for line in axes.lines)
    ends = {
        np.asarray(line.get_ydata())[-1]
        for axes in drawn["budget-tokens"].figure.axes
        for line in axes.lines
    }
    assert ends == {sum(len(r.tokens) for r in cells[-1].lines.requests) / 4}
    [bars] = drawn["parts"].figure.axes
    ends = [
        max(bar.get_x() + bar.get_width() for bar in row)
        for row in zip(*bars.containers, strict=True)
    ]  # pyright: ignore
    labels = [str(label.get_text()) for label in bars.get_yticklabels()]
    repeats = {
        cell.title: 1e3 * np.mean([repeat.seconds for repeat in cell.generations]) for cell in cells
    }
    assert ends == pytest.approx([repeats[label] for label in labels], rel=0.02)


def test_no_plot_cuts_off_what_it_shows(run: RunFolder) -> None:
    for plot in plots(read_cells(run)):
        plot.svg()
        for axes in plot.figure.axes:
            for line in axes.lines:
                low, high = axes.get_ylim()
                assert low <= np.min(line.get_ydata()) <= np.max(line.get_ydata()) <= high, (
                    plot.name
                )


def test_more_settings_than_panels_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bass.report.plots.MOST_SETTINGS", 3)
    many = write_run(
        tmp_path / "many",
        batches=(1,),
        policies=("plain", *(f"$_{i}" for i in range(4))),
        repeats=2,
    )
    drawn = plots(read_cells(many), ["$_3"])
    assert all("3 of 5 settings are shown" in plot.caption for plot in drawn)
    assert r"\$_3" in panels(drawn[0])
    Text(drawn[0].svg())


def test_a_run_against_itself_differs_in_nothing(run: RunFolder) -> None:
    html, told = comparison(run, run)
    assert told[0].endswith("within the noise in 6.")
    assert "B is" not in Text(html).words


def test_a_slower_run_is_told_from_noise(run: RunFolder, tmp_path: Path) -> None:
    slow = write_run(tmp_path / "slow", repeats=4, slower=1.5)
    told = comparison(run, slow)[1]
    assert "B is worse in" in told[0]
    assert sum("B is worse" in sentence for sentence in told[1:]) >= 4
    assert "B is better in" in comparison(slow, run)[1][0]
    assert (
        len(comparison(run, write_run(tmp_path / "other", batches=(1,), repeats=2))[1]) == 1 + 3 + 1
    )  # with a sentence on what is left out
