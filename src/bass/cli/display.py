"""The output of `bass generate`: growing rows, completions, and the table of figures."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bass.analysis.metrics import METRICS, Metric
from bass.analysis.units import NOTHING, number
from bass.api.generation import Generation
from bass.api.requests import Prompt
from bass.api.results import Result, Stats, StreamEvent
from bass.cli.compare import Comparison, middle, speed
from bass.cli.terminal import SHOWN, Screen, give
from bass.interrupt import displayed
from bass.printable import printable

REFRESH_SECONDS = 0.12  # a redraw takes a few milliseconds of the measured run
WIDE = 120  # from this width on, samples are shown in two columns
MOST_LINES = 8  # of one sample
# of the table
FIGURES = ("tau", "acceptance_rate", "tokens_per_second", "first", "last", "all", "mbu")
# next to autoregressive decoding also the a of the predicted speed-up
COMPARED = ("tau", "acceptance_rate", "token_acceptance_rate", *FIGURES[2:])
MARKS = {"eos": "✓", "stop": "✓", "length": "■", "time": "…", "interrupted": "…"}


@dataclass
class Row:
    """One sample so far."""

    label: str
    text: str = ""
    tokens: int = 0
    reason: str | None = None


@dataclass
class Rows:
    """All samples, their limit, and their start time."""

    title: str
    samples: int
    limit: int
    has_text: bool
    rows: list[Row]
    began: float = field(default_factory=time.perf_counter)

    @classmethod
    def of(
        cls, prompts: Sequence[object], samples: int, limit: int, title: str, has_text: bool = True
    ) -> "Rows":
        """Empty rows, prompt by prompt.

        `limit`: new tokens per row. Without text they show token ids.
        """
        labels = [
            f"{p}.{s}" if len(prompts) > 1 else str(s)
            for p in range(len(prompts))
            for s in range(samples)
        ]
        return cls(title, samples, limit, has_text, [Row(label) for label in labels])

    def take(self, event: StreamEvent) -> None:
        """Apply an event."""
        row = self.rows[event.prompt_index * self.samples + event.sample_index % self.samples]
        row.text += (
            event.text if self.has_text else "".join(f"{token} " for token in event.token_ids)
        )
        row.tokens += len(event.token_ids)
        row.reason = event.finish_reason

    def render(self, width: int, height: int) -> RenderableType:
        """As many rows as fit, each with its last lines, above a progress bar of all tokens."""
        columns = 2 if width >= WIDE and len(self.rows) > 1 else 1
        space = max(height - 3, 1)  # the title, the bar, and the line below them
        shown = self.rows
        if len(shown) > space * columns:  # those under way first, then those that are done
            shown = sorted(shown, key=lambda row: (not row.tokens, row.reason is not None))[
                : space * columns
            ]
        deep = -(-len(shown) // columns)
        lines = max(1, min(space // deep, MOST_LINES))
        grid = Table.grid(padding=0)
        for i in range(deep):
            grid.add_row(*(_cell(row, width // columns, lines) for row in shown[i::deep]))
        return Group(
            Text(self.title, style="bold", no_wrap=True, overflow="ellipsis"),
            grid,
            self._bar(width),
        )

    def _bar(self, width: int) -> RenderableType:
        done = sum(row.tokens for row in self.rows)
        # A finished row counts with its limit, so that the bar ends full.
        whole = sum(row.tokens if row.reason else self.limit for row in self.rows)
        seconds = max(time.perf_counter() - self.began, 1e-9)
        finished = sum(row.reason is not None for row in self.rows)
        text = Text(
            f" {done} tokens, {done / seconds:.0f} tokens/s, {finished}/{len(self.rows)} finished",
            style="cyan",
            no_wrap=True,
        )
        if width < text.cell_len + 10:
            text.truncate(width)
            return text
        bar = Table.grid()
        bar.add_row(
            ProgressBar(total=max(whole, 1), completed=done, width=width - text.cell_len - 1), text
        )
        return bar


def show_live(generation: Generation, rows: Rows, console: Screen) -> None:
    """Run the generation and show its rows on the terminal until it ends."""
    rows.began = time.perf_counter()
    size = console.size
    frame = rows.render(size.width, size.height)
    with displayed(Live(frame, console=console, auto_refresh=False, transient=True)) as live:
        drawn = 0.0
        for event in generation:
            rows.take(event)
            now = time.perf_counter()
            if now - drawn >= REFRESH_SECONDS:
                size = console.size
                live.update(rows.render(size.width, size.height), refresh=True)
                drawn = time.perf_counter()


def completions(console: Screen, result: Result, prompts: Sequence[Prompt]) -> None:
    """Print the completions; on a terminal, each after its prompt and in printable characters."""
    many = len(result.completions) > 1
    for completion in result.completions:
        text = (
            completion.text
            if completion.text is not None
            else " ".join(map(str, completion.token_ids))
        )
        which = f"prompt {completion.prompt_index}, sample {completion.sample_index}"
        label = f"{which}: {len(completion.token_ids)} tokens, {completion.finish_reason}"
        if not console.is_terminal:
            give(f"=== {label} ===\n{text}\n" if many else f"{text}\n", console.file)
            continue
        if many:
            console.rule(Text(label, style="cyan"), align="left", style="cyan")
        prompt = prompts[completion.prompt_index]
        shown = prompt if isinstance(prompt, str) else " ".join(map(str, prompt)) + " "
        console.print(Text(printable(shown, SHOWN), style="dim") + Text(printable(text, SHOWN)))


def table(console: Screen, stats: Stats, compared: Comparison | None, caption: str) -> None:
    """Print the figures of the run; after a comparison also those of autoregressive decoding, and
    the ratios.
    """
    plain = None if compared is None else compared.plain[middle(compared.plain)]
    grid = Table()
    grid.add_column("")
    grid.add_column("speculative" if stats.drafted else "plain", justify="right")
    if plain is not None:
        grid.add_column("plain", justify="right")
        grid.add_column("ratio", justify="right", style="bold")
    for name in FIGURES if compared is None else COMPARED:
        metric = METRICS[name]
        cells = [metric.show(getattr(stats, name))]
        if compared is not None and plain is not None:
            cells += [metric.show(getattr(plain, name)), _times(metric, compared)]
        grid.add_row(f"{metric.heading}, {metric.shown_unit}", *cells)
    grid.add_row("acceptance by position, %", _positions(stats))
    grid.add_row("lossless", "yes" if stats.lossless else "[bold red]NO[/]")
    console.print(grid)
    if compared is not None and (found := compared.ratios(speed)):
        reported = (
            f"ratios: medians of {len(found)} alternating repeats; tokens/s from "
            f"{min(found):.2f}x to {max(found):.2f}x"
        )
        console.print(reported, style="dim", markup=False)
    console.print(caption, style="dim", markup=False, soft_wrap=False)


def warn(console: Screen, sentence: str) -> None:
    """Print a warning: red on a terminal."""
    console.print(Text(sentence, style="bold red"), soft_wrap=True)


def _times(metric: Metric, compared: Comparison) -> str:
    """The ratio to autoregressive decoding, the median of the repeats."""
    ratios = compared.ratios(lambda stats: getattr(stats, metric.name))
    if metric.better == "lower":
        ratios = [1 / ratio for ratio in ratios]
    return f"{statistics.median(ratios):.2f}x" if ratios else ""


def _positions(stats: Stats) -> str:
    """The first six rates, in percent."""
    rates = [number(rate, "share") for rate in stats.acceptance_by_position[:6]]
    return " ".join(rates) + (" ..." if len(stats.acceptance_by_position) > 6 else "") or NOTHING


def _cell(row: Row, width: int, lines: int) -> Text:
    """Label, mark and token count, then the end of the text: exactly `lines` lines of at most
    `width` columns.
    """
    gutter = Text(
        f"{row.label:>4} {MARKS.get(row.reason or '', ' ')}{row.tokens:>5} ",
        style="green" if row.reason else "cyan",
    )
    space = max(width - gutter.cell_len - 1, 1)
    tail = _tail(printable(row.text[-space * lines * 2 :], SHOWN), space, lines)
    out = Text(no_wrap=True, overflow="crop")
    for i in range(lines):
        text = Text(tail[i] if i < len(tail) else "", style="dim" if row.reason else "")
        text.truncate(space, pad=True)
        out += (
            (gutter if i == 0 else Text(" " * gutter.cell_len))
            + text
            + Text(" \n" if i < lines - 1 else " ")
        )
    return out


def _tail(text: str, space: int, lines: int) -> list[str]:
    """The last lines that are not blank; long lines are wrapped."""
    broken = [
        line[i : i + space]
        for line in text.expandtabs(4).split("\n")
        for i in range(0, len(line), space)
    ]
    return [line for line in broken if line.strip()][-lines:]


class Bars:
    """Progress: a bar per stage on a terminal, a line per stage elsewhere."""

    def __init__(self, console: Screen) -> None:
        self._tasks: dict[str, TaskID] = {}
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._console, self._bars = (
            console,
            Progress(*columns, console=console, disable=not console.is_terminal),
        )

    def __enter__(self) -> Callable[[str, int, int], None]:
        self._bars.start()
        return self._take

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def _take(self, stage: str, done: int, total: int) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total, completed=done)
        self._bars.update(self._tasks[stage], completed=done)
        if not self._console.is_terminal and done == total:
            self._console.print(f"{stage}: {done} of {total}", markup=False)
