"""The plots of a report, each a matplotlib figure with a title and a sentence that says what is seen."""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
from jaxtyping import Int

from bass.errors import OptionError
from bass.experiments.repeats import Repeat
from bass.experiments.report.cells import Cell, by_label, pooled
from bass.experiments.report.palette import DASHES, HATCHES, MARKERS, SERIES, colours, themed
from bass.results import acceptance_by_position, judged_lengths

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_SERIES = len(SERIES)
MOST_POINTS = 300  # of a line
INCHES = (6.4, 3.5)


@final
@dataclass(frozen=True)
class Plot:
    """A figure and its words. `name`: of its files."""

    name: str
    title: str
    caption: str
    figure: "Figure"

    def svg(self) -> str:
        """For the page: its colours are the page's variables, and its ids are its own."""
        with _style():
            out = io.StringIO()
            self.figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        text = out.getvalue()
        text = text[text.index("<svg") :]
        text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{self.name}-", themed(text))
        return re.sub(r"<svg ", f'<svg role="img" aria-label="{self.title}" ', text, count=1)

    def file(self, kind: str) -> bytes:
        """As a file of its own, `svg` or `png`, on white."""
        with _style():
            out = io.BytesIO()
            self.figure.savefig(out, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
        return out.getvalue()


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib

    c = colours()
    names = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "xtick.labelcolor", "ytick.labelcolor")
    style: Any = dict.fromkeys(names, c["ink"]) | {
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
    with matplotlib.rc_context(style):
        yield


Numbers = Mapping[str, int]  # of each label, by which it has the same colour, dash and mark in all plots


def plots(cells: Sequence[Cell], first: Iterable[str] = ()) -> list[Plot]:
    """Every plot for which there is data. `cells`: those that are done; `first`: the labels to show where there are too many.

    Raises an OptionError where matplotlib is not installed.
    """
    try:
        import matplotlib as _  # noqa: F401
    except ImportError as error:
        raise OptionError("A report needs matplotlib, which is not installed: `pip install 'bass[report]'`.") from error
    labels = list(dict.fromkeys(cell.label for cell in cells))
    kept = list(dict.fromkeys([*first, *labels]))[:MOST_SERIES]
    numbers = {label: i for i, label in enumerate(label for label in labels if label in kept)}
    left = f" {len(kept)} of {len(labels)} settings are shown." if len(labels) > len(kept) else ""
    shown = [cell for cell in cells if cell.label in numbers]
    makers: tuple[Callable[[Sequence[Cell], Numbers], Plot | None], ...] = (
        latency, tau, acceptance, draft_length, parts, utilisation, budget,
    )  # fmt: skip
    with _style():
        drawn = [plot for make in makers if (plot := make(shown, numbers)) is not None]
    return [replace(plot, caption=plot.caption + left) for plot in drawn]


def _figure(panels: int = 1, **options: Any) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False, **options)[0]
    return figure, list(axes)


def _line(axes: "Axes", number: int, x: Sequence[float], y: Sequence[float], label: str, **options: Any) -> None:
    """A series with a colour, a dash and a mark of its own."""
    style = {"color": colours()[SERIES[number]], "linestyle": DASHES[number], "marker": MARKERS[number], "markersize": 5} | options
    axes.plot(x, y, label=_literal(label), **style)


def _literal(label: str) -> str:
    """A label as it is: matplotlib reads `$` as mathematics, and leaves out what begins with `_`."""
    return f"\u200b{label}".replace("$", r"\$") if label.startswith("_") else label.replace("$", r"\$")


def _legend(figure: "Figure", axes: "Axes", count: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if count > 1 or (labels and labels[0] != "this setting"):
        figure.legend(handles, labels, loc="outside lower center", ncols=min(count, 4))


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
    figure, axes = _figure(len(panels), sharey=share)
    batches = sorted({cell.batch for cell in cells})
    for ax, (metric, title) in zip(axes, panels, strict=True):
        for label, group in groups.items():
            number = numbers[label]
            found = [(batches.index(cell.batch), *pooled(values)) for cell in group if (values := cell.values(metric))]
            if not found:
                continue
            x, mean, least, most = np.array(found).T * np.array([[1], [scale], [scale], [scale]])
            x = x + 0.06 * (number - (len(groups) - 1) / 2)  # beside each other, so that bars do not hide bars
            _line(ax, number, x.tolist(), mean.tolist(), label)
            ax.vlines(x, least, most, color=colours()[SERIES[number]], linewidth=1.2)
        ax.set(
            title=title, xlabel="batch", xticks=range(len(batches)), xticklabels=[str(b) for b in batches], xlim=(-0.4, len(batches) - 0.6)
        )
    for ax in axes:  # at last: what is set is not widened by lines that follow in a panel that shares it
        ax.set_ylim(bottom=0)
    axes[0].set_ylabel(ylabel)
    _legend(figure, max(axes, key=lambda ax: len(ax.lines)), len(groups))
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
    figure, (left, right) = _figure(2, sharey=True)
    for label, group in groups.items():
        records = [step for cell in group for repeat in cell.repeats for step in repeat.steps]
        rates, reached = acceptance_by_position(records)
        judged = np.concatenate([judged_lengths(record) for record in records])
        accepted = np.concatenate([record.accepted for record in records])
        had = [int((judged > i).sum()) for i in range(len(rates))]
        kept = [i for i, count in enumerate(reached) if count >= 10] or list(range(len(reached)))
        _line(left, numbers[label], [i + 1 for i in kept], [100 * rates[i] for i in kept], label)
        _line(right, numbers[label], [i + 1 for i in kept], [100 * int((accepted > i).sum()) / max(had[i], 1) for i in kept], label)
    left.set(title="of the tokens that were reached", xlabel="position in the draft", ylabel="% accepted", ylim=(0, 102))
    right.set(title="of all tokens drafted there", xlabel="position in the draft")
    for ax in (left, right):
        ax.locator_params(axis="x", integer=True)
    _legend(figure, left, len(groups))
    caption = "Left: of the drafts whose earlier tokens were all accepted, the share accepted at this position. Right: of all drafts that "
    caption += "had this position. Positions reached fewer than ten times are left out. All batches together."
    return Plot("acceptance", "Acceptance by position", caption, figure)


def draft_length(cells: Sequence[Cell], numbers: Numbers) -> Plot | None:
    """Mean drafted tokens per active row, step by step, of the first repeat."""
    chosen, batch = _at_one_batch([c for c in cells if c.speculative and c.repeats])
    if not chosen:
        return None
    figure, (ax,) = _figure()
    for cell in chosen:
        number = numbers[cell.label]
        steps = cell.repeats[0].steps[:MOST_POINTS]
        mean = [float(step.drafted.sum() / max(step.active.sum(), 1)) for step in steps]
        every = max(1, len(mean) // 12)
        _line(
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
    _legend(figure, ax, len(chosen))
    cut = f" Its first {MOST_POINTS} steps." if any(len(cell.repeats[0].steps) > MOST_POINTS for cell in chosen) else ""
    caption = f"Tokens drafted per active row in each step of the first repeat, batch {batch}.{cut}"
    return Plot("draft-length", "Draft length over time", caption, figure)


def parts(cells: Sequence[Cell], numbers: Numbers) -> Plot | None:
    """Where the time of a repeat went."""
    cells = [cell for cell in cells if cell.repeats and cell.lines.steps]
    chosen = cells if len(cells) <= 16 else _at_one_batch(cells)[0]
    if not chosen:
        return None
    figure, (ax,) = _figure()
    if len(chosen) > 8:
        figure.set_figheight(INCHES[1] * len(chosen) / 8)
    rows = range(len(chosen))
    left = np.zeros(len(chosen))
    for name, of, colour, hatch in zip(PARTS, PARTS.values(), SERIES, HATCHES, strict=False):
        width = np.array([1e3 * np.mean([of(repeat) for repeat in cell.repeats]) for cell in chosen])
        ax.barh(rows, width, left=left, label=name, facecolor=colours()[colour], hatch=hatch, edgecolor=colours()["page"], linewidth=0.5)
        left = left + width
    ax.set(yticks=rows, yticklabels=[_literal(cell.title) for cell in chosen], xlabel="ms of a repeat")
    ax.set_ylim(len(chosen) - 0.4, -0.6)
    ax.grid(axis="y", visible=False)
    _legend(figure, ax, len(PARTS))
    caption = "Mean time of a repeat by part. Prefill: until the first prompts were read. Steps: drafting and verifying on the device. "
    return Plot("parts", "Time by part", caption + "Host: bookkeeping and the policy. Other: prefills of later requests, readers.", figure)


def _prefill(repeat: Repeat) -> float:
    return min((request.prefill_seconds for request in repeat.requests), default=0.0)


def _host(repeat: Repeat) -> float:
    return sum(step.host_seconds for step in repeat.steps)


def _other(repeat: Repeat) -> float:
    return max(0.0, repeat.seconds - _prefill(repeat) - repeat.stepping - _host(repeat))


PARTS: dict[str, Callable[[Repeat], float]] = {"prefill": _prefill, "steps": lambda r: r.stepping, "host": _host, "other": _other}


def _thinned(count: int) -> Int[np.ndarray, " kept"]:
    """Indices of at most `MOST_POINTS` points of a curve, its ends among them."""
    return np.unique(np.linspace(0, count - 1, MOST_POINTS).astype(np.int64))


def budget(cells: Sequence[Cell], numbers: Numbers) -> Plot | None:
    """What is there after so many seconds: finished requests, and tokens."""
    chosen, batch = _at_one_batch([cell for cell in cells if cell.lines.requests])
    if not chosen:
        return None
    figure, (left, right) = _figure(2)
    for cell in chosen:
        number = numbers[cell.label]
        count = len(cell.repeats)
        finished = [request for request in cell.lines.requests if request.finish != "budget"]
        ended = np.sort([0.0, *(request.ended for request in finished)])
        share = 100 * np.arange(len(ended)) / len(cell.lines.requests)
        kept = _thinned(len(ended))
        every = max(1, len(kept) // 6)
        _line(left, number, ended[kept].tolist(), share[kept].tolist(), cell.label, drawstyle="steps-post", markevery=every)
        tokens = sorted((step.at, sum(step.emitted) / count) for step in cell.lines.steps)
        at, emitted = np.array([(0.0, 0.0), *tokens]).T
        kept = _thinned(len(at))
        _line(right, number, at[kept].tolist(), emitted.cumsum()[kept].tolist(), cell.label, markevery=max(1, len(kept) // 6))
    left.set(xlabel="seconds", ylabel="% of the requests finished", ylim=(0, 102), xlim=(0, None))
    right.set(xlabel="seconds", ylabel="tokens of a repeat")
    right.set(xlim=(0, None), ylim=(0, None))
    _legend(figure, left, len(chosen))
    caption = (
        f"What a time budget buys, batch {batch}: the share of the requests that are finished, and the tokens that are there, by then. "
    )
    return Plot("budget", "Time-budget curve", caption + "From the beginning of a repeat, all repeats together.", figure)
