"""The order of cells: compared cells take turns, and models are loaded as rarely as possible."""

from collections.abc import Iterator, Sequence

from bass.api.loading import ModelSpec, serves
from bass.experiments.cells import Task
from bass.experiments.load_plans import LoadPlans
from bass.runs.work import ALIKE

Pair = tuple[ModelSpec, ModelSpec | None]


def by_turns(tasks: Sequence[Task]) -> Iterator[tuple[Task, int]]:
    """All turns of all cells, by group: the first turn of each cell, then the second of each, so
    that changes of the machine affect all cells equally.

    A group is the set of compared cells: same target, prompts, batch and sampling. Groups with
    several pairs of models are merged if they share one, so that a round loads each pair once.
    """
    known = LoadPlans()
    ordered = by_models(tasks, known)
    works = [_work(task) for task in ordered]
    needed: dict[str, set[Pair]] = {}
    for task, work in zip(ordered, works, strict=True):
        needed.setdefault(work, set()).add(known.of(task.settings).models)
    groups: dict[object, list[Task]] = {}
    for task, work in zip(ordered, works, strict=True):
        pairs = _loaded(needed[work])
        groups.setdefault(work if len(pairs) == 1 else pairs, []).append(task)
    for group in groups.values():
        for turn in range(max(len(task.turns) for task in group)):
            yield from ((task, turn) for task in group if turn < len(task.turns))


def with_models_kept(order: Sequence[tuple[Task, int]]) -> set[tuple[str, int]]:
    """The turns, by the id of their cell and number, whose models are still loaded when the cell
    has its next turn.
    """
    known, loaded, loads = LoadPlans(), None, 0
    before: dict[str, tuple[int, int]] = {}
    found = set()
    for task, turn in order:
        models = known.of(task.settings).models
        if loaded is None or not serves(loaded, models):
            loaded, loads = models, loads + 1
        last, number = before.get(task.id, (0, 0))
        if last == loads:
            found.add((task.id, number))
        before[task.id] = loads, turn
    return found


def by_models(tasks: Sequence[Task], known: LoadPlans | None = None) -> list[Task]:
    """The cells, ordered so that no models are loaded twice: cells with the same models are
    adjacent, those with a draft first.
    """
    known = known or LoadPlans()
    models = [known.of(task.settings).models for task in tasks]
    targets = [target for target, _ in models]
    first_target, first_pair = (
        {value: i for i, value in reversed([*enumerate(values)])} for values in (targets, models)
    )
    places = [
        (first_target[t], draft is None, first_pair[t, draft], i)
        for i, (t, draft) in enumerate(models)
    ]
    return [tasks[i] for *_, i in sorted(places)]


def _work(task: Task) -> str:
    """A key of the decoded work."""
    return repr((str(task.settings.target), *(getattr(task.settings, name) for name in ALIKE)))


def _loaded(models: set[Pair]) -> frozenset[Pair]:
    """The pairs to load; a target alone is part of each of its pairs."""
    paired = {target for target, draft in models if draft is not None}
    return frozenset(
        (target, draft) for target, draft in models if draft is not None or target not in paired
    )
