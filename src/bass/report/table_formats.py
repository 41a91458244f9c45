"""A table as Markdown, LaTeX, CSV, and a data frame of pandas."""

import csv
import io
import re
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bass.analysis.units import NOTHING, number, shown
from bass.errors import OptionError, unknown_name
from bass.report.table import COLUMNS, Column, Table, Value

HEAD_WIDTH = 7  # letters of a line of a heading in LaTeX
_WITH_INTERVAL = re.compile(r"([-\d.e+]+) (\([-\d.e+]+ to [-\d.e+]+\))")
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": r"\textendash{}",
    "≥": r"$\geq$",
} | {character: f"\\{character}" for character in "&%$#_{}"}


def markdown(table: Table) -> str:
    """A table of Markdown, with figures of three digits, and its notes."""
    heads, rows, notes = _shown(table)
    lines = [f"**{_cell(table.title)}**", "", _row(heads)]
    left = len(table.labels)
    lines.append("|---" * left + "|--:" * (len(heads) - left) + "|")
    lines += [_row(row) for row in rows]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)]) + "\n"


def latex(table: Table) -> str:
    """A `longtable` with rules of the package booktabs on pages in landscape, which continues on
    further ones, with its notes below.
    """
    heads, rows, notes = _shown(table)
    left = len(table.labels)
    head = [r"\toprule", _tex_heads(heads, left), r"\midrule"]
    lines = [
        r"% \usepackage{booktabs,longtable,pdflscape}, \usepackage[margin=1in]{geometry}",
        r"% in a text of two columns, after \onecolumn",
        r"\begin{landscape}\tiny\setlength{\tabcolsep}{2pt}",
        rf"\begin{{longtable}}{{{'l' * left}{'r' * (len(heads) - left)}}}",
        rf"\caption{{{_tex(table.title)}}} \\",
        *head,
        r"\endfirsthead",
        *head,
        r"\endhead",
        r"\bottomrule",
        r"\endfoot",
        *map(_tex_row, rows),
        r"\end{longtable}",
        *(rf"\par\noindent {_tex(note)}".replace(r"\_", r"\_\allowbreak{}") for note in notes),
        r"\end{landscape}",
    ]
    return "\n".join(lines) + "\n"


def csv_text(table: Table) -> str:
    """All columns in full precision, in seconds and shares; an empty field is no value. It has no
    notes.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, table.names(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table.rows)
    return out.getvalue()


def to_pandas(table: Table) -> Any:
    """A `pandas.DataFrame` with the columns of `csv_text`; the notes are in `attrs["notes"]`.

    Raises `OptionError` without pandas.
    """
    try:
        import pandas  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
    except ImportError as error:
        raise OptionError(
            "`to_pandas` needs pandas, which is not installed: pip install -e '.[pandas]' in the "
            "checkout, or write CSV with `bass table RUN --format csv`."
        ) from error
    frame = pandas.DataFrame(table.rows, columns=table.names())
    frame.attrs |= {"title": table.title, "notes": table.notes}
    return frame


FORMATS: Mapping[str, Callable[[Table], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": csv_text,
}
SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv"}


def format_of(name: str | None, output: Path | None) -> str:
    """The format by its name, else by the suffix of the file, else Markdown.

    A suffix of another format is an error.
    """
    if name is not None and name not in FORMATS:
        raise unknown_name("format", name, FORMATS)
    if output is None:
        return name or "markdown"
    found = SUFFIXES.get(output.suffix.lower())
    if name is not None and found not in (None, name):
        raise OptionError(
            f"`--format {name}` contradicts `--output {output}`, whose name is that of {found}: "
            "leave one of them out."
        )
    found = name or found
    if found is None:
        raise OptionError(
            f"`{output}` is no name of a table: give one that ends in {', '.join(SUFFIXES)}."
        )
    return found


def _shown(table: Table) -> tuple[list[str], list[list[str]], list[str]]:
    """Headings, cells and notes as texts, without columns that no row has. The sentence on
    exactness becomes a number, that of its note.
    """
    columns = [column for column in COLUMNS if _used(table, column)]
    sentences = list(dict.fromkeys(str(row["exactness"]) for row in table.rows))
    heads = [*table.labels, *(_heading(column) for column in columns)]
    rows = [
        [
            *(str(row[label]) for label in table.labels),
            *(_figure(table, row, column, sentences) for column in columns),
        ]
        for row in table.rows
    ]
    numbered = [f"Exactness {i + 1}: {text}." for i, text in enumerate(sentences)]
    return heads, rows, [*table.notes, *numbered]


def _used(table: Table, column: Column) -> bool:
    if column.name == "acceptance":
        return table.positions > 0
    return any(row.get(column.name) is not None for row in table.rows)


def _heading(column: Column) -> str:
    unit = shown(column.unit)
    if column.heading in unit:
        return unit
    return f"{column.heading}, {unit}" if unit in ("%", "ms per token") else column.heading


def _figure(table: Table, row: Mapping[str, Value], column: Column, sentences: list[str]) -> str:
    if column.name == "acceptance":
        found = [_float(row.get(f"acceptance_{i + 1}")) for i in range(table.positions)]
        while found and found[-1] is None:
            found.pop()
        return " ".join(f"{100 * x:.0f}" if x is not None else NOTHING for x in found)
    value = row.get(column.name)
    if column.name == "exactness":
        return f"[{sentences.index(str(value)) + 1}]"
    if value is None or isinstance(value, str):
        return value or ""
    if column.name == "runs":
        return str(value)
    text = number(value, column.unit)
    low, high = (_float(row.get(f"{column.name}_{end}")) for end in ("low", "high"))
    if low is None or high is None:
        return text
    return f"{text} ({number(low, column.unit)} to {number(high, column.unit)})"


def _float(value: Value) -> float | None:
    return None if value is None or isinstance(value, str) else float(value)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def _tex_heads(heads: list[str], left: int) -> str:
    """The row of headings, in lines of a few letters; the first `left` are at the left."""
    stacks = (
        r"\\".join(map(_tex, textwrap.wrap(head, HEAD_WIDTH, break_long_words=False)))
        for head in heads
    )
    sides = "l" * left + "r" * (len(heads) - left)
    cells = (rf"\shortstack[{side}]{{{stack}}}" for side, stack in zip(sides, stacks, strict=True))
    return " & ".join(cells) + r" \\"


def _tex_row(cells: list[str]) -> str:
    """A row, with each interval below its value.

    One that begins with `[` or `*` would be an argument of the command before it.
    """
    row = " & ".join(map(_tex_cell, cells))
    return ("{}" if row.startswith(("[", "*")) else "") + row + r" \\"


def _tex_cell(text: str) -> str:
    """A cell; a value above its interval."""
    found = _WITH_INTERVAL.fullmatch(text)
    if found is None:
        return _tex(text)
    return r"\begin{tabular}[t]{@{}r@{}}" + r"\\".join(found.groups()) + r"\end{tabular}"


def _tex(text: str) -> str:
    """A text, in which code between backticks is in typewriter type."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:  # a backtick without another
        parts = ["`".join(parts)]
    return "".join(
        rf"\texttt{{{_escaped(part)}}}" if place % 2 else _escaped(part)
        for place, part in enumerate(parts)
    )


def _escaped(text: str) -> str:
    """A text without commands; two hyphens stay two."""
    found = "".join(_LATEX.get(character, character) for character in text)
    return re.sub("-(?=-)", "-{}", found)
