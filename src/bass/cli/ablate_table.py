"""The table at the end of `bass ablate`: the main figures of every cell."""

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from bass.analysis.metrics import FIGURES, METRICS
from bass.analysis.units import NOTHING, number
from bass.experiments.config import Plan
from bass.experiments.plain import fastest_plain
from bass.report.cells import words
from bass.report.contrast import speedup
from bass.runs.records import Summary
from bass.runs.words import called

BEFORE_SPEEDUP = "tokens_per_second"  # the column


def results(made: Plan, summaries: Mapping[str, Summary]) -> Table:
    """The main figures of every cell: means over its repeats.

    A metric that no cell has is left out, and the speed-up without autoregressive decoding. After
    the speed-up, which is that of `bass table`, `over` names the cell that it is over, by the axes
    on which they differ.
    """
    over = fastest_plain({cell.id: cell.settings for cell in made.cells}, summaries)
    axes = [Column(escape(axis), overflow="fold") for axis in made.axes]
    table = Table(*axes, title=Text(made.about or made.name), title_justify="left")
    columns = [
        METRICS[name]
        for name in FIGURES
        if any(name in summary.metrics for summary in summaries.values())
    ]
    for metric in columns:
        head = f"{metric.heading}, {metric.shown_unit}"
        table.add_column(head, justify="right", overflow="fold")
        if metric.name == BEFORE_SPEEDUP and over:
            table.add_column("speed-up, ratio", justify="right", overflow="fold")
            table.add_column("over", overflow="fold")
    for summary in summaries.values():
        labels = [_text(called(summary.settings[axis])) for axis in made.axes]
        figures: list[str | Text] = []
        for metric in columns:
            figures.append(metric.show(summary.metrics.get(metric.name)))
            if metric.name == BEFORE_SPEEDUP and over:
                plain = summaries.get(over.get(summary.cell, ""))
                figures += [_speedup(summary, plain), _text(_over(summary, plain))]
        table.add_row(
            *labels, *(figures if summary.state == "done" else ["failed"][: len(columns)])
        )
    return table


def _speedup(summary: Summary, plain: Summary | None) -> str:
    """The speed-up with its interval."""
    own, others = (
        {i: one["all"] for i, one in enumerate(of.repeats if of else []) if "all" in one}
        for of in (summary, plain)
    )
    # of the same work, so that equally many repeats are of the same requests
    found = speedup(own, others, paired=len(own) == len(others))
    if found is None:
        return NOTHING
    low, high = found.low, found.high
    within = "" if low is None or high is None else f" ({_ratio(low)} to {_ratio(high)})"
    return _ratio(found.times) + ("" if plain is summary else within)


def _ratio(value: float) -> str:
    return number(value, "ratio")


def _over(summary: Summary, plain: Summary | None) -> str:
    """The axes on which the cell of its speed-up differs, with their values there."""
    if plain is None or plain is summary:
        return NOTHING
    own, others = summary.settings, plain.settings
    unlike = [axis for axis in others if others[axis] != own.get(axis)]
    return words({axis: called(others[axis]) for axis in unlike}, unlike)


def _text(label: Any) -> Text:
    """A label as text: brackets in it are not markup."""
    return Text(str(label))
