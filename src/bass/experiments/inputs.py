"""What the results of a run folder were made with, so that none made with something else are put
next to them.

The manifest has it as `inputs`: fingerprints, by name, of bass's source, of own code, of
checkpoints, and of prompts that the config does not hold, with the names that each cell depends on;
and as `notes`: sentences on changes that are no reason to make results again.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from bass.experiments.cells import Task
from bass.experiments.fingerprints import UNREADABLE, hash_of, hash_of_large, hash_of_text
from bass.experiments.own_code import modules_named, modules_of
from bass.experiments.records import Manifest
from bass.experiments.settings import KIND
from bass.experiments.sources import Sources
from bass.hub import resolve

SOURCE, SCORING = "source of bass", "source of bass's scoring"
# of our own source
_NO_RESULT_DEPENDS_ON = (
    "cli",
    "evaluation",
    "testing",
    "experiments/report",
    "experiments/configs",
)
# of that of evaluations, which show scores
_NO_SCORE_DEPENDS_ON = tuple(f"evaluation/{name}" for name in ("report", "curves", "intervals"))
_CHECKPOINT = (".safetensors", ".json", ".model", ".txt", ".jinja")


@final
@dataclass(frozen=True)
class Inputs:
    """Fingerprints by name.

    `cells`: what each cell depends on, by its id.
    """

    cells: dict[str, dict[str, str]]

    @classmethod
    def of(cls, tasks: Sequence[Task], config: Mapping[str, object]) -> "Inputs":
        """Those of these cells, as they are now.

        `config`: of the plan, which holds the prompts of its base run.
        """
        base = config.get("base")
        prompts = base.get("prompts") if isinstance(base, Mapping) else None
        read, ours = Readers(), {SOURCE: source_of_bass()}
        return cls({task.id: ours | _of_cell(task, prompts, read) for task in tasks})

    @property
    def all(self) -> dict[str, str]:
        """For the manifest."""
        return {name: value for own in self.cells.values() for name, value in own.items()}


def changes(theirs: Manifest, ours: Manifest, cell: str) -> list[str]:
    """In words, what a cell would be made with now that is not what it was made with."""
    return [
        *other_software(theirs, ours),
        *other_inputs(theirs.inputs_of(cell), ours.inputs_of(cell)),
    ]


def other_software(theirs: Manifest, ours: Manifest) -> list[str]:
    """In words, which of bass, torch and the device is not what it was."""
    return [
        f"{name} was {then} and is {now}"
        for name, then, now in (
            ("bass", theirs.bass, ours.bass),
            ("torch", theirs.torch, ours.torch),
            ("the device", theirs.device, ours.device),
        )
        if then != now
    ]


def other_inputs(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """In words, which fingerprints are not what they were."""
    return [
        _change(name, then.get(name), now.get(name))
        for name in dict.fromkeys([*then, *now])
        if then.get(name) != now.get(name) or now.get(name) == UNREADABLE
    ]


def notes(theirs: Manifest, ours: Manifest) -> list[str]:
    """Sentences on what has changed beside results that are kept, and need not be made again for
    it; earlier ones among them.
    """
    told = [] if theirs.notes is None else theirs.notes
    for name, then, now in (
        ("Python", theirs.python, ours.python),
        ("The platform", theirs.platform, ours.platform),
    ):
        if then != now:
            told = [*told, f"{name} was {then} for the first results and is {now} for later ones."]
    return list(dict.fromkeys(told))


def _change(name: str, then: str | None, now: str | None) -> str:
    if name == SOURCE:
        return f"the {SOURCE} has changed"
    kind, _, which = name.partition(" ")
    if kind == "package":
        return f"the package `{which}` was {then or 'not there'} and is {now or 'gone'}"
    if kind == "prompts":
        return f"the prompts of `{which}` have changed"
    if now == UNREADABLE:
        return f"the {kind}{which and f' `{which}`'} cannot be read"
    how = "is new" if then is None else "is gone" if now is None else "has changed"
    return f"the {kind}{which and f' `{which}`'} {how}"


def fingerprints(
    strategies: Iterable[Any],
    specs: Iterable[Any],
    checkpoints: Mapping[str, str],
    read: "Readers | None" = None,
) -> dict[str, str]:
    """Those of the code that is not ours and of checkpoints.

    `specs`: the strategies as the user names them. `checkpoints`: a folder or hub id by its role,
    such as `target`.
    """
    read = read or Readers()
    found = read.sources.of(modules_of(strategies) | modules_named(specs))
    return found | {f"{role} {spec}": read.checkpoint(spec) for role, spec in checkpoints.items()}


def _of_cell(task: Task, prompts: object, read: "Readers") -> dict[str, str]:
    load_plan, settings = task.load_plan, task.settings
    named = {
        role: spec.checkpoint
        for role, spec in (("target", load_plan.target), ("draft", load_plan.draft))
        if spec is not None
    }
    quantizations = (spec.quantization for spec in (load_plan.target, load_plan.draft) if spec)
    strategies = (*vars(load_plan.parts).values(), *quantizations)
    specs = [getattr(settings, name) for name in KIND]
    found = fingerprints(strategies, specs, named, read)
    if settings.prompts != prompts:  # else they are in the config, word by word
        found[f"prompts {task.id}"] = hash_of_text(repr(settings.read_prompts()))
    return found


@final
class Readers:
    """Reads each module and each checkpoint once."""

    def __init__(self) -> None:
        self.sources, self.checkpoint = Sources(), functools.cache(checkpoint)


def source_of_bass() -> str:
    """A hash of our own source, without what shows and judges results."""
    return _source("", _NO_RESULT_DEPENDS_ON)


def source_of_scoring() -> str:
    """A hash of our own source of what makes problems and scores of an evaluation."""
    return _source("evaluation/", _NO_SCORE_DEPENDS_ON)


def _source(part: str, without: tuple[str, ...]) -> str:
    """A hash of the files of ours whose names begin with `part`, and with none of `without`."""
    root = Path(__file__).parents[1]
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
    told = [
        f"{name} {hash_of(path)}"
        for name, path in sorted(files.items())
        if name.startswith(part) and not name.startswith(without)
    ]
    return hash_of_text("\n".join(told))


def checkpoint(spec: str) -> str:
    """A hash of a checkpoint's files.

    Of a large one it reads some bytes in every few megabytes, which any training changes.
    """
    folder = resolve(spec)
    files = sorted(
        path for path in folder.iterdir() if path.suffix in _CHECKPOINT and path.is_file()
    )
    return hash_of_text("\n".join(f"{path.name} {hash_of_large(path)}" for path in files))
