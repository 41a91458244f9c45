"""Compares each cell with its counterpart of autoregressive decoding, as `AgainstPlain` in the
cell's folder.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from bass.analysis.independent import independent
from bass.analysis.metrics import AGAINST_PLAIN
from bass.analysis.repeats import Repeat, repeats_of
from bass.api.plan import LoadPlan
from bass.experiments.cells import Task
from bass.experiments.load_plans import LoadPlans
from bass.experiments.writing import writing
from bass.files import write_atomically
from bass.runs.records import AgainstPlain, Summary
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
            nearest, _ = max(
                candidates, key=lambda one, own=load_plan: [*_likeness(one[1], own).values()]
            )
            found[task.id] = nearest.id
    return found


def compare_with_plain(run: RunFolder, tasks: Sequence[Task]) -> None:
    """Write the comparison of every finished pair of cells where it is missing or outdated; remove
    it from cells without a counterpart.
    """
    found = counterparts(tasks)
    stale: dict[str, list[Task]] = {}
    for task in tasks:
        path, plain = task.folder / RunFolder.AGAINST_PLAIN, found.get(task.id)
        if plain is None or not (_is_done(run, task.id) and _is_done(run, plain)):
            with writing(task.folder):
                path.unlink(missing_ok=True)
        elif (made := run.against_plain(task.id)) is None or made.made_of != run.fingerprint(
            task.id, plain
        ):
            stale.setdefault(plain, []).append(task)
    plains = {task.id: task for task in tasks}
    for plain, compared in stale.items():
        of_plain = _generations(run, plain)
        for task in compared:
            made = _compared(run, task, plains[plain], of_plain)
            with writing(task.folder):
                write_atomically(
                    task.folder / RunFolder.AGAINST_PLAIN, made.to_json(indent=1) + "\n"
                )


def _generations(run: RunFolder, cell: str) -> dict[int, Repeat]:
    """Those of a finished cell, by the number of their call."""
    run.check_whole(cell, run.summary(cell))
    lines = run.lines(cell)
    return dict(zip(lines.repeats, repeats_of(lines), strict=True))


def _compared(run: RunFolder, task: Task, plain: Task, of_plain: dict[int, Repeat]) -> AgainstPlain:
    """Compare each generation with the one of the same prompts and seed."""
    generations = [
        replace(generation, plain=of_plain[number])
        for number, generation in sorted(_generations(run, task.id).items())
    ]
    found = independent(task.settings.calls, generations, AGAINST_PLAIN)
    return AgainstPlain(
        task.id,
        plain.id,
        found.metrics,
        found.repeats,
        found.prompts,
        unlike(plain.load_plan, task.load_plan),
        run.fingerprint(task.id, plain.id),
    )


def _is_plain(load_plan: LoadPlan) -> bool:
    return load_plan.parts.policy.max_length == 0


def _decoding(settings: Settings, load_plan: LoadPlan, names: Collection[str] = ALIKE) -> str:
    """A key of the decoded work (its settings of these names), the target and the device."""
    work = [getattr(settings, name) for name in ALIKE if name in names]
    return repr((load_plan.target.key, *work))


def fastest_plain(
    cells: Mapping[str, Settings], summaries: Mapping[str, Summary]
) -> dict[str, str]:
    """The fastest finished cell of autoregressive decoding of the same work and target, for each
    lossless cell that has one: the cell that a speed-up is over. Both by the cell's id.
    """
    load_plans, groups, plains = LoadPlans(), dict[str, str](), dict[str, dict[str, float]]()
    for name, settings in cells.items():
        summary, load_plan = summaries.get(name), load_plans.of(settings)
        if summary is None or summary.state != "done" or not load_plan.parts.verifier.lossless:
            continue
        groups[name] = _decoding(settings, load_plan, {*ALIKE} - {"repeats"})
        if "all" in summary.metrics and not summary.metrics.get("drafted"):
            plains.setdefault(groups[name], {})[name] = summary.metrics["all"]
    return {
        name: min(found, key=lambda one: found[one])
        for name, group in groups.items()
        if (found := plains.get(group, {}))
    }


def unlike(plain: LoadPlan, own: LoadPlan) -> list[str]:
    """The properties of a step, other than its draft, in which a cell differs from its
    counterpart.
    """
    return [name for name, same in _likeness(plain, own).items() if not same and name != "noise"]


def _likeness(plain: LoadPlan, own: LoadPlan) -> dict[str, bool]:
    """Whether the two agree in each property, the most important first."""
    a, b = plain.parts, own.parts
    return {
        "noise": a.verifier.coupled == b.verifier.coupled,
        "cache": a.cache is b.cache,
        "attention": a.attention == b.attention,
        "cuda_graphs": plain.cuda_graphs == own.cuda_graphs,
    }


def _is_done(run: RunFolder, cell: str) -> bool:
    summary = run.summary(cell)
    return summary is not None and summary.state == "done"
