"""The tables of docs/paper.md, from the folders of its experiments."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from bass.analysis.frames import Run, open_run
from bass.analysis.metrics import METRICS
from bass.experiments.pass_at_k import Evaluation

BUDGETS = (0.02, 0.04, 0.06, 0.1, 0.2, 0.5)
METHODS = ("plain", "single", "batched")  # of an evaluation
_MARK = re.compile(r"(<!-- table ([\w-]+) -->\n)(.*?)<!-- end -->", re.DOTALL)
_UNKNOWN = "Not measured yet: `python benchmarks/paper.py --only {}`."
_LATENCY = ("batch", "plain, ms", "BASS: all (first, last), ms", "tau", "speed-up: all", "first",
            "last", "MFU, %: plain", "BASS")  # fmt: skip
Cell = Callable[[Run, str], str]


def filled(page: str, folder: Path) -> tuple[str, list[str]]:
    """The page with the tables of the experiments that have run, and the names of the others."""
    absent: list[str] = []

    def table(found: re.Match[str]) -> str:
        name = found[2]
        made = TABLES[name.partition("-")[0]](folder / name) if (folder / name).exists() else ""
        if not made:
            absent.append(name)
            made = found[3].strip() or _UNKNOWN.format(name)
        return f"{found[1]}\n{made}\n\n<!-- end -->"

    return _MARK.sub(table, page), absent


def alone(page: str, folder: Path) -> str:
    """The tables of the experiments that have run, without the page's text about other runs."""
    found = _MARK.findall(page)
    tables = [f"## {n}\n\n{text.strip()}\n" for _, n, text in found if (folder / n).exists()]
    return "\n".join(["# Tables of a quick run\n", *tables])


def latency(folder: Path) -> str:
    """Autoregressive decoding and BASS by batch: ms per token, speed-ups, and MFU."""
    run = open_run(folder)
    cells = run.cells.loc[run.finished]
    rows = []
    for batch, own in cells.groupby("batch", sort=False):
        ids = {method: cell for cell, method in own["method"].items()}
        plain, bass = (ids.get(name) for name in ("plain", "bass"))
        speedups = (
            run.compare(plain, bass, name).text if plain and bass else "–"
            for name in ("all", "first", "last")
        )
        times = _values("all", "first", "last")(run, bass).split(" ")
        shown = [_values("all")(run, plain), f"{times[0]} ({', '.join(times[1:])})"]
        shown += [_values("tau")(run, bass), *speedups]
        rows.append([str(batch), *shown, *(_values("mfu")(run, one) for one in (plain, bass))])
    return _table(_LATENCY, rows, _made_by(run))


def _values(*names: str) -> Cell:
    """Metrics of a cell as text, with spaces between; a dash for each without it."""

    def cell(run: Run, name: str | None) -> str:
        values = [None if name is None else run.cells.at[name, metric] for metric in names]
        return " ".join(METRICS[n].show(value) for n, value in zip(names, values, strict=True))

    return cell


def _by_batch(columns: Sequence[str], index: Sequence[str], cell: Cell, about: str = "") -> Any:
    """A table with a row for each value of `index`, and a column for each of `columns`."""

    def table(folder: Path) -> str:
        run = open_run(folder)
        cells = run.cells.loc[run.finished]
        texts = cells.assign(text=[cell(run, str(name)) for name in cells.index])
        wide = texts.pivot(index=[*index], columns=[*columns], values="text")
        for axis, names in ((0, index), (1, columns)):  # in the order of the run
            order = pd.MultiIndex.from_frame(cells[[*names]].drop_duplicates())
            labels = order if len(names) > 1 else order.get_level_values(0)
            wide = wide.reindex(labels, axis=axis)
        heads = [_joined(head) for head in wide.columns]
        rows = [[*_listed(key), *row] for key, row in zip(wide.index, wide.to_numpy(), strict=True)]
        return _table([*index, *heads], rows, f"{about}{_made_by(run)}")

    return table


def _listed(key: Any) -> list[str]:
    return [*map(str, key)] if isinstance(key, tuple) else [str(key)]


def _joined(key: Any) -> str:
    return ": ".join(_listed(key))


def _with_tau(run: Run, name: str) -> str:
    return f"{_values('all')(run, name)} ({_values('tau')(run, name)})"


def shapes(folder: Path) -> str:
    """Wall time per token of each pair with random weights, by method and batch."""
    found = {path.stem.removesuffix("-none"): path for path in sorted(folder.glob("*.json"))}
    records = {pair: json.loads(path.read_text("utf-8")) for pair, path in found.items()}
    if not records:
        return ""
    rows = pd.concat(
        {p: pd.DataFrame(one["settings"]) for p, one in records.items()}, names=["pair"]
    )
    wide = rows.pivot_table("wall_ms_per_token", ["pair", "batch"], "method", sort=False)
    lines = [[*_listed(key), *(f"{x:.3g}" for x in row)] for key, row in zip(
        wide.index, wide.to_numpy(), strict=True)]  # fmt: skip
    last = [*records.values()][-1]
    names = ("max_new_tokens", "acceptance", "repeats")
    made = ", ".join(f"{name} {last['options'][name]}" for name in names)
    about = f"{last['machine']['device']}; ms per token, torch {last['torch']}, {made}"
    return _table(["pair", "batch", *wide.columns], lines, about)


def problems(folder: Path) -> str:
    """Pass@First and Pass@All of small problems within budgets from the end of the prefill."""
    evaluated = Evaluation(folder, BUDGETS)
    curve = evaluated.curve(BUDGETS, "decoded").set_index(["seconds", "method"])
    methods = [method for method in METHODS if method in evaluated.methods]
    scores = {"First": "pass_first", "All": "pass_all"}
    columns = [(method, name) for method in methods for name in scores]
    rows = [
        [f"{budget:g}", *(f"{curve.at[(budget, m), scores[name]]:.0%}" for m, name in columns)]
        for budget in BUDGETS
    ]
    options = evaluated.manifest["config"]
    names = ("num_return_sequences", "max_new_tokens", "temperature", "top_p")
    about = ", ".join(f"{name} {options[name]}" for name in names)
    made = f"{_commit(evaluated.manifest)}; {len(evaluated.problems)} problems, {about}"
    return _table(["seconds", *(f"{m}: {name}" for m, name in columns)], rows, made)


TABLES: dict[str, Callable[[Path], str]] = {
    "latency": latency,
    "lengths": _by_batch(["length"], ["batch"], _values("all")),
    "drafts": _by_batch(["drafts"], ["batch"], _with_tau, "ms per token (tau). "),
    "layouts": _by_batch(["method", "layout"], ["rows", "batch"], _values("all")),
    "shapes": shapes,
    "problems": problems,
}


def _made_by(run: Run) -> str:
    base: Mapping[str, Any] = run.manifest["config"].get("base", {})
    names = ("max_new_tokens", "num_prompts", "repeats", "temperature", "quantization")
    said = ", ".join(f"{name} {base[name]}" for name in names if base.get(name) is not None)
    return f"{_commit(run.manifest)}; {said}"


def _commit(made: Mapping[str, Any]) -> str:
    """The device, torch and the commit, and whether files differed from it."""
    changed = " with changes" if made["commit"].endswith("-dirty") else ""
    return f"{made['device']}, torch {made['torch']}, commit {made['commit'][:7]}{changed}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], about: str) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|--" + "|--:" * (len(head) - 1) + "|", *lines[1:], "", about])
