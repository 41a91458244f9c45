"""The table of a run that papers show: a row for each cell and category, from its recorded lines.

A cell without a value is empty, and a note below the table gives the reason.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from bass.analysis.categories import categories, category_of
from bass.analysis.metrics import METRICS
from bass.analysis.noise import remarks
from bass.analysis.oracle import distance, pooled_rates
from bass.errors import RunFolderError, counted
from bass.report.cells import Cell, read_cells
from bass.report.claims import claims
from bass.report.contrast import FEWEST_REPEATS
from bass.report.exactness import exactness
from bass.report.pass_at_k import PassAtK, check_labels
from bass.report.table_rows import Part, data_sheet, part_of
from bass.runs.run_folder import RunFolder
from bass.runs.words import called
from bass.runs.work import AS_ORDERED

Value = str | float | int | None
EVERY = None  # the category of all prompts together
Category = str | None
# settings that the drafted tokens do not depend on, but how many are drafted
_NOT_OF_DRAFTS = {"policy", "batch", "cache", "attention", "cuda_graphs", "repeats", "warm_up"}


@final
@dataclass(frozen=True)
class Column:
    """A column: its name in CSV and pandas, its heading and unit elsewhere, and its definition.

    metric: the name in `METRICS` whose value it has, if it is one. interval: it has two columns
    more, NAME_low and NAME_high.
    """

    name: str
    heading: str
    about: str
    unit: str = ""
    metric: str = ""
    interval: bool = False


_RATIO = (
    "time per token of the fastest autoregressive cell of the same work and batch, over its own"
)
COLUMNS = (
    Column("tau", "tau", METRICS["tau"].doc, "tokens per call", "tau", True),
    Column("acceptance", "accepted by position", "conditional acceptance by position", "share"),
    Column(
        "seconds_per_token", "ms per token", METRICS["all"].doc, "seconds per token", "all", True
    ),
    Column("seconds_first", "first", METRICS["first"].doc, "seconds per token", "first"),
    Column("seconds_last", "last", METRICS["last"].doc, "seconds per token", "last"),
    Column(
        "tokens_per_second",
        "tokens/s",
        METRICS["tokens_per_second"].doc,
        "tokens per second",
        "tokens_per_second",
        True,
    ),
    Column("speedup", "speed-up", _RATIO, "ratio", "", True),
    Column("mbu", "MBU", METRICS["mbu"].doc, "share", "mbu"),
    Column("mbu_data_sheet", "MBU, data sheet", "as MBU, of the data sheet's bandwidth", "share"),
    Column("mfu", "MFU", METRICS["mfu"].doc, "share", "mfu"),
    Column("mfu_data_sheet", "MFU, data sheet", "as MFU, of the data sheet's FLOP/s", "share"),
    Column(
        "wasted_per_token",
        "wasted drafts",
        METRICS["wasted_per_token"].doc,
        "tokens per token",
        "wasted_per_token",
    ),
    Column(
        "oracle_distance",
        "to the oracle",
        "mean |drafted - tokens that would have been accepted| of a call",
        "tokens per call",
    ),
    Column("oracle_over", "too many", "its part of rejected tokens", "tokens per call"),
    Column("oracle_under", "too few", "its part of tokens not drafted", "tokens per call"),
    Column("pass_at_k", "pass@k", "share of problems that one of k samples solves", "share"),
    Column(
        "exact_match_rate",
        "exact match",
        METRICS["exact_match_rate"].doc,
        "share",
        "exact_match_rate",
    ),
    Column("runs", "runs", "repeats, over which the intervals of times are"),
    Column("exactness", "exactness", "what shows that the output is exact"),
)


@final
@dataclass
class Table:
    """Rows of values by name of column, in units of `METRICS` (seconds, shares), and notes.

    labels: the names of the first columns, which are the axes and the category. positions: the
    number of columns acceptance_1, acceptance_2, ... that hold the conditional acceptance.
    """

    title: str
    labels: list[str]
    positions: int
    rows: list[dict[str, Value]]
    notes: list[str] = field(default_factory=list)

    def names(self) -> list[str]:
        """The names of all columns."""
        found = [*self.labels]
        for column in COLUMNS:
            if column.name == "acceptance":
                found += [f"acceptance_{i + 1}" for i in range(self.positions)]
            else:
                found.append(column.name)
            found += [f"{column.name}_{end}" for end in ("low", "high") if column.interval]
        return found


class _Reasons:
    """Why cells of the table are empty, with the number of rows of each reason."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], int] = {}

    def __call__(self, column: str, reason: str) -> None:
        key = column, reason
        self.found[key] = self.found.get(key, 0) + 1

    def sentences(self, rows: int) -> Iterator[str]:
        """A sentence for each reason, with the columns that it empties."""
        columns: dict[tuple[str, int], list[str]] = {}
        for (column, reason), count in self.found.items():
            columns.setdefault((reason, count), []).append(column)
        for (reason, count), names in columns.items():
            where = "" if count == rows else f" in {count} of {counted(rows, 'row')}"
            yield f"Empty{where}: {', '.join(f'`{name}`' for name in names)}. {reason}."


def table(run: RunFolder, evaluations: Sequence[PassAtK] = ()) -> Table:
    """The table of the finished cells, with pass@k of these evaluations.

    Raises `RunFolderError` where no cell is finished, and `OptionError` for an evaluation that
    matches none.
    """
    manifest, cells = run.manifest, read_cells(run)
    done = [cell for cell in cells if cell.done]
    if not done:
        raise RunFolderError(
            f"{run.path}: none of its {counted(len(cells), 'cell')} is finished: give the run's "
            "command again, which continues it."
        )
    check_labels(evaluations, done)
    named = categories(line for cell in done for line in cell.lines.requests)
    parts = {
        (cell.entry.id, category): part
        for cell in done
        for category in (EVERY, *named)
        if (part := part_of(cell, category, _plain(cell, cells)))
    }
    rates = _rates(parts)
    empty = _Reasons()
    every = "all" if "all" not in named else "(all)"
    rows: list[dict[str, Value]] = []
    for (_, category), part in parts.items():
        labels: dict[str, Value] = {
            label_of(axis): _label(part.cell.entry.settings[axis]) for axis in manifest.axes
        }
        rows.append(
            labels
            | ({"category": category or every} if named else {})
            | _row(part, category, parts, rates, manifest.device, empty)
        )
        _pass_at_k(rows[-1], part, category, evaluations, empty)
    positions = max((len(part.acceptance) for part in parts.values()), default=0)
    labels_ = [*map(label_of, manifest.axes), *(["category"] if named else [])]
    notes = _notes(run, cells, parts, rates)
    if named:
        notes += _without_category(done, every)
    return Table(
        str(manifest.config.get("about") or manifest.config.get("name") or run.path.name),
        labels_,
        positions,
        rows,
        [*notes, *(one.note for one in evaluations), *empty.sentences(len(rows))],
    )


def is_column(name: str) -> bool:
    """Whether a table has a column of that name besides those of axes."""
    own = {column.name for column in COLUMNS} | {
        f"{column.name}_{end}" for column in COLUMNS if column.interval for end in ("low", "high")
    }
    return name == "category" or name in own or re.fullmatch(r"acceptance_\d+", name) is not None


def label_of(axis: str) -> str:
    """The column of an axis. A config cannot name one like another column; an earlier run may."""
    return f"axes.{axis}" if is_column(axis) else axis


def _without_category(done: Sequence[Cell], every: str) -> list[str]:
    """A sentence on the prompts that have no category where others have one."""
    lines = [line for cell in done for line in cell.lines.requests]
    count = sum(not category_of(line) for line in lines)
    if not count:
        return []
    return [
        f"{count} of {counted(len(lines), 'request')} have prompts without a category, which are "
        f"in the rows `{every}` alone."
    ]


def _label(value: Any) -> Value:
    named = called(value)
    return named if isinstance(named, str | float | int) else str(named)


def _plain(cell: Cell, cells: Sequence[Cell]) -> Cell | None:
    """The cell that exact matches are counted over."""
    name = cell.summary and cell.summary.plain
    return next((one for one in cells if one.entry.id == name), None)


def _drafts_alike(cell: Cell) -> str:
    """A key of everything that the drafted tokens and their acceptance depend on."""
    own = {key: value for key, value in cell.settings.items() if key not in _NOT_OF_DRAFTS}
    return repr((sorted(own.items(), key=repr), [cell.entry.target.get(k) for k in AS_ORDERED]))


def _rates(parts: Mapping[tuple[str, Category], Part]) -> dict[tuple[str, Category], Any]:
    """Acceptance by position of all cells that draft alike, by their key and the category."""
    groups: dict[tuple[str, Category], list[Part]] = {}
    for (_, category), part in parts.items():
        groups.setdefault((_drafts_alike(part.cell), category), []).append(part)
    return {
        key: pooled_rates(one for part in group for one in part.generations.values())
        for key, group in groups.items()
    }


def _row(
    part: Part,
    category: Category,
    parts: Mapping[tuple[str, Category], Part],
    rates: Mapping[tuple[str, Category], Any],
    device: str,
    empty: _Reasons,
) -> dict[str, Value]:
    row: dict[str, Value] = {}
    for column in COLUMNS:
        if column.metric:
            _fill(row, column, part, empty)
    row |= {f"acceptance_{i + 1}": rate for i, rate in enumerate(part.acceptance)}
    if not part.acceptance:
        empty("acceptance", "Nothing is drafted")
    _speedup(row, part, [one for (_, name), one in parts.items() if name == category], empty)
    _of_data_sheet(row, part, device, empty)
    found = distance([*part.generations.values()], rates[_drafts_alike(part.cell), category])
    for name in ("distance", "over", "under"):
        if found is None:
            empty(f"oracle_{name}", "Nothing is drafted")
        else:
            row[f"oracle_{name}"] = found.total if name == "distance" else getattr(found, name)
    row["runs"] = part.runs
    row["exactness"] = exactness(part.cell.entry, part.cell.settings)
    return row


def _fill(row: dict[str, Value], column: Column, part: Part, empty: _Reasons) -> None:
    """The value of a metric, with its interval."""
    name, reason = column.name, part.missing(column.metric)
    if reason is not None:
        empty(name, reason)
        return
    row[name] = part.value(column.metric)
    if column.interval:
        over_repeats = METRICS[column.metric].over == "repeats"
        fewest = FEWEST_REPEATS if over_repeats else 2
        found = part.interval(column.metric, fewest)
        if found is None:
            what = "runs" if over_repeats else "prompts"
            empty(
                f"{name}_low",
                f"An interval needs {fewest} or more {what} whose values differ",
            )
        else:
            row[f"{name}_low"], row[f"{name}_high"] = found


def _speedup(row: dict[str, Value], part: Part, others: Sequence[Part], empty: _Reasons) -> None:
    if not part.cell.entry.lossless:
        empty("speedup", "A cell that is not lossless is not compared with those that are")
        return
    compared = part.speedup(others)
    if compared is None:
        empty("speedup", "No finished cell of autoregressive decoding has the same work and batch")
        return
    base, found = compared
    row["speedup"] = found.times
    if part is base:
        empty(
            "speedup_low", "The cell is the autoregressive decoding that others are compared with"
        )
    elif found.low is None or found.high is None:
        empty("speedup_low", f"An interval needs {FEWEST_REPEATS} or more runs")
    else:
        row["speedup_low"], row["speedup_high"] = found.low, found.high


def _pass_at_k(
    row: dict[str, Value],
    part: Part,
    category: Category,
    evaluations: Sequence[PassAtK],
    empty: _Reasons,
) -> None:
    if not evaluations:
        empty("pass_at_k", "An ablation does not score texts: give evaluations (`--evaluation`)")
        return
    found = [value for one in evaluations if (value := one.value(part.cell)) is not None]
    if category is not EVERY:
        empty("pass_at_k", "The evaluation is of other prompts, without these categories")
    elif not found:
        empty("pass_at_k", "No evaluation has the label of the cell and decodes as it does")
    else:
        row["pass_at_k"] = found[0]


def _of_data_sheet(row: dict[str, Value], part: Part, device: str, empty: _Reasons) -> None:
    for name in ("mbu", "mfu"):
        value, sheet = row.get(name), data_sheet(name, part.cell, device)
        if value is None:
            empty(f"{name}_data_sheet", part.missing(name) or "The measured one is missing")
        elif isinstance(sheet, str):
            empty(f"{name}_data_sheet", sheet)
        else:
            row[f"{name}_data_sheet"] = float(value) * sheet


def _notes(
    run: RunFolder,
    cells: Sequence[Cell],
    parts: Mapping[tuple[str, Category], Part],
    rates: Mapping[tuple[str, Category], Any],
) -> list[str]:
    manifest = run.manifest
    longest = max((len(one) for one in rates.values()), default=0)
    bases = dict.fromkeys(
        f"`{compared[0].cell.choice}`"
        for part in parts.values()
        if (compared := part.speedup([*parts.values()])) is not None
    )
    notes = [
        f"Measured on {manifest.device} with bass {manifest.bass} ({manifest.commit}), torch "
        f"{manifest.torch}. In brackets: 95 % intervals, of tau over prompts, of times over runs.",
        "Speed-up: over the fastest autoregressive decoding of the same batch and work, which is "
        f"{'; '.join(bases) or 'missing'}.",
        "Distance to the oracle: what is not drafted although it would be accepted is estimated "
        f"from the acceptance by position of all cells with the same drafts, up to {longest} "
        "tokens, the longest draft of the run.",
    ]
    left = [cell for cell in cells if cell.summary is None]
    wrong = [cell for cell in cells if cell.summary is not None and not cell.done]
    if left:
        notes.append(f"The run is not finished: {len(left)} of {counted(len(cells), 'cell')} lack.")
    if wrong:
        notes.append(f"{counted(len(wrong), 'cell')} failed: {wrong[0].entry.id}.")
    return [*notes, *claims(manifest), *remarks(run)]
