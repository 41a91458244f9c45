"""One run, or a comparison of two, as a self-contained HTML page."""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bass.analysis.metrics import COLUMNS, METRICS, Metric
from bass.analysis.noise import remarks
from bass.analysis.statistics import LEVEL, interval, without_spread
from bass.analysis.units import NOTHING
from bass.errors import RunFolderError, counted
from bass.report.by_category import by_category
from bass.report.cells import Cell, read_cells
from bass.report.claims import claims
from bass.report.compared import compared, of_machine, summed_up
from bass.report.contrast import same_work, speedup
from bass.report.drawing import Plot
from bass.report.paired import Pair, differences, pairs
from bass.report.palette import asset
from bass.report.picture import embedded, picture
from bass.report.plots import plots
from bass.report.summary import DECIDES, Winner, sentences, winners
from bass.runs.drafts import read_drafts, read_texts
from bass.runs.records import Manifest
from bass.runs.run_folder import RunFolder

MOST_PICTURES = 6
MOST_BYTES = 3_000_000
OVER = "Means: of times over repeats, of the rest over prompts."
MOST_COMPARED = 100  # settings for which two runs are compared by every metric


def page(run: RunFolder) -> tuple[str, list[Plot], list[str]]:
    """The HTML of a run's report, its plots, and its sentences.

    Raises a RunFolderError if there is nothing to report.
    """
    cells = read_cells(run)
    done = _done(run, cells)
    found = winners(done)
    told_of = [
        cell
        for winner in found.values()
        for cell in (winner.best, winner.plain)
        if cell is not None
    ]
    # If a plot cannot show all settings, it shows those with the same work, which are comparable.
    first = sorted([*told_of, *done], key=lambda cell: cell.work != done[0].work)
    drawn = plots(done, [cell.label for cell in first])
    pictures, notes = paint(run, done, [winner.best for winner in found.values()])
    tables = [figures(done, found)]
    if (categories := by_category(done)) is not None:
        tables.append(categories)
    broken = [cell for cell in cells if not cell.done]
    if broken:
        tables.append(unmeasured(broken))
    findings, noted = sentences(found), warnings(run, cells) + notes
    texts = read_texts(run.path)
    values = {
        "title": f"bass: {run.manifest.config.get('name') or run.path.resolve().name}",
        "facts": facts(run.manifest),
        "summary": findings,
        "tables": tables,
        "plots": drawn,
        "words": [(METRICS[name].heading, METRICS[name].doc) for name in (*COLUMNS, "mfu_kept")],
        "sources": [
            ("What was run", json.dumps(run.manifest.config, indent=2, ensure_ascii=False))
        ],
    }
    html = ""
    for count in range(len(pictures), -1, -1):  # all pictures, or as many as fit
        fewer = (
            [f"{counted(len(pictures) - count, 'picture')} left out, so that the page stays small."]
            if count < len(pictures)
            else []
        )
        html = render(
            **values,
            pictures=pictures[:count],
            data=embedded(pictures[:count], texts),
            warnings=noted + fewer,
            check=not count,
        )
        if len(html.encode()) <= MOST_BYTES:
            break
    return html, drawn, noted + findings


def comparison(a: RunFolder, b: RunFolder) -> tuple[str, list[str]]:
    """The HTML that compares two runs, and its sentences."""
    both = [read_cells(run) for run in (a, b)]
    done = [_done(run, cells) for run, cells in zip((a, b), both, strict=True)]
    common = pairs(done[0], done[1], (a.manifest, b.manifest))
    if not common:
        raise RunFolderError(
            f"{a.path} and {b.path} share no setting that is finished in both: there is "
            "nothing to compare."
        )
    warned = [*differences(a.manifest, b.manifest, common), *of_machine(common)]
    warned += [
        f"{name}: {text}"
        for name, run, cells in zip("AB", (a, b), both, strict=True)
        for text in warnings(run, cells)
    ]
    findings = summed_up(common)
    alone = [len(cells) - len(common) for cells in done]
    if any(alone):
        findings.append(
            f"Finished in one run only, and left out: {counted(alone[0], 'setting')} of A and "
            f"{alone[1]} of B."
        )
    names = (
        COLUMNS
        if len(common) > MOST_COMPARED
        else [*COLUMNS, *(name for name in METRICS if name not in COLUMNS)]
    )
    html = render(
        title=f"bass: {a.path.name} (A) and {b.path.name} (B)",
        facts=[
            f"{name}: {fact}" for name, run in (("A", a), ("B", b)) for fact in facts(run.manifest)
        ],
        warnings=warned,
        summary=findings,
        tables=compared_tables(common, names),
        words=[(name, METRICS[name].doc) for name in METRICS if name in names],
        sources=[
            (f"What was run, {n}", json.dumps(r.manifest.config, indent=2, ensure_ascii=False))
            for n, r in (("A", a), ("B", b))
        ],
    )
    return html, warned + findings


def compared_tables(common: Sequence[Pair], names: Sequence[str]) -> list[dict[str, Any]]:
    """For each setting of both runs, a table of these metrics."""
    heads = [
        {"text": text}
        for text in ("", "A", "B", "B - A", f"{100 * LEVEL:.0f} % interval", "change", "")
    ]
    note = (
        f"{OVER} Intervals are per metric: of twenty metrics without a difference, one appears "
        "different by chance."
    )
    note += (
        f" Of {len(common)} settings only the {len(COLUMNS)} main metrics are shown."
        if names == COLUMNS
        else ""
    )
    return [
        {
            "title": title,
            "note": note,
            "heads": heads,
            "rows": [{"cells": line.cells, "best": line.beyond_noise} for line in lines],
            "words": False,
            "folded": len(common) > 2,
        }
        for title, lines in compared(common, names).items()
    ]


def render(check: bool = True, **values: Any) -> str:
    """The template with these values, escaped. check: raise an error if the page is too large."""
    given = {
        "pictures": [],
        "data": embedded([], []),
        "plots": [],
        "plots_first": False,
        "words": [],
    } | values
    html = _template().render(css=asset("report.css"), script=asset("report.js"), **given)
    # a lone surrogate, which JSON can hold and a page cannot
    html = html.encode(errors="backslashreplace").decode()
    if check and len(html.encode()) > MOST_BYTES:
        raise RunFolderError(
            f"The report would have {len(html.encode()):,} bytes, more than {MOST_BYTES:,}: report "
            "fewer cells at a time."
        )
    return html


@functools.cache
def _template() -> Any:
    """The page, compiled."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    return environment.from_string(asset("page.html"))


def facts(manifest: Manifest) -> list[str]:
    """Versions, date and machine of a run."""
    about = [str(manifest.config["about"])] if manifest.config.get("about") else []
    made = f"bass {manifest.bass} ({manifest.commit or 'no commit'}), {manifest.created}"
    return [
        *about,
        (
            f"{made}, on {manifest.device}; torch {manifest.torch}, Python {manifest.python}, "
            f"{manifest.platform}"
        ),
    ]


def warnings(run: RunFolder, cells: Sequence[Cell]) -> list[str]:
    """Warnings that precede the figures."""
    waiting = [cell for cell in cells if cell.summary is None]
    failed = [cell for cell in cells if cell.summary is not None and not cell.done]
    warned = remarks(run)
    if waiting:
        warned.append(
            f"The run is not finished: {len(waiting)} of {counted(len(cells), 'cell')} have no "
            "figures yet. The report shows the others."
        )
    if failed:
        warned.append(
            f"{len(failed)} of {counted(len(cells), 'cell')} failed, `{failed[0].entry.id}` with: "
            f"{failed[0].summary and failed[0].summary.error}"
        )
    warned += [f"{cell.title}: {text}." for cell in cells if (text := cell.doubt or cell.remark)]
    warned += claims(run.manifest)
    return warned + [note for cell in cells for note in cell.lines.notes]


def figures(cells: Sequence[Cell], found: Mapping[str, Winner]) -> dict[str, Any]:
    """The table of all finished cells, each value with its interval."""
    shown = [
        METRICS[name] for name in COLUMNS if any(cell.value(name) is not None for cell in cells)
    ]
    plain = {
        cell: None if cell.place not in found else found[cell.place].plain_for(cell)
        for cell in cells
    }
    compared = any(one not in (None, cell) for cell, one in plain.items())
    rows = []
    for cell in sorted(cells, key=lambda cell: (not cell.entry.lossless, cell.batch)):
        values = [_with_interval(cell, metric) for metric in shown]
        if compared:
            values.insert(1, _speedup(cell, plain[cell]))
        winner = found.get(cell.place)
        best = winner is not None and winner.lossless and winner.clear and winner.best is cell
        counts = [] if cell.summary is None else [cell.summary.repeats, cell.summary.prompts]
        rows.append({"best": best, "cells": [cell.label, cell.batch, *values, *map(len, counts)]})
    heads = [{"text": metric.heading, "unit": metric.shown_unit} for metric in shown]
    if compared:
        heads.insert(1, {"text": "speed-up", "unit": "over fastest plain"})
    rivals = "of its batch" if all(not cell.work for cell in cells) else "of its batch and work"
    note = f"{OVER} Below each its {100 * LEVEL:.0f} % interval, where there are two or more. "
    note += f"Bold: the fastest {rivals}, where its lead is beyond the noise."
    if not all(cell.entry.lossless for cell in cells):
        note += " Settings that are not lossless come last, and none of them is bold."
    if compared:
        note += " Speed-up: over the fastest autoregressive decoding there, which is named."
    heads = [
        {"text": "setting"},
        {"text": "batch"},
        *heads,
        {"text": "repeats"},
        {"text": "prompts"},
    ]
    return {
        "title": "Figures",
        "note": note,
        "heads": heads,
        "rows": rows,
        "words": False,
        "folded": False,
    }


def _with_interval(cell: Cell, metric: Metric) -> dict[str, str]:
    """A value, and below it its interval."""
    values = np.array([*cell.values(metric.name).values()])
    shown = {"text": metric.show(cell.value(metric.name))}
    if len(values) > 1 and without_spread(values):
        shown["small"] = "no spread"
    elif len(values) > 1:
        around = interval(values)
        most = 1.0 if metric.unit == "share" and values.max() <= 1 else np.inf
        shown["small"] = (
            f"{metric.show(max(around.low, metric.least))}–{metric.show(min(around.high, most))}"
        )
    return shown


def _speedup(cell: Cell, plain: Cell | None) -> dict[str, str]:
    """Its speed-up over the fastest autoregressive decoding, which is named."""
    if plain is None or plain is cell:
        return {"text": "1" if plain is cell else NOTHING}
    found = speedup(cell.values(DECIDES.name), plain.values(DECIDES.name), same_work(cell, plain))
    return (
        {"text": NOTHING}
        if found is None
        else {
            "text": f"{found.times:.2f}",
            "small": f"{found.within.replace(' to ', '–')} over {plain.choice}".lstrip(),
        }
    )


def unmeasured(cells: Sequence[Cell]) -> dict[str, Any]:
    """The cells without figures, and why."""
    rows = []
    for cell in cells:
        ended = len(cell.lines.repeats)
        why = (
            cell.summary.error
            if cell.summary is not None
            else f"not finished: {counted(ended, 'generation')} ended"
        )
        rows.append({"best": False, "cells": [cell.entry.id, why]})
    return {
        "title": "Cells without figures",
        "note": "",
        "heads": [{"text": "cell"}, {"text": "why"}],
        "rows": rows,
        "words": True,
        "folded": False,
    }


def paint(
    run: RunFolder, cells: Sequence[Cell], best: Sequence[Cell]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Pictures of the most informative cells: those with recorded drafts first, then the fastest,
    the largest batch first.
    """

    def rank(cell: Cell) -> tuple[bool, bool, bool, int]:
        noted = (run.cell_folder(cell.entry.id) / "drafts.jsonl").exists()
        return not cell.speculative, not noted, cell not in best, -cell.batch

    painted, notes = [], []
    for cell in sorted(cells, key=rank)[:MOST_PICTURES]:
        if not cell.generations:
            continue
        first = cell.lines.repeats[0]
        drafts, dropped = read_drafts(run.cell_folder(cell.entry.id), first)
        notes += [dropped] if dropped else []
        steps = [step for step in cell.lines.steps if step.repeat == first]
        painted.append(picture(cell.title, steps, cell.generations[0].requests, drafts))
    return [one for one in painted if one["steps"]], notes


def _done(run: RunFolder, cells: Sequence[Cell]) -> list[Cell]:
    done = [cell for cell in cells if cell.done]
    if done:
        return done
    failed = [cell.summary.error for cell in cells if cell.summary is not None]
    why = (
        f"all its cells that ended failed, the first with: {failed[0]}"
        if failed
        else f"none of its {counted(len(cells), 'cell')} is finished"
    )
    raise RunFolderError(
        f"{run.path} has nothing to report: {why.rstrip('.')}; run `bass ablate` on it again."
    )
