"""A run, or an evaluation, as one HTML page that needs no network and no other file."""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from bass.analysis.frames import TEXTS
from bass.analysis.picture import LETTERS, embedded, picture
from bass.analysis.plots import asset, pass_curves, places, plots
from bass.analysis.tables import ALL, label, metrics_of, shown, table, verdicts

if TYPE_CHECKING:
    from bass.analysis.frames import Run

MOST_PICTURES = 4


def report(run: "Run") -> str:
    """The page of a run, finished or not.

    It has the fastest setting of each work, the table, the plots, the batch step by step, and the
    cells that failed.
    """
    failed = {c: one["error"] for c, one in run.summaries.items() if one["state"] == "failed"}
    found = verdicts(run)
    tables, drawn = [], []
    if run.finished:
        frame = whole = table(run)
        fastest = [cell for cell, _ in found]
        # the page has these above the table
        said = {*run.manifest["remarks"], *(text for _, text in found)}
        notes = [note for note in frame.attrs["notes"] if note not in said]
        if "category" in frame:
            whole = frame[frame["category"] == ALL].drop(columns="category")
        best = whole.index.isin(fastest).tolist()
        tables.append(_table("Figures", shown(whole), notes, best))
        if "category" in frame:
            parts = frame[frame["category"] != ALL]
            tables.append(_table("Figures by category", shown(parts)) | {"folded": True})
        drawn = plots(run, whole)
    if failed:
        errors = pd.DataFrame({"cell": [*failed], "error": [*failed.values()]})
        tables.append(_table("Cells that failed", errors) | {"words": True})
    cells = _pictured(run)
    pictures = [picture(label(run, cell), run.measurement(cell)) for cell in cells]
    texts = run.folder / TEXTS
    return _page(
        run.manifest,
        cells=len(run.entries),
        missing=len(run.entries) - len(run.summaries),
        finished=len(run.finished),
        summary=[text for _, text in found],
        tables=tables,
        plots=drawn,
        pictures=pictures,
        data=embedded(pictures, json.loads(texts.read_text()) if texts.exists() else []),
        words=metrics_of(run),
    )


def report_of_evaluation(
    manifest: Mapping[str, Any], scores: pd.DataFrame, budgets: pd.DataFrame, curve: pd.DataFrame
) -> str:
    """The page of an evaluation.

    scores: one row per method. budgets: one row per method and budget of its table. curve: as in
    `pass_curves`.
    """
    within = _table("Within time budgets", shown(budgets)) | {"folded": True}
    return _page(
        manifest, tables=[_table("Scores", shown(scores)), within], plots=[pass_curves(curve)]
    )


def _pictured(run: "Run") -> Sequence[str]:
    """The cells of the pictures: the largest batch of each method, those that draft first."""
    where = places(run)
    where["plain"] = [run.entries[cell]["autoregressive"] for cell in where.index]
    where = where.sort_values(["plain", "batch"], ascending=[True, False], kind="stable")
    firsts = where.drop_duplicates("method").index
    return [*dict.fromkeys([*firsts, *where.index])][:MOST_PICTURES]


def _table(
    title: str, frame: pd.DataFrame, notes: Sequence[str] = (), best: Sequence[bool] = ()
) -> dict[str, Any]:
    """A frame of text for the template: headings with units, values with intervals."""
    rows = frame.astype(str).to_numpy().tolist()
    return {
        "title": title,
        "notes": notes,
        "heads": [head.partition(", ")[::2] for head in map(str, frame.columns)],
        "rows": [
            {"cells": [_split(text) for text in row], "best": bool(best) and best[i]}
            for i, row in enumerate(rows)
        ],
    }


def _split(text: str) -> tuple[str, str]:
    """`1.42 (1.30 to 1.55)` as `1.42` and `1.30 to 1.55`; `undecided (n = 3)` likewise."""
    found = re.fullmatch(r"(\S+) \((\S+ to \S+|n = \d+)\)", text)
    return (found[1], found[2]) if found else (text, "")


@functools.cache
def _template() -> Any:
    from jinja2 import Environment
    from markupsafe import Markup, escape

    def code(text: str) -> Markup:
        return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))

    environment = Environment(autoescape=True)
    environment.filters["code"] = code
    return environment.from_string(asset("report.html"))


def _page(manifest: Mapping[str, Any], **values: Any) -> str:
    """The template with these values."""
    return _template().render(
        manifest=manifest,
        letters=LETTERS,
        config=json.dumps(manifest["config"], indent=2, ensure_ascii=False),
        css=asset("report.css"),
        script=asset("report.js"),
        **{"data": embedded([], [])} | values,
    )
