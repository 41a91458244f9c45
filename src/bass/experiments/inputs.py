"""What the results of a run folder were made with, so that none made with something else are put
next to them.

The manifest has it as `inputs`: fingerprints, by name, of bass's source, of the modules of own
classes, of checkpoints, and of prompts that the config does not hold; and as `notes`: sentences on
changes that are no reason to make results again.
"""

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from bass.experiments.cells import Task
from bass.experiments.records import Manifest
from bass.experiments.sources import classes, hash_of, source
from bass.hub import resolve

SOURCE = "source of bass"
# of our own source
_NO_RESULT_DEPENDS_ON = (
    "cli",
    "evaluation",
    "testing",
    "experiments/report",
    "experiments/configs",
)
_CHECKPOINT = (".safetensors", ".json", ".model", ".txt", ".jinja")
_WHOLE = 2**26  # bytes of a file up to which all of it is hashed
_SAMPLES, _SAMPLE = 1024, 2**14  # of a larger one: so many pieces, evenly spread, of so many bytes


@final
@dataclass(frozen=True)
class Inputs:
    """Fingerprints by name.

    `cells`: what each cell depends on by itself, by its id; all depend on `source`, that of bass.
    """

    source: str
    cells: dict[str, dict[str, str]]

    @classmethod
    def of(cls, tasks: Sequence[Task], config: Mapping[str, object]) -> "Inputs":
        """Those of these cells, as they are now.

        `config`: of the plan, which holds the prompts of its base run.
        """
        base = config.get("base")
        prompts = base.get("prompts") if isinstance(base, Mapping) else None
        read = Readers()
        return cls(source_of_bass(), {task.id: _of_cell(task, prompts, read) for task in tasks})

    @property
    def all(self) -> dict[str, str]:
        """For the manifest."""
        return {SOURCE: self.source} | {
            name: value for own in self.cells.values() for name, value in own.items()
        }


def changes(theirs: Manifest, ours: Manifest, cell: Mapping[str, str]) -> list[str]:
    """In words, what a cell that depends on `cell` would be made with now that is not what the
    manifest says.
    """
    told = [
        f"{name} was {then} and is {now}"
        for name, then, now in (
            ("bass", theirs.bass, ours.bass),
            ("torch", theirs.torch, ours.torch),
            ("the device", theirs.device, ours.device),
        )
        if then != now
    ]
    then, now = theirs.inputs, ours.inputs
    if then is None or now is None:
        return told
    if then.get(SOURCE) != now.get(SOURCE):
        told.append("the source of bass has changed")
    return told + [
        _change(name, then.get(name), value)
        for name, value in cell.items()
        if then.get(name) != value
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
    if theirs.inputs is None:
        told = [
            *told,
            (
                "Classes and checkpoints of the first results were not recorded: they may not be "
                "those of later ones."
            ),
        ]
    return list(dict.fromkeys(told))


def _change(name: str, then: str | None, now: str) -> str:
    kind, _, which = name.partition(" ")
    if kind == "package":
        return f"the package `{which}` was {then or 'not there'} and is {now}"
    if kind == "prompts":
        return f"the prompts of `{which}` have changed"
    return f"the {kind} `{which}` has changed"


def fingerprints(
    strategies: Iterable[Any], checkpoints: Mapping[str, str], read: "Readers | None" = None
) -> dict[str, str]:
    """Those of the classes that are not ours and of checkpoints.

    `checkpoints`: a folder or hub id by its role, such as `target`.
    """
    read, found = read or Readers(), dict[str, str]()
    for cls in classes(strategies):
        found |= read.source(cls.__module__)
    return found | {f"{role} {spec}": read.checkpoint(spec) for role, spec in checkpoints.items()}


def _of_cell(task: Task, prompts: object, read: "Readers") -> dict[str, str]:
    order = task.order
    named = {
        role: str(spec)
        for role, spec in (("target", order.target), ("draft", order.draft))
        if spec is not None
    }
    found = fingerprints((*vars(order.parts).values(), *order.quantizations), named, read)
    if task.settings.prompts != prompts:  # else they are in the config, word by word
        found[f"prompts {task.id}"] = _hash(repr(task.settings.read_prompts()))
    return found


@final
class Readers:
    """Reads each module and each checkpoint once."""

    def __init__(self) -> None:
        self.source, self.checkpoint = functools.cache(source), functools.cache(checkpoint)


def source_of_bass() -> str:
    """A hash of our own source, without what shows and judges results."""
    root = Path(__file__).parents[1]
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
    told = [
        f"{name} {hash_of(path)}"
        for name, path in sorted(files.items())
        if not name.startswith(_NO_RESULT_DEPENDS_ON)
    ]
    return _hash("\n".join(told))


def checkpoint(spec: str) -> str:
    """A hash of a checkpoint's files.

    Of a large one it reads some bytes in every few megabytes, which any training changes.
    """
    folder = resolve(spec)
    files = sorted(
        path for path in folder.iterdir() if path.suffix in _CHECKPOINT and path.is_file()
    )
    return _hash("\n".join(f"{path.name} {_sampled(path)}" for path in files))


def _sampled(path: Path) -> str:
    size = path.stat().st_size
    if size <= _WHOLE:
        return hash_of(path)
    found = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for i in range(_SAMPLES):
            file.seek(i * (size - _SAMPLE) // (_SAMPLES - 1))
            found.update(file.read(_SAMPLE))
    return found.hexdigest()[:16]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]
