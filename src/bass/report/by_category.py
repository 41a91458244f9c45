"""The figures of a report by category of prompts: a table, and two plots."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bass.analysis.categories import categories
from bass.analysis.metrics import METRICS
from bass.analysis.statistics import LEVEL
from bass.analysis.units import NOTHING
from bass.report.cells import Cell, at_one_batch
from bass.report.contrast import fastest_plain
from bass.report.drawing import Plot, facets, legend, literal, series
from bass.report.palette import SERIES, colours
from bass.report.table_rows import Part, part_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = ("tau", "acceptance_rate", "all")  # columns
MOST_ROWS = 500


def parts_of(cells: Sequence[Cell]) -> list[Part]:
    """The part of each finished cell and category, in the order of the cells; none where the run
    records no categories.
    """
    named = categories(line for cell in cells for line in cell.lines.requests)
    found = (part_of(cell, name, None) for cell in cells for name in named)
    return [part for part in found if part is not None]


def by_category(cells: Sequence[Cell]) -> dict[str, Any] | None:
    """The table of the page; None without categories."""
    parts = parts_of(cells)
    if not parts:
        return None
    rows = []
    for part in parts[:MOST_ROWS]:
        values = [_shown(part, name) for name in SHOWN]
        cell = part.cell
        named = [cell.label, cell.batch, part.category]
        counts = [part.runs, len(part.prompts)]
        rows.append({"best": False, "cells": [*named, *values, _speedup(part, parts), *counts]})
    metrics = [METRICS[name] for name in SHOWN]
    heads = [{"text": metric.heading, "unit": metric.shown_unit} for metric in metrics]
    note = (
        f"Means over the prompts of a category, of times over repeats; below each its "
        f"{100 * LEVEL:.0f} % interval. Speed-up: over the fastest autoregressive decoding of the "
        "category."
    )
    if not all(part.whole for part in parts):
        note += (
            " Categories that share the steps of a call have no times of their own but those of "
            "requests: leave `samples` out of the config."
        )
    if len(parts) > MOST_ROWS:
        note += f" The first {MOST_ROWS} of {len(parts)} rows: `bass table` has all."
    return {
        "title": "Figures by category",
        "note": note,
        "heads": [
            *({"text": text} for text in ("setting", "batch", "category")),
            *heads,
            {"text": "speed-up", "unit": "over fastest plain"},
            {"text": "repeats"},
            {"text": "prompts"},
        ],
        "rows": rows,
        "words": False,
        "folded": len(rows) > 30,
    }


def _shown(part: Part, name: str) -> dict[str, str]:
    """A value, and below it its interval."""
    metric = METRICS[name]
    shown = {"text": metric.show(part.value(name))}
    if (found := part.interval(name, 2)) is not None:
        most = 1.0 if metric.unit == "share" else np.inf
        shown["small"] = f"{metric.show(found[0])}–{metric.show(min(found[1], most))}"
    return shown


def _speedup(part: Part, parts: Sequence[Part]) -> dict[str, str]:
    compared = part.speedup(parts)
    if compared is None:
        return {"text": NOTHING}
    plain, found = compared
    if plain is part:
        return {"text": "1"}
    return {"text": f"{found.times:.2f}", "small": found.within.replace(" to ", "–")}


def tau(cells: Sequence[Cell]) -> Plot | None:
    """Tokens per target call, by category."""
    chosen, batch = at_one_batch([cell for cell in cells if cell.speculative])
    figure = _drawn(parts_of(chosen), [], "tau", 1.0, "tokens per target call")
    return figure and Plot(
        "tau-by-category",
        "tau by category",
        f"Mean acceptance length of the prompts of each category, batch {batch}. Bars: "
        f"{100 * LEVEL:.0f} % intervals over prompts, where there are two or more.",
        figure,
    )


def latency(cells: Sequence[Cell]) -> Plot | None:
    """Time per token, by category."""
    chosen, batch = at_one_batch(cells)
    parts = parts_of(chosen)
    figure = _drawn([p for p in parts if p.cell.speculative], parts, "all", 1e3, "ms per token")
    return figure and Plot(
        "latency-by-category",
        "Time per token by category",
        "Time per token from the end of the prefill, the mean of all sequences of the category, "
        f"batch {batch}; lower is better. Bars: {100 * LEVEL:.0f} % intervals over repeats, where "
        "there are two or more. Grey: the fastest autoregressive decoding of the category.",
        figure,
    )


def _drawn(
    parts: Sequence[Part], others: Sequence[Part], metric: str, scale: float, ylabel: str
) -> "Figure | None":
    """A panel for each setting, with a mark for each category."""
    if not parts:
        return None
    name = "this setting"
    names = sorted({part.category or "" for part in parts})
    figure, panels = facets([*dict.fromkeys(part.cell.label for part in parts)], "", ylabel)
    for label, ax in panels.items():
        own = [part for part in parts if part.cell.label == label]
        shown = [(part, value) for part in own if (value := part.value(metric)) is not None]
        at = [names.index(part.category or "") for part, _ in shown]
        plain = [fastest_plain(part, others) for part, _ in shown]
        grey = [
            (x, scale * value)
            for x, one in zip(at, plain, strict=True)
            if one is not None and (value := one.value(metric)) is not None
        ]
        if grey:
            ax.plot(
                [x for x, _ in grey],
                [y for _, y in grey],
                label="autoregressive decoding",
                color=colours()["faint"],
                linestyle="",
                marker="_",
                markersize=12,
                zorder=1,
            )
        series(ax, 0, at, [scale * value for _, value in shown], name, linestyle="")
        for x, (part, _) in zip(at, shown, strict=True):
            if (found := part.interval(metric, 2)) is not None:
                low, high = (scale * end for end in found)
                ax.vlines(x, low, high, color=colours()[SERIES[0]], linewidth=1.2)
        ax.set_xticks(range(len(names)), [literal(name) for name in names], rotation=90)
        ax.tick_params(axis="x", labelsize=7)
        ax.set_xlim(-0.5, len(names) - 0.5)
    for ax in panels.values():
        ax.set_ylim(bottom=0)
    legend(figure, next(iter(panels.values())), 2 if others else 1)
    return figure
