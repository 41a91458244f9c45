"""The tables of docs/paper.md, from the folders of its experiments."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bass.analysis.evaluated import read_evaluation
from bass.analysis.scores import point
from bass.experiments.bench.record import BenchRecord, Setting
from bass.report.contrast import speedup
from bass.runs.own_files import content, decoded
from bass.runs.records import Manifest, Summary
from bass.runs.run_folder import RunFolder

BUDGETS = (0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
METHODS = ("plain", "single", "batched")  # of an evaluation
_MARK = re.compile(r"(<!-- table ([\w-]+) -->\n)(.*?)<!-- end -->", re.DOTALL)
_UNKNOWN = "Not measured yet: `python benchmarks/paper.py --only {}`."
Cells = Mapping[tuple[str, ...], Summary]


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
    tables = [
        f"## {name}\n\n{text.strip()}\n"
        for _, name, text in _MARK.findall(page)
        if (folder / name).exists()
    ]
    return "\n".join(["# Tables of a quick run\n", *tables])


def latency(folder: Path) -> str:
    """Plain decoding against BASS by batch: ms per token, their ratios as speed-ups, and MFU."""
    run, axes = RunFolder(folder), ("method", "batch")
    cells = _cells(run, axes)
    head = (
        "batch", "plain, ms", "BASS: all (first, last), ms", "tau", "speed-up: all", "first",
        "last", "MFU: plain", "BASS",
    )  # fmt: skip
    rows = []
    for batch in _values(cells, 1):
        plain, bass = cells.get(("plain", batch)), cells.get(("bass", batch))
        rows.append(
            [
                batch, _ms(plain, "all"), _all_first_last(bass), _number(bass, "tau", ".2f"),
                *(_speedup(bass, plain, name) for name in ("all", "first", "last")),
                _percent(plain, "mfu"), _percent(bass, "mfu"),
            ]
        )  # fmt: skip
    return _table(head, rows, _made_by(run.manifest))


def draft_length(folder: Path) -> str:
    """Fixed draft lengths against Algorithm 1, ms per token by batch."""
    run = RunFolder(folder)
    cells = _cells(run, ("length", "batch"))
    lengths = _values(cells, 0)
    rows = [
        [batch, *(_ms(cells.get((length, batch)), "all") for length in lengths)]
        for batch in _values(cells, 1)
    ]
    return _table(("batch", *lengths), rows, _made_by(run.manifest))


def draft_size(folder: Path) -> str:
    """Drafters of several sizes: ms per token, and tau, by batch."""
    run = RunFolder(folder)
    cells = _cells(run, ("drafts", "batch"))
    drafts = _values(cells, 0)
    rows = [
        [batch, *(_with_tau(cells.get((drafts_, batch))) for drafts_ in drafts)]
        for batch in _values(cells, 1)
    ]
    return _table(("batch", *drafts), rows, f"ms per token (tau). {_made_by(run.manifest)}")


def pad_split(folder: Path) -> str:
    """The two layouts, for rows of one prompt and of several."""
    run = RunFolder(folder)
    cells = _cells(run, ("method", "layout", "rows", "batch"))
    head = ("rows", "batch", "plain: PAD", "SPLIT", "BASS: PAD", "SPLIT")
    rows = [
        [
            kind,
            batch,
            *(
                _ms(cells.get((method, layout, kind, batch)), "all")
                for method in ("plain", "bass")
                for layout in ("pad", "split")
            ),
        ]
        for kind in _values(cells, 2)
        for batch in _values(cells, 3)
    ]
    return _table(head, rows, _made_by(run.manifest))


def shapes(folder: Path) -> str:
    """Wall time per token of each pair with random weights, by method and batch."""
    rows, methods, device, about = [], [], "", ""
    for path in sorted(folder.glob("*.json")):
        data = decoded(content(path), str(path), BenchRecord.REMEDY)
        record = BenchRecord.from_json(data, str(path))
        by_place = {(s.method, s.batch): s for s in record.settings if s.calls}
        methods = [*dict.fromkeys([*methods, *(method for method, _ in by_place)])]
        device = record.machine.device if record.machine else device
        names = ("max_new_tokens", "acceptance", "repeats")
        made = [f"{name} {record.about[name]}" for name in names if name in record.about]
        about = ", ".join(["ms per token", f"torch {record.about.get('torch')}", *made])
        rows += [
            [
                path.stem.removesuffix("-none"),
                str(batch),
                *(_wall(by_place.get((m, batch))) for m in methods),
            ]
            for batch in sorted({batch for _, batch in by_place})
        ]
    return _table(("pair", "batch", *methods), rows, f"{device}; {about}") if rows else ""


def problems(folder: Path) -> str:
    """Pass@First and Pass@All of small problems within time budgets."""
    evaluated = read_evaluation(folder)
    methods = [method for method in METHODS if method in evaluated.methods]
    head = ("seconds", *(f"{method}: {score}" for method in methods for score in ("First", "All")))
    rows = []
    for budget in BUDGETS:
        points = [point(evaluated.methods[method], budget, "prefill") for method in methods]
        shares = [f"{share:.0%}" for one in points for share in (one.first, one.all)]
        rows.append([f"{budget:g}", *shares])
    manifest = evaluated.manifests[0]
    options = manifest["config"]["options"]
    names = ("max_new_tokens", "temperature", "top_p")
    about = f"{evaluated.count} problems, {evaluated.samples} samples of each, " + ", ".join(
        f"{name} {options[name]}" for name in names if name in options
    )
    commit = _short(str(manifest.get("commit", "unknown")))
    made = f"{manifest['device']}, torch {manifest['torch']}, commit {commit}"
    return _table(head, rows, f"{made}; {about}")


TABLES: dict[str, Callable[[Path], str]] = {
    "latency": latency,
    "lengths": draft_length,
    "drafts": draft_size,
    "layouts": pad_split,
    "shapes": shapes,
    "problems": problems,
}


def _cells(run: RunFolder, axes: Sequence[str]) -> Cells:
    """The summaries of the cells that are done, by their values of the axes."""
    done = {cell: s for cell, s in run.summaries().items() if s.state == "done"}
    return {tuple(str(s.settings[axis]) for axis in axes): s for s in done.values()}


def _values(cells: Cells, place: int) -> list[str]:
    return [*dict.fromkeys(key[place] for key in cells)]


def _number(summary: Summary | None, name: str, form: str, factor: float = 1.0) -> str:
    """A metric, or a dash where it was not measured or does not apply."""
    if summary is None or name not in summary.metrics:
        return "–"
    return format(summary.metrics[name] * factor, form)


def _speedup(bass: Summary | None, plain: Summary | None, name: str) -> str:
    """The ratio of the two means over repeats, with its interval where there are three or more."""
    own, others = (
        {i: one[name] for i, one in enumerate(of.repeats if of else ()) if name in one}
        for of in (bass, plain)
    )
    found = speedup(own, others, paired=len(own) == len(others))
    if found is None:
        return "–"
    return f"{found.times:.2f}{found.within and f' ({found.within})'}"


def _ms(summary: Summary | None, name: str) -> str:
    return _number(summary, name, ".3g", 1e3)


def _percent(summary: Summary | None, name: str) -> str:
    return _number(summary, name, ".1%")


def _with_tau(summary: Summary | None) -> str:
    return f"{_ms(summary, 'all')} ({_number(summary, 'tau', '.2f')})"


def _all_first_last(summary: Summary | None) -> str:
    return f"{_ms(summary, 'all')} ({_ms(summary, 'first')}, {_ms(summary, 'last')})"


def _wall(setting: Setting | None) -> str:
    """The median over calls of the wall time per token of a row, in ms."""
    if setting is None:
        return "–"
    times = sorted(c.wall_seconds * setting.batch / c.emitted * 1e3 for c in setting.calls)
    return f"{times[len(times) // 2]:.3g}"


def _made_by(run: Manifest) -> str:
    base: Mapping[str, Any] = run.config.get("base", {})
    names = ("max_new_tokens", "num_prompts", "repeats", "temperature", "quantization")
    said = ", ".join(f"{name} {base[name]}" for name in names if base.get(name) is not None)
    return f"{run.device}, torch {run.torch}, commit {_short(run.commit)}; {said}"


def _short(commit: str) -> str:
    """The commit, and whether files differed from it."""
    return f"{commit[:7]}{' with changes' if commit.endswith('-dirty') else ''}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], about: str) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|--" + "|--:" * (len(head) - 1) + "|", *lines[1:], "", about])
