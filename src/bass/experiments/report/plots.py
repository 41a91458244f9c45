"""The plots of a report, each a matplotlib figure with a title and a sentence that says what is seen."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bass.experiments.repeats import Repeat
from bass.experiments.report.cells import Cell, by_label
from bass.experiments.report.drawing import INCHES, MOST_POINTS, Plot, legend, literal, new_figure, series, style, thinned
from bass.experiments.report.palette import HATCHES, SERIES, colours
from bass.results import acceptance_by_position, judged_lengths

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_SERIES = len(SERIES)

Numbers = Mapping[str, int]  # of each label, by which it has the same colour, dash and mark in all plots


def plots(cells: Sequence[Cell], first: Iterable[str] = ()) -> list[Plot]:
    """Every plot for which there is data. `cells`: those that are done; `first`: the labels to show where there are too many.

    Raises an OptionError where matplotlib is not installed.
    """
    labels = list(dict.fromkeys(cell.label for cell in cells))
    kept = list(dict.fromkeys([*first, *labels]))[:MOST_SERIES]
    numbers = {label: i for i, label in enumerate(label for label in labels if label in kept)}
    left = f" {len(kept)} of {len(labels)} settings are shown." if len(labels) > len(kept) else ""
    shown = [cell for cell in cells if cell.label in numbers]
    makers: tuple[Callable[[Sequence[Cell], Numbers], Plot | None], ...] = (
        latency, tau, acceptance, draft_length, parts, step_parts, utilisation, budget,
    )  # fmt: skip
    with style():
        drawn = [plot for make in makers if (plot := make(shown, numbers)) is not None]
    return [replace(plot, caption=plot.caption + left) for plot in drawn]


def _at_one_batch(cells: Sequence[Cell]) -> tuple[list[Cell], int]:
    """The cells of the largest batch that most settings have."""
    batches = [cell.batch for cell in cells]
    batch = max(set(batches), key=lambda b: (batches.count(b), b), default=0)
    return [cell for cell in cells if cell.batch == batch], batch


def _by_batch(
    cells: Sequence[Cell], numbers: Numbers, panels: Sequence[tuple[str, str]], scale: float, ylabel: str, share: bool
) -> "Figure | None":
    """One panel per (metric, title): its mean over repeats by batch, bars from the least to the greatest."""
    groups = by_label(cells)
    panels = [panel for panel in panels if any(cell.values(panel[0]) for cell in cells)]
    if not panels:
        return None
    figure, axes = new_figure(len(panels), sharey=share)
    batches = sorted({cell.batch for cell in cells})
    for ax, (metric, title) in zip(axes, panels, strict=True):
        for label, group in groups.items():
            number = numbers[label]
            found = [
                (batches.index(cell.batch), cell.value(metric), min(values), max(values))
                for cell in group
                if (values := cell.values(metric))
            ]
            if not found:
                continue
            x, mean, least, most = np.array(found).T * np.array([[1], [scale], [scale], [scale]])
            x = x + 0.06 * (number - (len(groups) - 1) / 2)  # beside each other, so that bars do not hide bars
            series(ax, number, x.tolist(), mean.tolist(), label)
            ax.vlines(x, least, most, color=colours()[SERIES[number]], linewidth=1.2)
        ax.set(
            title=title, xlabel="batch", xticks=range(len(batches)), xticklabels=[str(b) for b in batches], xlim=(-0.4, len(batches) - 0.6)
        )
    for ax in axes:  # at last: what is set is not widened by lines that follow in a panel that shares it
        ax.set_ylim(bottom=0)
    axes[0].set_ylabel(ylabel)
    legend(figure, max(axes, key=lambda ax: len(ax.lines)), len(groups))
    return figure


def latency(cells: Sequence[Cell], numbers: Numbers) -> Plot | None:
    """First, last and all, by batch."""
    panels = [("first", "first"), ("last", "last"), ("all", "all")]
    figure = _by_batch(cells, numbers, panels, 1e3, "ms per token", share=True)
    caption = "Time per token of the first sequence to finish, of the last, and the mean of all, each from the end of its prefill; "
    return figure and Plot("latency", "Latency by batch", caption + "lower is better. Bars: least to greatest repeat.", figure)


def tau(cells: Sequence[Cell], numbers: Numbers) -> Plot | None:
    """Tokens per target call, by batch."""
    figure = _by_batch(cells, numbers, [("mean_acceptance_length", "")], 1.0, "tokens per target call", share=True)
    caption = "tau: tokens that a row emits per call of the target, bonus or correction included; plain decoding has 1."
    return figure and Plot("tau", "tau by batch", caption, figure)


def utilisation(cells: Sequence[Cell], numbers: Numbers) -> Plot | None:
    """MBU and MFU, by batch."""
    panels = [("mbu", "MBU (share of the bound)"), ("mfu", "MFU"), ("mfu_kept", "MFU, kept tokens")]
    figure = _by_batch(cells, numbers, panels, 100.0, "%", share=False)
    caption = (
        "MBU: the least time in which the bytes of the steps can be read, over the time of the steps. MFU: operations done over those "
    )
    caption += "that the device could have done; on the right, only those for tokens that were kept."
    return figure and Plot("utilisation", "Share of the bound, MFU and MBU", caption, figure)


def acceptance(cells: Sequence[Cell], numbers: Numbers) -> Plot | None:
    """Acceptance by position: of those reached, and of all drafted so far."""
    groups = by_label(c for c in cells if c.speculative)
    if not groups:
        return None
    figure, (left, right) = new_figure(2, sharey=True)
    for label, group in groups.items():
        records = [step for cell in group for repeat in cell.repeats for step in repeat.steps]
        rates, reached = acceptance_by_position(records)
        judged = np.concatenate([judged_lengths(record) for record in records])
        accepted = np.concatenate([record.accepted for record in records])
        had = [int((judged > i).sum()) for i in range(len(rates))]
        kept = [i for i, count in enumerate(reached) if count >= 10] or list(range(len(reached)))
        series(left, numbers[label], [i + 1 for i in kept], [100 * rates[i] for i in kept], label)
        series(right, numbers[label], [i + 1 for i in kept], [100 * int((accepted > i).sum()) / max(had[i], 1) for i in kept], label)
    left.set(title="of the tokens that were reached", xlabel="position in the draft", ylabel="% accepted", ylim=(0, 102))
    right.set(title="of all tokens drafted there", xlabel="position in the draft")
    for ax in (left, right):
        ax.locator_params(axis="x", integer=True)
    legend(figure, left, len(groups))
    caption = "Left: of the drafts whose earlier tokens were all accepted, the share accepted at this position. Right: of all drafts that "
    caption += "had this position. Positions reached fewer than ten times are left out. All batches together."
    return Plot("acceptance", "Acceptance by position", caption, figure)


def draft_length(cells: Sequence[Cell], numbers: Numbers) -> Plot | None:
    """Mean drafted tokens per active row, step by step, of the first repeat."""
    chosen, batch = _at_one_batch([c for c in cells if c.speculative and c.repeats])
    if not chosen:
        return None
    figure, (ax,) = new_figure()
    for cell in chosen:
        number = numbers[cell.label]
        steps = cell.repeats[0].steps[:MOST_POINTS]
        mean = [float(step.drafted.sum() / max(step.active.sum(), 1)) for step in steps]
        every = max(1, len(mean) // 12)
        series(
            ax,
            number,
            range(1, len(mean) + 1),
            mean,
            cell.label,
            drawstyle="steps-mid",
            markevery=(number * every // 8, every),
            linewidth=1.2,
        )
    ax.set(xlabel="step", ylabel="drafted tokens per active row")
    ax.set_ylim(bottom=0)
    legend(figure, ax, len(chosen))
    cut = f" Its first {MOST_POINTS} steps." if any(len(cell.repeats[0].steps) > MOST_POINTS for cell in chosen) else ""
    caption = f"Tokens drafted per active row in each step of the first repeat, batch {batch}.{cut}"
    return Plot("draft-length", "Draft length over time", caption, figure)


def parts(cells: Sequence[Cell], numbers: Numbers) -> Plot | None:
    """Where the time of a repeat went."""
    bars = {
        cell: {name: float(1e3 * np.mean([of(repeat) for repeat in cell.repeats])) for name, of in PARTS.items()}
        for cell in cells
        if cell.repeats and cell.lines.steps
    }
    caption = "Mean time of a repeat by part. Prefill: until the first prompts were read. Steps: drafting and verifying on the device. "
    caption += "Host: bookkeeping and the policy. Other: prefills of later requests, readers."
    figure = _bars(bars, "ms of a repeat")
    return figure and Plot("parts", "Time by part", caption, figure)


def step_parts(cells: Sequence[Cell], numbers: Numbers) -> Plot | None:
    """Where the time of a step goes, in the cells for which it was measured."""
    facts = {cell: cell.summary.facts for cell in cells if cell.summary is not None and cell.summary.facts is not None}
    bars = {cell: dict(of.parts_ms) for cell, of in facts.items() if of.parts_ms}
    caption = "Parts of one step of the median draft length, each timed alone: drafting, the target's pass over the window, sampling with "
    caption += "verification, and what the host adds."
    figure = _bars(bars, "ms of a step")
    return figure and Plot("step-parts", "Time of a step by part", caption, figure)


def _bars(bars: Mapping[Cell, Mapping[str, float]], xlabel: str) -> "Figure | None":
    """A bar for each cell, of parts with a colour and a hatch of their own."""
    chosen = list(bars) if len(bars) <= 16 else _at_one_batch(list(bars))[0]
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
        ax.barh(rows, width, left=left, label=name, facecolor=colours()[colour], hatch=hatch, edgecolor=colours()["page"], linewidth=0.5)
        left = left + width
    ax.set(yticks=rows, yticklabels=[literal(cell.title) for cell in chosen], xlabel=xlabel)
    ax.set_ylim(len(chosen) - 0.4, -0.6)
    ax.grid(axis="y", visible=False)
    legend(figure, ax, len(names))
    return figure


def _prefill(repeat: Repeat) -> float:
    return min((request.prefill_seconds for request in repeat.requests), default=0.0)


def _host(repeat: Repeat) -> float:
    return sum(step.host_seconds for step in repeat.steps)


def _other(repeat: Repeat) -> float:
    return max(0.0, repeat.seconds - _prefill(repeat) - repeat.stepping - _host(repeat))


PARTS: dict[str, Callable[[Repeat], float]] = {"prefill": _prefill, "steps": lambda r: r.stepping, "host": _host, "other": _other}


def budget(cells: Sequence[Cell], numbers: Numbers) -> Plot | None:
    """What is there after so many seconds: finished requests, and tokens."""
    chosen, batch = _at_one_batch([cell for cell in cells if cell.lines.requests])
    if not chosen:
        return None
    figure, (left, right) = new_figure(2)
    for cell in chosen:
        number = numbers[cell.label]
        count = len(cell.repeats)
        finished = [request for request in cell.lines.requests if request.finish != "budget"]
        ended = np.sort([0.0, *(request.ended for request in finished)])
        share = 100 * np.arange(len(ended)) / len(cell.lines.requests)
        kept = thinned(len(ended))
        every = max(1, len(kept) // 6)
        series(left, number, ended[kept].tolist(), share[kept].tolist(), cell.label, drawstyle="steps-post", markevery=every)
        tokens = sorted((step.at, sum(step.emitted) / count) for step in cell.lines.steps)
        at, emitted = np.array([(0.0, 0.0), *tokens]).T
        kept = thinned(len(at))
        series(right, number, at[kept].tolist(), emitted.cumsum()[kept].tolist(), cell.label, markevery=max(1, len(kept) // 6))
    left.set(xlabel="seconds", ylabel="% of the requests finished", ylim=(0, 102), xlim=(0, None))
    right.set(xlabel="seconds", ylabel="tokens of a repeat")
    right.set(xlim=(0, None), ylim=(0, None))
    legend(figure, left, len(chosen))
    caption = (
        f"What a time budget buys, batch {batch}: the share of the requests that are finished, and the tokens that are there, by then. "
    )
    return Plot("budget", "Time-budget curve", caption + "From the beginning of a repeat, all repeats together.", figure)
