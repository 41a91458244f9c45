"""The table of a run, for papers: a row for each finished cell, and for each category of prompts.

`table` makes the frame, in seconds and shares; `to_text` writes it as Markdown, LaTeX or CSV, with
notes below; `verdicts` says which method is the fastest of each work.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from bass.analysis.metrics import (
    METRICS,
    SPEEDUPS,
    Metric,
    find_metric,
    independent,
    mean,
    number,
    speedup,
)
from bass.analysis.statistics import LEVEL, Comparison, holm
from bass.errors import RunFolderError, unknown_name

if TYPE_CHECKING:
    from bass.analysis.frames import Run

ALL = "all"  # the category of the row over all prompts
PARTS = ("", "_low", "_high", "_median", "_p")  # of a speed-up, each a column
SHARES = {"pass_first": "Pass@First", "pass_all": "Pass@All", "finished": "finished samples"}
ALPHA = 1 - LEVEL
# metrics of a queue, in place of those of every other table; plots read the first two
QUEUE = ("all", "tokens_per_second", "ttft", "tpot", "itl_p99", "goodput", "tau")
_OTHERS = {  # headings of columns that are neither metrics nor shares
    "speedup_all": "speed-up, latency",
    "speedup_all_median": "median",
    "speedup": "speed-up, tokens/s",
    "seconds": "budget, seconds",
    "repeats": "repeats",
}
_HEADINGS = {name: f"{title}, %" for name, title in SHARES.items()} | _OTHERS


def table(run: "Run", categories: bool = True, columns: Sequence[str] = ()) -> pd.DataFrame:
    """The finished cells of a run.

    columns: names of metrics, or "package.module:function"; by default `metrics_of` the run.
    Index: the cell's id. Columns: the axes; `category` if the prompts have several; `lossless`;
    `speedup_all` (of the mean latency) and `speedup` (of tokens/s) over the fastest autoregressive
    decoding of the same work, each with `_low`, `_high`, `_median` (of the paired ratios) and `_p`
    (adjusted by Holm over the cells of one work); the metrics, some with `_low` and `_high`;
    `repeats`. Times are in seconds, shares from 0 to 1. A speed-up's bounds that span more than a
    factor of 3 are left out. `attrs["notes"]` has caveats.

    Raises RunFolderError if no cell is finished.
    """
    if not run.finished:
        raise RunFolderError(
            f"`{run.folder}` has no finished cell: give its `bass ablate` command again, which "
            "continues it."
        )
    metrics = [*map(find_metric, columns)] or metrics_of(run)
    cells = {cell: run.measurement(cell) for cell in run.finished}
    names = list(dict.fromkeys(name for one in cells.values() for name in one.categories))
    names = names if categories and len(names) > 1 else []
    rows = []
    for cell, whole in cells.items():
        plain, parts = run.plain(cell), whole.split("category")
        plains = {ALL: plain} | ({} if plain is None else plain.split("category"))
        for name, part in {ALL: whole, **{n: parts[n] for n in names if n in parts}}.items():
            row = {"cell": cell, "work": run.entries[cell]["work"]} | run.entries[cell]["labels"]
            row |= {"category": name} if names else {}
            row |= {"lossless": run.entries[cell]["lossless"]}
            for column, compared in SPEEDUPS.items():
                ratio = speedup(part, plains.get(name), compared)
                row |= _speedup(column, ratio, run.plains.get(cell) == cell)
            for metric in metrics:
                found = mean(independent(part, metric.name, plains.get(name)))
                row[metric.name] = found.mean
                if metric.interval:
                    row |= {f"{metric.name}_low": found.low, f"{metric.name}_high": found.high}
            rows.append(row | {"repeats": len(part.repeats)})
    frame = pd.DataFrame(rows).set_index("cell")
    family = ["work", *(["category"] if names else [])]
    for column in SPEEDUPS:
        p_values = frame.groupby(family)[f"{column}_p"]
        frame[f"{column}_p"] = p_values.transform(lambda values: holm(values.to_numpy()))
    frame = frame.drop(columns="work")
    frame.attrs["notes"] = [*_notes(run, frame)]
    return frame


def metrics_of(run: "Run") -> list[Metric]:
    """The metrics of a run's table."""
    if any("queue" in cell["settings"] for cell in run.entries.values()):
        return [METRICS[name] for name in QUEUE]
    return [metric for metric in METRICS.values() if metric.column]


def _speedup(column: str, found: Comparison | None, is_plain: bool) -> dict[str, Any]:
    """The columns of a speed-up; the cell that others are compared with has 1, and no p."""
    nan = float("nan")
    values = (1.0, 1.0, 1.0, 1.0, nan) if is_plain else (nan,) * len(PARTS)
    if found is not None:
        values = (found.ratio, *found.bounds, found.median, found.p)
    return {f"{column}{end}": value for end, value in zip(PARTS, values, strict=True)}


def _notes(run: "Run", frame: pd.DataFrame) -> Iterator[str]:
    made = run.manifest
    whole = frame[frame["category"] == ALL] if "category" in frame else frame
    names = {cell: f"`{label(run, cell)}`" for cell in run.finished}
    methods = {cell: f"`{label(run, cell, without=['batch'])}`" for cell in run.finished}
    metrics = [METRICS[name] for name in frame if name in METRICS]
    over = [one.heading.partition(",")[0] for one in metrics if one.over == "prompts"]
    yield (
        f"Measured on {made['device']} with bass {made['bass']} ({made['commit']}), torch "
        f"{made['torch']}. Values are means over prompts ({', '.join(over) or 'none'}) or over "
        "repeats (others). In brackets: their 95 % intervals; none for one value (n = 1)."
    )
    plains = ", ".join(dict.fromkeys(names[cell] for cell in run.plains.values()))
    yield (
        "Speed-ups: over the autoregressive decoding of the same work with the lowest mean latency "
        f"({plains or 'there is none'})."
    )
    if apart := [
        names[cell] for cell in run.finished if _runs(run, cell) != _runs(run, cell, True)
    ]:
        yield (
            "Compared with cells of other runs, between which the machine may have changed: "
            f"{', '.join(apart)}."
        )
    yield from (sentence for _, sentence in verdicts(run))
    unsure = [names[str(cell)] for cell, p in whole["speedup_all_p"].items() if p >= ALPHA]
    if unsure:
        yield (
            "Mean latency not shown to differ from autoregressive decoding (p of 0.05 or more, "
            f"adjusted by Holm over the cells of one work): {', '.join(unsure)}."
        )
    for cell, row in whole[(whole["speedup_all_low"] > 1) & (whole["speedup_high"] < 1)].iterrows():
        latency, rate = (_text(row, name) for name in SPEEDUPS)
        yield f"{names[str(cell)]} wins in mean latency, {latency}, and loses in tokens/s, {rate}."
    yield from dict.fromkeys(
        f"{methods[cell]} is not lossless: {run.entries[cell]['caveat']}."
        for cell in run.finished
        if not run.entries[cell]["lossless"]
    )
    if missing := len(run.entries) - len(run.finished):
        yield f"{missing} of {len(run.entries)} cells have failed or are not finished."
    for name in ("bass", "commit", "torch", "device"):
        values = {str(run.summaries[cell]["made_with"][name]) for cell in run.finished}
        if len(values) > 1:
            yield f"Cells were made with several values of `{name}`: {', '.join(sorted(values))}."
    yield from made["remarks"]


def _runs(run: "Run", cell: str, plain: bool = False) -> list[Any]:
    """The times at which the runs of the repeats that a cell and its plain one share began."""
    both = [run.summaries[one] for one in (cell, run.plains.get(cell, cell))]
    pairs = zip(*(one.get("runs", ()) for one in both), strict=False)
    return [pair[plain] for pair in pairs]


def verdicts(run: "Run") -> list[tuple[str | None, str]]:
    """For each work, the lossless cell with the lowest mean latency, in two sentences.

    The first value is its id if it is decided to be the fastest: the p-values of its comparisons
    with all others, adjusted by Holm, are below 5 %.
    """
    found = []
    for cells in run.works.values():
        lossless = [cell for cell in cells if run.entries[cell]["lossless"]]
        if len(lossless) < 2:
            continue
        best, second, *others = sorted(lossless, key=lambda cell: run.values(cell, "all").mean())
        leads = {other: run.compare(other, best, "all") for other in (second, *others)}
        decided = max(holm([lead.p for lead in leads.values()])) < ALPHA
        lead = {other: f"{one.text}, median {one.median:.2f}" for other, one in leads.items()}
        name = label(run, best, cells)
        said = f"`{name}` is the fastest."
        if not decided:
            said = f"no method is decided to be fastest; `{name}` has the lowest mean latency."
        if len(run.works) > 1:
            said = f"{label(run, best, without=differing(run, cells))}: {said}"
        said += f" Speed-up over `{label(run, second, cells)}`, the second: {lead[second]}"
        plain = run.plains.get(best)
        if plain in others:
            said += f"; over autoregressive decoding: {lead[plain]}"
        found.append((best if decided else None, f"{said[0].upper()}{said[1:]}."))
    return found


def differing(run: "Run", cells: Sequence[str]) -> list[str]:
    """The axes on which these cells have several values."""
    labels = [run.entries[cell]["labels"] for cell in cells]
    return [axis for axis in run.manifest["axes"] if len({str(of[axis]) for of in labels}) > 1]


def label(run: "Run", cell: str, among: Sequence[str] = (), without: Sequence[str] = ()) -> str:
    """The values of a cell on the axes on which `among` (by default all finished cells) differ.

    An example is `bass, batch 4`. without: axes that are left out.
    """
    labels = run.entries[cell]["labels"]
    axes = [axis for axis in differing(run, among or run.finished) if axis not in without]
    texts = [v if isinstance(v := labels[axis], str) else f"{axis} {v}" for axis in axes]
    return ", ".join(texts) or str(run.manifest["name"])


def shown(frame: pd.DataFrame) -> pd.DataFrame:
    """A table, or that of an evaluation, as text: values in three digits with their intervals, in
    the units of the headings. Columns without a value are left out.
    """
    columns = {}
    for name in frame.columns:
        if name in METRICS or name in _HEADINGS or name.startswith("pass@"):
            if frame[name].notna().any() and not name.endswith(PARTS[1:3]):
                texts = [_text(row, name) for _, row in frame.iterrows()]
                known = METRICS[name].heading if name in METRICS else f"{name}, %"
                columns[_HEADINGS.get(name, known)] = texts
        elif not name.endswith(PARTS[1:]) or name.rpartition("_")[0] not in frame:
            yes = {True: "yes", False: "no"} if name == "lossless" else {}
            columns[name] = [yes.get(value, str(value)) for value in frame[name]]
    return pd.DataFrame(columns, index=frame.index)


def _text(row: pd.Series, name: str) -> str:
    """A value with its interval, such as `undecided (n = 3)` and, for one value, `46.7 (n = 1)`."""
    unit = "" if name in _OTHERS else METRICS[name].unit if name in METRICS else "share"
    low, high = (row.get(f"{name}{end}") for end in ("_low", "_high"))
    if name == "repeats" or (not unit and row[name] == low == high == 1):
        return str(int(row[name]))
    if name in SPEEDUPS and pd.notna(row[name]) and pd.isna(low):
        return f"undecided (n = {row['repeats']})"
    text = number(row[name], unit)
    if f"{name}_low" not in row or pd.isna(row[name]):
        return text
    return f"{text} ({'n = 1' if pd.isna(low) else f'{number(low, unit)} to {number(high, unit)}'})"


def markdown(frame: pd.DataFrame, left: int) -> str:
    """A frame of text as a table, whose first `left` columns are aligned to the left."""
    rows = [list(frame.columns), *frame.to_numpy().tolist()]
    lines = ["| " + " | ".join(v.replace("|", r"\|") for v in row) + " |\n" for row in rows]
    lines.insert(1, "|---" * left + "|--:" * (len(frame.columns) - left) + "|\n")
    return "".join(lines)


def to_text(run: "Run", format: str = "markdown", columns: Sequence[str] = ()) -> str:
    """The table as `markdown`, `latex` (with the package booktabs) or `csv`.

    The notes are below the table, in LaTeX as comments. CSV has all columns of `table` in full
    precision, and no notes.
    """
    frame = table(run, columns=columns)
    if format == "csv":
        return frame.to_csv()
    text, notes = shown(frame), frame.attrs["notes"]
    left = next(i for i, name in enumerate(text) if name == "lossless") + 1
    title = run.manifest["about"] or run.manifest["name"]
    if format == "latex":
        sides = "l" * left + "r" * (len(text.columns) - left)
        lines = text.to_latex(index=False, escape=True, column_format=sides)
        return "".join([f"% {title}\n", lines, *(f"% {note}\n" for note in notes)])
    if format == "markdown":
        return f"**{title}**\n\n{markdown(text, left)}\n" + "".join(f"- {n}\n" for n in notes)
    raise unknown_name("format", format, ("markdown", "latex", "csv"))
