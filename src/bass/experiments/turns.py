"""In which order cells run: those that are compared take turns, and as few models as possible are
loaded.
"""

from collections.abc import Iterator, Sequence

from bass.api.loading import ModelSpec
from bass.experiments.cells import Task
from bass.experiments.load_plans import LoadPlans
from bass.runs.work import ALIKE

Pair = tuple[ModelSpec, ModelSpec | None]


def by_turns(tasks: Sequence[Task]) -> Iterator[tuple[Task, int]]:
    """All turns of all cells, by group: the first turn of each cell, then the second of each, so
    that all meet the same machine.

    A group are the cells that decode the same work (target, prompts, batch, sampling), which are
    compared. Groups that need more than one pair of models are merged where they need the same
    ones, so that each is loaded once in a round.
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


def by_models(tasks: Sequence[Task], known: LoadPlans | None = None) -> list[Task]:
    """The cells in an order in which no models are loaded twice: those that name the same stand
    together, the one with a draft first.
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
    """What is decoded, as a key."""
    return repr((str(task.settings.target), *(getattr(task.settings, name) for name in ALIKE)))


def _loaded(models: set[Pair]) -> frozenset[Pair]:
    """The pairs that have to be loaded: a target alone is in each of its pairs."""
    paired = {target for target, draft in models if draft is not None}
    return frozenset(
        (target, draft) for target, draft in models if draft is not None or target not in paired
    )
