"""The bars of a report: the time of a generation, and of a step, by part."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bass.analysis.repeats import Repeat
from bass.report.cells import Cell, at_one_batch
from bass.report.drawing import INCHES, Plot, legend, literal, new_figure
from bass.report.palette import HATCHES, SERIES, colours

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_BARS = 16  # beyond it, only the bars of one batch are shown


def parts(cells: Sequence[Cell]) -> Plot | None:
    """The time of a generation by part."""
    bars = {
        cell: {
            name: float(1e3 * np.mean([of(repeat) for repeat in cell.generations]))
            for name, of in PARTS.items()
        }
        for cell in cells
        if cell.generations and cell.lines.steps
    }
    caption = (
        "Mean time of a generation by part. Prefill: until the end of the first prefill. Steps: "
        "drafting and verifying on the device. "
    )
    caption += (
        "Host: bookkeeping and the policy. Other: prefills of later requests, and the consumer of "
        "events."
    )
    figure = _bars(bars, "ms of a generation")
    return figure and Plot("parts", "Time by part", caption, figure)


def step_parts(cells: Sequence[Cell]) -> Plot | None:
    """The time of a step by part, in the cells with a measurement."""
    facts = {
        cell: cell.summary.facts
        for cell in cells
        if cell.summary is not None and cell.summary.facts is not None
    }
    bars = {cell: dict(of.parts_ms) for cell, of in facts.items() if of.parts_ms}
    caption = (
        "Parts of one step of the median draft length, each timed separately: drafting, the "
        "target's pass over the window, sampling with "
    )
    caption += "verification, and the host."
    figure = _bars(bars, "ms of a step")
    return figure and Plot("step-parts", "Time of a step by part", caption, figure)


def _bars(bars: Mapping[Cell, Mapping[str, float]], xlabel: str) -> "Figure | None":
    """A bar for each cell, with a colour and a hatch for each part."""
    chosen = list(bars) if len(bars) <= MOST_BARS else at_one_batch(list(bars))[0]
    if not chosen:
        return None
    figure, (ax,) = new_figure()
    if len(chosen) > 8:
        figure.set_figheight(INCHES[1] * len(chosen) / 8)
    rows = range(len(chosen))
    left = np.zeros(len(chosen))
    names = max((list(bars[cell]) for cell in chosen), key=len)
    for name, colour, hatch in zip(names, SERIES, HATCHES, strict=False):
        width = np.array([bars[cell].get(name, 0.0) for cell in chosen])
        ax.barh(
            rows,
            width,
            left=left,
            label=name,
            facecolor=colours()[colour],
            hatch=hatch,
            edgecolor=colours()["page"],
            linewidth=0.5,
        )
        left = left + width
    ax.set(yticks=rows, yticklabels=[literal(cell.title) for cell in chosen], xlabel=xlabel)
    ax.set_ylim(len(chosen) - 0.4, -0.6)
    ax.grid(axis="y", visible=False)
    legend(figure, ax, len(names))
    return figure


def _prefill(repeat: Repeat) -> float:
    return min(repeat.prefills, default=0.0)


def _host(repeat: Repeat) -> float:
    return sum(step.host_seconds for step in repeat.steps)


def _other(repeat: Repeat) -> float:
    return max(0.0, repeat.seconds - _prefill(repeat) - repeat.stepping - _host(repeat))


PARTS: dict[str, Callable[[Repeat], float]] = {
    "prefill": _prefill,
    "steps": lambda r: r.stepping,
    "host": _host,
    "other": _other,
}
