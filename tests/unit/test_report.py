"""The page of `bass report`: its parts against the run's figures, its picture, its plots."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bass
from bass.analysis.metrics import Measurement
from bass.analysis.picture import MOST, embedded, kinds, picture
from bass.analysis.plots import pass_curves, plots
from bass.analysis.report import report, report_of_evaluation
from bass.analysis.tables import table, verdicts
from bass.cli import main
from bass.errors import RunFolderError
from support.run_folders import MANIFEST, METHODS, TEXTS, write_run

NAMES = ["speedup_all", "speedup", "all", "tokens_per_second", "acceptance"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> bass.Run:
    """Three batches; one cell failed, and one has not run."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    states = {"failed": ["bass-b8"], "new": ["fixed-b8"]}
    return bass.open_run(
        write_run(folder, batches=(1, 4, 8), remarks=["A noisy <machine>."], **states)
    )


@pytest.fixture(scope="module")
def page(run: bass.Run) -> str:
    return report(run)


class Parsed(HTMLParser):
    """The texts of a page by the innermost element, its addresses, and its ids."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[tuple[str, str]] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.stack: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.stack.append(tag)
        self.addresses += [str(value) for name, value in attrs if name in ("src", "href")]
        self.ids += [str(value) for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        if tag in self.stack:
            while self.stack.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self.stack and data.strip():
            self.texts.append((self.stack[-1], data.strip()))


def test_the_page_needs_nothing_else(page: str) -> None:
    parsed = Parsed(page)
    assert all(address.startswith("#") for address in parsed.addresses)
    assert len(parsed.ids) == len({*parsed.ids})
    # no text of a token ends a script
    assert page.count("</script>") == 2
    assert len(page.encode()) < 1_000_000


def test_it_says_what_was_run_what_failed_and_what_is_missing(run: bass.Run, page: str) -> None:
    texts = [text for _, text in Parsed(page).texts]
    assert "bass: lengths" in texts
    assert "Draft lengths." in texts
    assert "A noisy <machine>." in texts
    assert "The run is not finished: 1 of 9 cells have no figures." in texts
    assert texts[texts.index("Cells that failed") :][3:5] == ["bass-b8", "Out of memory."]
    assert sum(tag == "code" for tag, _ in Parsed(page).texts) >= 2 * len(verdicts(run))
    assert '"target": "models/target"' in "".join(texts)


def test_the_table_has_a_row_for_each_finished_cell(run: bass.Run, page: str) -> None:
    [body] = re.findall(r"<h2>Figures</h2>.*?<tbody>(.*?)</tbody>", page, re.DOTALL)
    assert body.count("<tr") == len(run.finished)
    assert body.count('class="best"') == sum(cell is not None for cell, _ in verdicts(run))


def test_categories_have_a_table_and_labels_are_escaped(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {"<b>": 0, "$x_1$": 2}, [2], categories=("qa", "math"))
    page = report(bass.open_run(folder))
    assert "<summary>Figures by category</summary>" in page
    assert "<b></td>" not in page
    assert page.count("&lt;b&gt;</td>") == 3
    assert "$x_1$" in page  # no mathematics


# plots


def test_a_line_for_each_method_has_the_values_of_the_table(run: bass.Run) -> None:
    frame = table(run)
    found = {plot.name: plot for plot in plots(run, frame)}
    assert [*found] == NAMES
    for column, scale in (("speedup_all", 1.0), ("all", 1e3), ("tokens_per_second", 1.0)):
        [ax] = found[column].figure.axes
        assert [line.get_label() for line in ax.lines] == [*METHODS]
        for line, spans in zip(ax.lines, ax.collections, strict=True):
            rows = frame[frame["method"] == line.get_label()]
            assert np.asarray(line.get_ydata()) == pytest.approx(scale * rows[column].to_numpy())
            ends = np.array([segment[:, 1] for segment in spans.get_segments()])
            bounds = scale * rows[[f"{column}_low", f"{column}_high"]].dropna().to_numpy()
            assert ends == pytest.approx(bounds)
        assert [text.get_text() for text in ax.get_xticklabels()] == ["1", "4", "8"]


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> bass.Run:
    """Ten methods at two temperatures and two batches; autoregressive decoding is the slowest."""
    methods = {"plain": 0} | {f"fixed-{k}": k for k in range(1, 10)}
    folder = tmp_path_factory.mktemp("runs") / "grid"
    slower = {"plain": 9.0}
    return bass.open_run(write_run(folder, methods, (1, 2), slower=slower, temperatures=(0.0, 0.5)))


def test_works_have_panels_and_autoregressive_decoding_is_never_left_out(grid: bass.Run) -> None:
    frame = table(grid)
    found = {plot.name: plot for plot in plots(grid, frame)}
    assert {name: len(plot.figure.axes) for name, plot in found.items()} == dict.fromkeys(NAMES, 2)
    ranks = frame["all"].groupby([frame["temperature"], frame["batch"]]).rank()
    means = ranks.groupby(frame["method"]).mean().drop("plain").sort_values()
    shown = {"plain", *means.index[:7]}
    for temperature, ax in zip(("0.0", "0.5"), found["all"].figure.axes, strict=True):
        assert ax.get_title() == f"temperature {temperature}"
        assert {line.get_label() for line in ax.lines} == shown
        highest = max(max(map(float, line.get_ydata())) for line in ax.lines)
        assert ax.get_ylim()[1] > highest
        for line in ax.lines:
            of = (frame["method"] == line.get_label()) & (
                frame["temperature"] == float(temperature)
            )
            assert np.asarray(line.get_ydata()) == pytest.approx(1e3 * frame["all"][of].to_numpy())
    colours = [
        {line.get_label(): line.get_color() for line in ax.lines} for ax in found["all"].figure.axes
    ]
    assert colours[0] == colours[1]
    assert " 8 of 10 methods are shown: autoregressive" in found["all"].caption


def test_the_page_says_which_settings_have_pictures(
    grid: bass.Run, page: str, run: bass.Run
) -> None:
    text = report(grid)
    data = json.loads(re.findall(r'id="pictures">(.*?)</script>', text, re.DOTALL)[0])
    titles = [one["title"] for one in data["pictures"]]
    assert [title.partition(",")[0] for title in titles] == [f"fixed-{k}" for k in range(1, 5)]
    assert all(title.endswith("batch 2") for title in titles)
    assert "4 of 40 settings are here" in text
    assert "settings are here" in page
    assert "Mean acceptance length: committed tokens / row steps" in text
    assert "A cell has its mean over prompts." in text


def test_acceptance_pools_the_batches_of_a_method(run: bass.Run) -> None:
    [plot] = [plot for plot in plots(run, table(run)) if plot.name == "acceptance"]
    lines = {line.get_label(): line for line in plot.figure.axes[0].lines}
    assert [*lines] == ["fixed", "bass"]
    cells = [run.measurement(cell).rows for cell in ("bass-b1", "bass-b4")]
    rows = pd.concat(cells)
    for at, share in zip(lines["bass"].get_xdata(), lines["bass"].get_ydata(), strict=True):
        reached = rows[(rows["judged"] >= at) & (rows["accepted"] >= at - 1)]
        assert share == pytest.approx(100 * (reached["accepted"] >= at).mean())


# evaluations


def test_the_page_of_an_evaluation_has_its_curves() -> None:
    shares = {"pass_first": [0.0, 0.25, 0.25, 0.5], "pass_all": [0.25, 0.5, 0.5, 1.0]}
    columns = {"method": [*"aabb"], "seconds": [1.0, 2.0, 1.0, 2.0], **shares}
    for name, values in shares.items():
        columns |= {f"{name}_low": [0.0] * 4, f"{name}_high": np.minimum(1, 1.5 * np.array(values))}
    curve = pd.DataFrame(columns)
    figure = pass_curves(curve).figure
    for ax, name in zip(figure.axes, shares, strict=True):
        for line, values in zip(ax.lines, np.split(100 * curve[name].to_numpy(), 2), strict=True):
            assert [*line.get_xdata()] == [1, 2]
            assert [*line.get_ydata()] == [*values]
    scores = curve[curve["seconds"] == 2].drop(columns="seconds").assign(tau=2.5)
    page = report_of_evaluation(MANIFEST, scores, curve, curve)
    texts = [text for _, text in Parsed(page).texts]
    for text in ("Scores", "Pass@First", "Pass@All", "tau", "25.0", "100", "2.50"):
        assert text in texts


# the picture


@pytest.mark.parametrize(
    ("drafted", "accepted", "emitted", "letters"),
    [
        (5, 3, 4, "AAARRC"),
        (3, 3, 4, "AAAB"),
        (0, 0, 1, "P"),
        (4, 0, 1, "RRRRC"),
        (4, 2, 2, "AAUU"),
        (2, 2, 2, "AA"),
    ],
)
def test_letters(drafted: int, accepted: int, emitted: int, letters: str) -> None:
    assert kinds(drafted, accepted, emitted) == letters


def test_a_picture_has_the_tokens_of_the_run(run: bass.Run) -> None:
    measured = run.measurement("bass-b4")
    data = picture("bass", measured)
    first = measured.where(repeat=0, call=0)
    assert len(data["steps"]) == len(first.steps)
    assert data["note"] == ""
    committed = {row: [] for row in range(4)}
    for step in data["steps"]:
        for row, letters in enumerate(step["kinds"]):
            assert len(step["tokens"][row]) == sum(letter in "ARU" for letter in letters)
            committed[row] += step["tokens"][row][: letters.count("A")]
            added = sum(letter in "CBP" for letter in letters)
            committed[row] += data["requests"][row]["tokens"][len(committed[row]) :][:added]
    for row, tokens in enumerate(first.requests["token_ids"]):
        assert data["requests"][row]["tokens"] == tokens == committed[row]


def test_a_long_run_is_cut_and_unrecorded_drafts_are_noted(run: bass.Run) -> None:
    measured = run.measurement("bass-b4")
    data = picture("bass", measured, most_tokens=100)
    shown = len(data["steps"])
    assert 0 < shown < len(measured.where(repeat=0, call=0).steps)
    assert data["note"].startswith(f"The first {shown} of ")
    for row, request in data["requests"].items():
        assert len(request["tokens"]) == sum(step["emitted"][row] for step in data["steps"])
    assert sum(sum(step["drafted"]) for step in data["steps"]) < 100 < MOST
    steps = measured.steps.assign(draft_tokens=None, draft_probs=None)
    bare = picture("bass", Measurement(steps, measured.requests))
    assert "not recorded" in bare["note"]
    assert not any("tokens" in step for step in bare["steps"])


def test_texts_of_tokens_are_safe_in_a_script(run: bass.Run) -> None:
    text = embedded([picture("bass", run.measurement("bass-b4"))], TEXTS)
    assert "<" not in text
    assert "\u2028" not in text
    assert {*json.loads(text)["pieces"].values()} == {*TEXTS}


# the command


def test_the_command_writes_the_page(
    run: bass.Run, page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run.folder)]) == 0
    assert capsys.readouterr().out.strip() == str(run.folder / "report.html")
    assert (run.folder / "report.html").read_text(encoding="utf-8") == page
    assert main(["report", str(tmp_path)]) == 2
    assert "manifest.json" in capsys.readouterr().err
    with pytest.raises(RunFolderError):
        bass.open_run(tmp_path)


def test_the_name_of_a_run_suggests_its_folder(
    run: bass.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(run.folder.resolve())
    monkeypatch.chdir(tmp_path)
    for name, words in (("mine", r"too\. Did you mean `runs/mine`\?$"), ("other", r"too\.$")):
        with pytest.raises(RunFolderError, match=words):
            bass.open_run(name)
