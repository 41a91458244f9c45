"""The common parts of all plots: style, series, and output as SVG or PNG."""

import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from jaxtyping import Int

from bass.errors import OptionError, install
from bass.printable import printable
from bass.report.palette import DASHES, MARKERS, SERIES, colours, themed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 300  # of a line
INCHES = (6.4, 3.5)
# small panels: height in inches, panels per row, characters of the titles in a row
PANEL, MOST_COLUMNS, LETTERS = 1.55, 3, 78
LETTER, HANDLE = 0.085, 0.6  # width in inches of a legend's characters and handles


@final
@dataclass(frozen=True)
class Plot:
    """A figure with its text. `name`: name of its files."""

    name: str
    title: str
    caption: str
    figure: "Figure"

    def svg(self) -> str:
        """The figure as SVG for the page: with the page's variables as colours, and unique ids."""
        with style():
            out = io.StringIO()
            self.figure.savefig(
                out, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
            )
        text = out.getvalue()
        text = text[text.index("<svg") :]
        text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{self.name}-", themed(text))
        return re.sub(r"<svg ", f'<svg role="img" aria-label="{self.title}" ', text, count=1)

    def file(self, kind: str) -> bytes:
        """The figure as a file, `svg` or `png`, on white."""
        with style():
            out = io.BytesIO()
            self.figure.savefig(
                out, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None
            )
        return out.getvalue()


@contextmanager
def style() -> Iterator[None]:
    """Within it, figures are drawn and written in one style.

    Raises an OptionError without matplotlib.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise OptionError(
            f"A report needs matplotlib, which is not installed: {install('report')}."
        ) from error
    c = colours()
    names = (
        "text.color",
        "axes.labelcolor",
        "xtick.color",
        "ytick.color",
        "xtick.labelcolor",
        "ytick.labelcolor",
    )
    chosen: Any = dict.fromkeys(names, c["ink"]) | {
        "axes.edgecolor": c["faint"],
        "grid.color": c["line"],
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 9,
        "legend.frameon": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "bass",
        "hatch.linewidth": 0.6,
    }
    with matplotlib.rc_context(), warnings.catch_warnings():
        # the reader's browser has other fonts
        warnings.filterwarnings("ignore", r"Glyph .* missing from font", UserWarning)
        # a matplotlibrc in the current folder is untrusted and could run LaTeX
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(chosen)
        yield


def new_figure(panels: int = 1, **options: Any) -> "tuple[Figure, list[Axes]]":
    """A figure with its panels next to each other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False, **options)[0]
    return figure, list(axes)


def facets(labels: Sequence[str], xlabel: str, ylabel: str) -> "tuple[Figure, dict[str, Axes]]":
    """A figure with a panel for each label, all with the same y axis."""
    from matplotlib.figure import Figure

    columns = min(len(labels), MOST_COLUMNS)
    rows = -(-len(labels) // columns)
    figure = Figure(
        figsize=(INCHES[0], max(INCHES[1] * 0.75, PANEL * rows + 0.9)), layout="constrained"
    )
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel().tolist()
    panels = dict(zip(labels, grid, strict=False))
    for label, ax in panels.items():
        ax.set_title("\n".join(wrapped(label, LETTERS // columns)), fontsize=8)
        ax.locator_params(nbins=5)
    for ax in grid[len(labels) :]:
        ax.remove()
    # on the lowest panel of each column, since a label of the figure would overlap the legend
    for ax in grid[max(0, len(labels) - columns) : len(labels)]:
        ax.set_xlabel(xlabel)
    figure.supylabel(ylabel, fontsize=9)
    return figure, panels


def wrapped(label: str, width: int) -> list[str]:
    """A label in at most two lines."""
    lines = textwrap.wrap(literal(label), width, break_long_words=True) or [""]
    return lines if len(lines) <= 2 else [lines[0], f"{lines[1][: width - 1]}…"]


def reference_series(
    axes: "Axes", x: Sequence[float], y: Sequence[float], label: str, **options: Any
) -> None:
    """Draw the reference values of a series, in grey behind it."""
    axes.plot(
        x,
        y,
        label=literal(label),
        color=colours()["faint"],
        linestyle=(0, (1, 1.5)),
        linewidth=1.2,
        zorder=1,
        **options,
    )


def series(
    axes: "Axes", number: int, x: Sequence[float], y: Sequence[float], label: str, **options: Any
) -> None:
    """Draw a series with its own colour, dash and marker."""
    chosen = {
        "color": colours()[SERIES[number]],
        "linestyle": DASHES[number],
        "marker": MARKERS[number],
        "markersize": 5,
    } | options
    axes.plot(x, y, label=literal(label), **chosen)


def literal(label: str) -> str:
    """A label without the special cases of matplotlib: `$` starts mathematics, a leading `_` hides
    the label, and control characters are not drawn.
    """
    label = printable(label, keep="\n")
    return (
        f"\u200b{label}".replace("$", r"\$") if label.startswith("_") else label.replace("$", r"\$")
    )


def legend(figure: "Figure", axes: "Axes", count: int) -> None:
    """Draw a legend below the panels, if there is more than one series."""
    handles, labels = axes.get_legend_handles_labels()
    if count > 1 or (labels and labels[0] != "this setting"):
        widest = max(map(len, labels), default=0) * LETTER + HANDLE
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=max(1, min(count, 4, int(INCHES[0] / widest))),
        )


def thinned(count: int, most: int = MOST_POINTS) -> Int[np.ndarray, " kept"]:
    """Indices of at most `most` points of a curve, including its ends."""
    return np.unique(np.linspace(0, count - 1, most).astype(np.int64))
