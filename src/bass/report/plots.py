"""The plots of a report: a panel for each setting, with autoregressive decoding in grey for
comparison.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bass.api.results import acceptance_by_position, judged_lengths
from bass.report import by_category
from bass.report.bars import parts, step_parts
from bass.report.cells import Cell, at_one_batch, by_label
from bass.report.contrast import fastest_plain
from bass.report.drawing import (
    MOST_POINTS,
    Plot,
    facets,
    legend,
    reference_series,
    series,
    style,
    thinned,
)
from bass.report.palette import SERIES, colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_SETTINGS = 12  # panels of a plot
FEW = 10  # minimum number of drafts that reached a position


def plots(cells: Sequence[Cell], first: Iterable[str] = ()) -> list[Plot]:
    """Every plot with data. `cells`: the finished ones; `first`: the labels to show if there are
    too many.

    Raises an OptionError without matplotlib.
    """
    labels = list(dict.fromkeys(cell.label for cell in cells))
    kept = list(dict.fromkeys([*first, *labels]))[:MOST_SETTINGS]
    left = f" {len(kept)} of {len(labels)} settings are shown." if len(labels) > len(kept) else ""
    shown = [cell for label in labels if label in kept for cell in cells if cell.label == label]
    makers: tuple[Callable[[Sequence[Cell]], Plot | None], ...] = (
        latency, tau, acceptance, draft_length, parts, step_parts, bandwidth, operations, finished,
        tokens, by_category.tau, by_category.latency,
    )  # fmt: skip
    with style():
        drawn = [plot for make in makers if (plot := make(shown)) is not None]
    return [replace(plot, caption=plot.caption + left) for plot in drawn]


def latency(cells: Sequence[Cell]) -> Plot | None:
    """First, last and all, by batch."""
    figure = _by_batch(
        cells, {"first": "first", "last": "last", "all": "all"}, 1e3, "ms per token", "all"
    )
    caption = (
        "Time per token of the first sequence to finish, of the last, and the mean of all, each "
        "from the end of its prefill; "
    )
    return figure and Plot(
        "latency",
        "Latency by batch",
        caption + f"lower is better. Bars: minimum to maximum repeat.{_grey(cells)}",
        figure,
    )


def tau(cells: Sequence[Cell]) -> Plot | None:
    """Tokens per target call, by batch."""
    figure = _by_batch(
        [cell for cell in cells if cell.speculative], {"tau": "tau"}, 1.0, "tokens per target call"
    )
    caption = (
        "tau: tokens that a row emits per call of the target, bonus or correction included; "
        "autoregressive decoding has 1."
    )
    return figure and Plot("tau", "tau by batch", caption, figure)


def bandwidth(cells: Sequence[Cell]) -> Plot | None:
    """MBU, by batch."""
    figure = _by_batch(cells, {"mbu": "MBU"}, 100.0, "%", "mbu")
    caption = "The minimum time for reading the bytes of the steps, over the time of the steps."
    return figure and Plot("mbu", "Share of the bound (MBU)", f"{caption}{_grey(cells)}", figure)


def operations(cells: Sequence[Cell]) -> Plot | None:
    """MFU, by batch."""
    figure = _by_batch(cells, {"mfu": "MFU", "mfu_kept": "of kept tokens"}, 100.0, "%")
    caption = (
        "FLOPs over the FLOPs possible in that time; of kept tokens: only the FLOPs of committed "
        "tokens."
    )
    return figure and Plot("mfu", "MFU", caption, figure)


def _grey(cells: Sequence[Cell]) -> str:
    """The description of the grey line, if there is one."""
    compared = any(_plain_for(cell, cells) is not None for cell in cells)
    return " Grey: autoregressive decoding of the same work." if compared else ""


def _by_batch(
    cells: Sequence[Cell],
    metrics: Mapping[str, str],
    scale: float,
    ylabel: str,
    reference: str | None = None,
) -> "Figure | None":
    """A line for each metric, by batch, with bars from the minimum to the maximum of its values."""
    names = {
        metric: name
        for metric, name in metrics.items()
        if any(cell.value(metric) is not None for cell in cells)
    }
    groups = {
        label: group
        for label, group in by_label(cells).items()
        if any(cell.value(metric) is not None for metric in names for cell in group)
    }
    if not groups:
        return None
    batches = sorted({cell.batch for cell in cells})
    figure, panels = facets([*groups], "batch", ylabel)
    for label, group in groups.items():
        ax = panels[label]
        # only for a metric that is drawn
        plain = {} if reference is None else _plain(group, cells, reference)
        if reference is not None and plain:
            at, values = (
                [batches.index(batch) for batch in plain],
                [scale * value for value in plain.values()],
            )
            reference_series(ax, at, values, f"plain, {metrics[reference]}")
        for i, (metric, name) in enumerate(names.items()):
            found = [
                (batches.index(c.batch), c.value(metric), min(values), max(values))
                for c in group
                if (values := [*c.values(metric).values(), c.value(metric)]) != [None]
            ]
            if not found:
                continue
            x, mean, least, most = np.array(found, dtype=float).T * np.array(
                [[1], [scale], [scale], [scale]]
            )
            # shifted, so that bars do not hide each other
            x = x + 0.08 * (i - (len(names) - 1) / 2)
            series(ax, i, x.tolist(), mean.tolist(), name)
            ax.vlines(x, least, most, color=colours()[SERIES[i]], linewidth=1.2)
        ax.set(
            xticks=range(len(batches)),
            xticklabels=[str(b) for b in batches],
            xlim=(-0.4, len(batches) - 0.6),
        )
    _finish(figure, panels)
    return figure


def _plain(group: Sequence[Cell], cells: Sequence[Cell], metric: str) -> dict[int, float]:
    """The values of the autoregressive counterparts of a group's cells, by batch."""
    plain = [one for cell in group if (one := _plain_for(cell, cells)) is not None]
    values = {cell.batch: cell.value(metric) for cell in plain}
    return {batch: value for batch, value in values.items() if value is not None}


def _plain_for(cell: Cell, cells: Sequence[Cell]) -> Cell | None:
    """What the cell is compared with; None for a cell without drafts."""
    return fastest_plain(cell, cells) if cell.speculative else None


def _finish(figure: "Figure", panels: "Mapping[str, Axes]") -> None:
    """Start the y axis at 0, and draw a legend for more than one line."""
    # last, since later lines in a panel that shares the axis would not widen it
    for ax in panels.values():
        ax.set_ylim(bottom=0)
    fullest = max(panels.values(), key=lambda ax: len(ax.get_legend_handles_labels()[1]))
    count = len(fullest.get_legend_handles_labels()[1])
    if count > 1:
        legend(figure, fullest, count)


def _alike(panels: "Mapping[str, Axes]") -> None:
    """Give all panels the same x axis, in integers from 1."""
    most = max(ax.get_xlim()[1] for ax in panels.values())
    for ax in panels.values():
        ax.set_xlim(0.7, most)
        ax.locator_params(axis="x", integer=True, nbins=6)


def acceptance(cells: Sequence[Cell]) -> Plot | None:
    """Acceptance by position: of those reached, and of all drafted so far."""
    groups = by_label(c for c in cells if c.speculative)
    if not groups:
        return None
    figure, panels = facets([*groups], "position in the draft", "% accepted")
    for label, group in groups.items():
        records = [step for cell in group for one in cell.generations for step in one.steps]
        rates, reached = acceptance_by_position(records)
        judged = np.concatenate([judged_lengths(record) for record in records])
        accepted = np.concatenate([record.accepted for record in records])
        few = max(1, min(FEW, max(reached, default=0)))
        kept = [i for i, count in enumerate(reached) if count >= few]
        ax, at = panels[label], [i + 1 for i in kept]
        series(ax, 0, at, [100 * (rates[i] or 0.0) for i in kept], "of tokens reached")
        series(
            ax,
            1,
            at,
            [100 * int((accepted > i).sum()) / max(int((judged > i).sum()), 1) for i in kept],
            "of tokens drafted",
        )
        ax.set_ylim(0, 102)
    _alike(panels)
    legend(figure, next(iter(panels.values())), 2)
    caption = (
        "Of tokens reached: of the drafts whose earlier tokens were all accepted, the share "
        "accepted at this position. Of tokens "
    )
    caption += (
        f"drafted: of all drafts that had this position. Positions reached fewer than {FEW} times "
        "are left out. All batches."
    )
    return Plot("acceptance", "Acceptance by position", caption, figure)


def draft_length(cells: Sequence[Cell]) -> Plot | None:
    """Mean drafted tokens per active row, step by step, of the first generation."""
    chosen, batch = at_one_batch([c for c in cells if c.speculative and c.generations])
    if not chosen:
        return None
    figure, panels = facets([cell.label for cell in chosen], "step", "drafted per active row")
    for cell in chosen:
        steps = cell.generations[0].steps[:MOST_POINTS]
        mean = [float(step.drafted.sum() / max(step.active.sum(), 1)) for step in steps]
        options: dict[str, Any] = {"drawstyle": "steps-mid", "marker": "", "linewidth": 1.2}
        series(panels[cell.label], 0, range(1, len(mean) + 1), mean, "drafted", **options)
    _alike(panels)
    _finish(figure, panels)
    cut = (
        f" Its first {MOST_POINTS} steps."
        if any(len(cell.generations[0].steps) > MOST_POINTS for cell in chosen)
        else ""
    )
    caption = (
        f"Tokens drafted per active row in each step of the first generation, batch {batch}.{cut}"
    )
    return Plot("draft-length", "Draft length over time", caption, figure)


def finished(cells: Sequence[Cell]) -> Plot | None:
    """The share of finished requests over seconds."""
    caption = "By time budget, batch {}: the share of the finished requests."
    return _budget(
        cells, "budget", "Finished within a time budget", caption, "% of the requests", _finished
    )


def tokens(cells: Sequence[Cell]) -> Plot | None:
    """The number of tokens over seconds."""
    caption = "By time budget, batch {}: the tokens of all sequences."
    return _budget(
        cells,
        "budget-tokens",
        "Tokens within a time budget",
        caption,
        "tokens of a generation",
        _tokens,
    )


Curve = Callable[[Cell], tuple[np.ndarray, np.ndarray]]


def _budget(
    cells: Sequence[Cell], name: str, title: str, caption: str, ylabel: str, curve: Curve
) -> Plot | None:
    chosen, batch = at_one_batch([cell for cell in cells if cell.lines.requests])
    if not chosen:
        return None
    figure, panels = facets([cell.label for cell in chosen], "seconds", ylabel)
    curves = {cell: [values.tolist() for values in curve(cell)] for cell in chosen}
    for cell, (at, value) in curves.items():
        ax = panels[cell.label]
        if (plain := _plain_for(cell, chosen)) is not None:
            reference_series(
                ax,
                curves[plain][0],
                curves[plain][1],
                "autoregressive decoding",
                drawstyle="steps-post",
            )
        series(ax, 0, at, value, "this setting", drawstyle="steps-post", marker="", linewidth=1.4)
        ax.set_xlim(0, max(values[0][-1] for values in curves.values()) or 1)
    _finish(figure, panels)
    return Plot(
        name,
        title,
        (
            f"{caption.format(batch)} From the beginning of a generation, all of them "
            f"together.{_grey(chosen)}"
        ),
        figure,
    )


def _finished(cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    ended = np.sort(
        [0.0, *(request.ended for request in cell.lines.requests if request.finish != "budget")]
    )
    kept = thinned(len(ended))
    return ended[kept], 100 * np.arange(len(ended))[kept] / len(cell.lines.requests)


def _tokens(cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    emitted = sorted(
        (step.at, sum(step.emitted) / len(cell.generations)) for step in cell.lines.steps
    )
    at, count = np.array([(0.0, 0.0), *emitted]).T
    kept = thinned(len(at))
    return at[kept], count.cumsum()[kept]
