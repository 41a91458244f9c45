"""The plots of a report: a line for each method, with 95 % intervals.

A method is what distinguishes the cells of one work. Works that differ on another axis than
`batch`, such as the temperature, have a panel each.
"""

import functools
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any, final

import numpy as np
import pandas as pd

from bass.analysis.metrics import by_position
from bass.analysis.statistics import MOST_SPAN
from bass.analysis.tables import differing, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bass.analysis.frames import Run

Values = Sequence[float] | np.ndarray | pd.Series
SERIES = tuple(f"s{i}" for i in range(8))  # names of colours in report.css
MARKERS = "osD^vPX*"
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 3)))
WIDTH, HEIGHT = 4.4, 3.2  # inches of a figure, which a phone shows whole
FEW = 10  # drafts that must reach a position for its acceptance to be drawn

_OVER = (
    "Over the fastest autoregressive decoding of the same work, with 95 % intervals over paired "
    "repeats."
)
_WIDE = "A point without an interval is one value, or its interval spans more than a factor of 3."
_LATENCY = "From the end of the prefill, mean over sequences. Lower is better."
_RATE = "Tokens of all sequences, prefill included. Higher is better."
BY_BATCH = {  # column of the table: title, label of the axis, caption
    "speedup_all": ("Speed-up of the mean latency", "speed-up", _OVER),
    "speedup": ("Speed-up in tokens/s", "speed-up", _OVER),
    "all": ("Mean latency", "ms per token", f"{_LATENCY} 95 % intervals over repeats."),
    "tokens_per_second": ("Throughput", "tokens/s", f"{_RATE} 95 % intervals over repeats."),
}


def asset(name: str) -> str:
    """A file that belongs to the page."""
    return files("bass.analysis").joinpath("assets", name).read_text(encoding="utf-8")


@functools.cache
def colours(scheme: str = "light") -> dict[str, str]:
    """The colours of report.css, name to #rrggbb, in the light or the dark scheme."""
    light, dark = re.findall(r":root \{([^}]*--page[^}]*)\}", asset("report.css"))
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light if scheme == "light" else dark))


@final
@dataclass(frozen=True)
class Plot:
    """A figure with its text. name: unique in a page."""

    name: str
    title: str
    caption: str
    figure: "Figure"

    def svg(self) -> str:
        """The figure as SVG for a page: its colours are the page's variables, its ids unique."""
        with style():
            out = io.StringIO()
            self.figure.savefig(
                out, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
            )
        text = out.getvalue()
        text = text[text.index("<svg") :]
        for name, value in colours().items():
            text = text.replace(value, f"var(--{name})")
        text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{self.name}-", text)
        return text.replace("<svg ", f'<svg role="img" aria-label="{self.title}" ', 1)


@contextmanager
def style() -> Iterator[None]:
    """Within it, figures are drawn and written in one style."""
    import matplotlib

    ink = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
    chosen: Any = dict.fromkeys(ink, colours()["ink"]) | {
        "axes.edgecolor": colours()["faint"],
        "grid.color": colours()["line"],
    }
    sheet = files("bass.analysis").joinpath("assets", "report.mplstyle")
    with matplotlib.rc_context(chosen, str(sheet)):
        yield


def new_figure(panels: int = 1) -> "tuple[Figure, list[Axes]]":
    """A figure with its panels below each other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT * panels), layout="constrained")
    return figure, list(figure.subplots(panels, 1, squeeze=False)[:, 0])


def series(ax: "Axes", number: int, x: Values, y: Values, name: str, **options: Any) -> None:
    """Draw a series with a colour, a dash and a marker of its own."""
    n = number % len(SERIES)
    chosen = {"linestyle": DASHES[n], "marker": MARKERS[n], "markersize": 5}
    ax.plot(x, y, label=name, color=colours()[SERIES[n]], **chosen | options)


def _lines(where: pd.DataFrame) -> "tuple[Figure, list[tuple[Axes, int, str, pd.Series]]]":
    """A figure with its panels, and of each line its axes, number, method, and batches by cell."""
    panels, methods = (where[name].unique().tolist() for name in ("panel", "method"))
    figure, axes = new_figure(len(panels))
    for ax, title in zip(axes, panels, strict=True):
        ax.set_title(title, fontsize=9)
    groups = where.groupby(["panel", "method"], sort=False)["batch"]
    return figure, [
        (axes[panels.index(panel)], methods.index(name), name, batches)
        for (panel, name), batches in groups
    ]


def _legend(figure: "Figure") -> None:
    pairs = [zip(*ax.get_legend_handles_labels(), strict=True) for ax in figure.axes]
    handles = {label: handle for pair in pairs for handle, label in pair}
    if len(handles) > 1:
        widest = 0.075 * max(map(len, handles)) + 0.6  # inches
        columns = max(1, min(len(handles), 4, int(WIDTH / widest)))
        figure.legend([*handles.values()], [*handles], loc="outside lower center", ncols=columns)


def plots(run: "Run", frame: pd.DataFrame) -> list[Plot]:
    """Every plot for which the finished cells of a run have data. frame: its table."""
    where = places(run)
    ranks = frame["all"].groupby(where["work"]).rank().groupby(where["method"]).mean()
    ranks[where.loc[[*run.plains.values()], "method"].unique()] = 0.0
    shown = ranks.sort_values(kind="stable").index[: len(SERIES)]
    where = where[where["method"].isin(shown)].sort_values("batch", kind="stable")
    left = ""
    if len(shown) < len(ranks):
        left = (
            f" {len(shown)} of {len(ranks)} methods are shown: autoregressive decoding, and those "
            "with the lowest mean latencies, ranked within each work."
        )
    with style():
        found = [by_batch(frame, where, column) for column in BY_BATCH]
        found += [acceptance(run, where)]
    return [replace(plot, caption=plot.caption + left) for plot in found if plot is not None]


def places(run: "Run") -> pd.DataFrame:
    """The panel, method, batch and work of each finished cell.

    Methods differ on the axes on which cells of one work do, else on all; panels on the other ones.
    """
    axes = {*differing(run, run.finished)} - {"batch"}
    of_methods = {axis for cells in run.works.values() for axis in differing(run, cells)} or axes
    found = []
    for cell in run.finished:
        entry = run.entries[cell]
        batch = entry["labels"].get("batch", entry["settings"].get("batch"))
        if not isinstance(batch, int):
            batch = len(run.measurement(cell).steps["requests"].iloc[0])
        panel = label(run, cell, without=[*of_methods, "batch"]) if axes - of_methods else ""
        method = label(run, cell, without=[*(axes - of_methods), "batch"])
        found.append((panel, method, batch, entry["work"]))
    columns = ["panel", "method", "batch", "work"]
    return pd.DataFrame(found, index=run.finished, columns=columns)


def by_batch(frame: pd.DataFrame, where: pd.DataFrame, column: str) -> Plot | None:
    """A column of the table by batch: a line for each method, with its intervals."""
    if frame[column].isna().all():
        return None
    title, ylabel, caption = BY_BATCH[column]
    scale = 1e3 if column == "all" else 1.0  # seconds in ms
    figure, lines = _lines(where)
    batches, methods = sorted(where["batch"].unique()), where["method"].nunique()
    for ax, number, name, own in lines:
        rows = frame.loc[own.index, [column, f"{column}_low", f"{column}_high"]]
        mean, low, high = scale * rows.to_numpy(dtype=float).T
        low = np.where(high > MOST_SPAN * low, np.nan, low)
        # shifted, so that intervals do not hide each other
        x = np.searchsorted(batches, own) + 0.06 * (number - (methods - 1) / 2)
        series(ax, number, x, mean, name)
        ax.vlines(x, low, high, color=ax.lines[-1].get_color(), linewidth=1.2)
    for ax in figure.axes:
        ax.set_xticks(range(len(batches)), [str(batch) for batch in batches])
        ax.set(xlabel="batch", ylabel=ylabel, xlim=(-0.5, len(batches) - 0.5))
        ax.set_ylim(bottom=0)
    _legend(figure)
    return Plot(column, title, f"{caption} {_WIDE}", figure)


def acceptance(run: "Run", where: pd.DataFrame) -> Plot | None:
    """Conditional acceptance by position, over all batches of a method."""
    figure, lines = _lines(where)
    for ax, number, name, own in lines:
        all_rows = pd.concat([run.measurement(cell).rows for cell in own.index])
        shares = by_position(all_rows)[lambda frame: frame["reached_by_position"] >= FEW]
        line = 100 * shares["acceptance_by_position"]
        if len(line):
            series(ax, number, line.index.to_numpy() + 1, line.to_numpy(), name)
        ax.set(xlabel="position in the draft", ylabel="% accepted", ylim=(0, 102))
        ax.locator_params(axis="x", integer=True)
    if not any(ax.lines for ax in figure.axes):
        return None
    _legend(figure)
    caption = (
        "Of the drafts that have all tokens before a position accepted, the share accepted there, "
        f"over all batches. Positions reached fewer than {FEW} times are left out."
    )
    return Plot("acceptance", "Acceptance by position", caption, figure)


def pass_curves(frame: pd.DataFrame) -> Plot:
    """The shares of problems solved within a time budget, by method.

    frame: columns `method`, `seconds` (the budget), `pass_first` and `pass_all` (0 to 1), both with
    `_low` and `_high`.
    """
    with style():
        figure, axes = new_figure(2)
        panels = {"pass_first": "Pass@First, %", "pass_all": "Pass@All, %"}
        for ax, (column, ylabel) in zip(axes, panels.items(), strict=True):
            for number, (name, rows) in enumerate(frame.groupby("method", sort=False)):
                x, shares = rows["seconds"], 100 * rows.filter(like=column)
                series(ax, number, x, shares[column], str(name), drawstyle="steps-post", marker="")
                bounds = shares[f"{column}_low"], shares[f"{column}_high"]
                colour = colours()[SERIES[number]]
                ax.fill_between(x, *bounds, step="post", color=colour, alpha=0.15, linewidth=0)
            ax.set(xlabel="seconds", ylabel=ylabel, ylim=(-2, 102))
            ax.set_xlim(left=0)
        _legend(figure)
    caption = (
        "The share of problems solved by the samples that are finished within a number of seconds, "
        "with 95 % intervals over problems. First: by the sample that the model considers most "
        "probable; All: by any of them."
    )
    return Plot("curves", "Problems solved within a time budget", caption, figure)
