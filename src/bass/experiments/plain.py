"""Compares each cell with its counterpart of autoregressive decoding, as `AgainstPlain` in the
cell's folder.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from bass.analysis.metrics import AGAINST_PLAIN, measure, over_repeats
from bass.analysis.repeats import Repeat, repeats_of
from bass.api.plan import LoadPlan
from bass.experiments.cells import Task, writing
from bass.experiments.load_plans import LoadPlans
from bass.files import write_atomically
from bass.runs.own_files import content
from bass.runs.records import AgainstPlain
from bass.runs.run_folder import RunFolder
from bass.runs.settings import Settings
from bass.runs.work import ALIKE


def counterparts(tasks: Sequence[Task]) -> dict[str, str]:
    """The cell of autoregressive decoding for each cell that drafts and has one.

    It decodes the same requests with the same target at the same batch. Of several, it is the one
    most similar to the cell, by these properties in order: coupled verifier, cache, attention, use
    of graphs.
    """
    load_plans = LoadPlans()
    ordered = [(task, load_plans.of(task.settings)) for task in tasks]
    plains: dict[str, list[tuple[Task, LoadPlan]]] = {}
    for task, load_plan in ordered:
        if _is_plain(load_plan):
            plains.setdefault(_decoding(task.settings, load_plan), []).append((task, load_plan))
    found = {}
    for task, load_plan in ordered:
        candidates = (
            [] if _is_plain(load_plan) else plains.get(_decoding(task.settings, load_plan), [])
        )
        if candidates:
            # `max` takes the first of equals
            nearest, _ = max(candidates, key=lambda one, own=load_plan: _likeness(one[1], own))
            found[task.id] = nearest.id
    return found


def compare_with_plain(run: RunFolder, tasks: Sequence[Task]) -> None:
    """Write the comparison of every finished pair of cells where it is missing or outdated; remove
    it from cells without a counterpart.
    """
    found = counterparts(tasks)
    stale: dict[str, list[str]] = {}
    for task in tasks:
        path, plain = task.folder / RunFolder.AGAINST_PLAIN, found.get(task.id)
        if plain is None or not (_is_done(run, task.id) and _is_done(run, plain)):
            with writing(task.folder):
                path.unlink(missing_ok=True)
        elif (made := run.against_plain(task.id)) is None or made.made_of != _fingerprint(
            run, task.id, plain
        ):
            stale.setdefault(plain, []).append(task.id)
    for plain, cells in stale.items():
        lines = run.lines(plain)
        of_plain = dict(zip(lines.repeats, repeats_of(lines), strict=True))
        for cell in cells:
            made = _compared(run, cell, plain, of_plain)
            with writing(run.cell_folder(cell)):
                write_atomically(
                    run.cell_folder(cell) / RunFolder.AGAINST_PLAIN, made.to_json(indent=1) + "\n"
                )


def _compared(run: RunFolder, cell: str, plain: str, of_plain: dict[int, Repeat]) -> AgainstPlain:
    """Compare each repeat with the one of the same prompts and seed."""
    lines = run.lines(cell)
    repeats = zip(lines.repeats, repeats_of(lines), strict=True)
    measured = [
        measure(replace(repeat, plain=of_plain[number]), AGAINST_PLAIN)
        for number, repeat in repeats
    ]
    return AgainstPlain(
        cell, plain, over_repeats(measured), measured, _fingerprint(run, cell, plain)
    )


def _is_plain(load_plan: LoadPlan) -> bool:
    return load_plan.parts.policy.max_length == 0


def _decoding(settings: Settings, load_plan: LoadPlan) -> str:
    """A key of the decoded work, the target and the device."""
    return repr((load_plan.target.key, *(getattr(settings, name) for name in ALIKE)))


def _likeness(plain: LoadPlan, own: LoadPlan) -> tuple[bool, bool, bool, bool]:
    a, b = plain.parts, own.parts
    same_noise = a.verifier.coupled == b.verifier.coupled
    return (
        same_noise,
        a.cache is b.cache,
        a.attention == b.attention,
        plain.cuda_graphs == own.cuda_graphs,
    )


def _is_done(run: RunFolder, cell: str) -> bool:
    summary = run.summary(cell)
    return summary is not None and summary.state == "done"


def _fingerprint(run: RunFolder, *cells: str) -> str:
    """A hash of summaries; times of files are unreliable, since a clock may go backwards."""
    return hashlib.sha256(
        b"".join(content(run.cell_folder(cell) / RunFolder.SUMMARY) for cell in cells)
    ).hexdigest()
