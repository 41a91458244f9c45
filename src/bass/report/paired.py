"""The common cells of two runs, and their differences."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

from bass.analysis.noise import Speeds
from bass.api.plan import CHECKPOINTS
from bass.report.cells import Cell
from bass.runs.changes import other_inputs, other_software
from bass.runs.records import Manifest
from bass.runs.settings import LIMITS, SETTINGS
from bass.runs.words import in_words, listed
from bass.runs.work import WORK

# Settings that may differ: another seed draws other samples of the same distribution.
_VERDICTS_NEED = {*WORK, *LIMITS} - {"seed", "target", "lora", "prompts", "data"}
_MOST_REPORTED = 8


@final
@dataclass(frozen=True, eq=False)
class Pair:
    """A cell of run A, and the one of run B with the same value on each axis.

    same_work: whether both decode the same work, so that one may be better than the other.
    """

    a: Cell
    b: Cell
    same_work: bool

    @functools.cached_property
    def speeds(self) -> Speeds:
        """The machine's speeds while the two ran."""
        return Speeds.of(self.a.conditions, self.b.conditions)

    @property
    def title(self) -> str:
        """The title of the cell of A."""
        return self.a.title

    @property
    def unlike(self) -> dict[str, tuple[Any, Any]]:
        """The settings in which they differ, with both values."""
        x, y = self.a.settings, self.b.settings
        return {name: (x.get(name), y.get(name)) for name in SETTINGS if x.get(name) != y.get(name)}


def pairs(a: Sequence[Cell], b: Sequence[Cell], manifests: tuple[Manifest, Manifest]) -> list[Pair]:
    """The cells with the same values on the axes."""
    others = {_key(cell): cell for cell in b}
    return [
        Pair(cell, other, _same_work(cell, other, manifests))
        for cell in a
        if (other := others.get(_key(cell))) is not None
    ]


def _key(cell: Cell) -> str:
    return repr(sorted(cell.entry.settings.items()))


def _same_work(a: Cell, b: Cell, manifests: tuple[Manifest, Manifest]) -> bool:
    return (
        a.entry.lossless == b.entry.lossless
        and _target(a, manifests[0]) == _target(b, manifests[1])
        and _prompts(a, manifests[0]) == _prompts(b, manifests[1])
        and all(a.settings.get(name) == b.settings.get(name) for name in _VERDICTS_NEED)
    )


def _target(cell: Cell, manifest: Manifest) -> tuple[str, str]:
    """The fingerprints of its files and of its adapter's, at any path; else their names."""
    name, adapter = cell.entry.target["target"], str(cell.settings.get("lora"))
    return (
        manifest.inputs.get(f"target {name}", name),
        manifest.inputs.get(f"lora {adapter}", adapter),
    )


def _prompts(cell: Cell, manifest: Manifest) -> Any:
    """Their fingerprint, at any path; those of a config are in the settings."""
    return manifest.inputs.get(f"prompts {cell.entry.id}", cell.settings.get("prompts"))


def differences(a: Manifest, b: Manifest, both: Sequence[Pair]) -> list[str]:
    """Sentences on the differences of two runs, for their common settings."""
    unlike: dict[str, dict[str, None]] = {}
    for pair in both:
        for name, (x, y) in pair.unlike.items():
            unlike.setdefault(name, {})[f"{in_words(x)} and {in_words(y)}"] = None
    parts = [f"`{name}` ({_limited(values, '; ')})" for name, values in unlike.items()]
    made = dict.fromkeys(other_software(a, b))
    for pair in both:
        made |= dict.fromkeys(other_inputs(_inputs(pair.a, a), _inputs(pair.b, b)))
    sentences = []
    if parts:
        sentences.append(f"The runs differ in {listed(parts)}, that of A first.")
    if made:
        sentences.append(f"From A to B, {_limited(made, '; ')}.")
    reported = [" ".join(sentences)] if sentences else []
    count = sum(not pair.same_work for pair in both)
    if count:
        which = "The settings" if count == len(both) else f"{count} of {len(both)} settings"
        reported.append(
            f"{which} decode other work in B than in A: their figures are shown side by side, "
            "without a verdict."
        )
    return reported


def _inputs(cell: Cell, manifest: Manifest) -> dict[str, str]:
    """The inputs of a cell, without the names of checkpoints, and without prompts, which are in its
    settings.
    """
    kinds = {name: name.partition(" ")[0] for name in cell.entry.inputs}
    return {
        kind if kind in CHECKPOINTS else name: manifest.inputs[name]
        for name, kind in kinds.items()
        if kind != "prompts"
    }


def _limited(parts: Iterable[str], between: str) -> str:
    every = [*parts]
    more = f"{between}and {len(every) - _MOST_REPORTED} more" if len(every) > _MOST_REPORTED else ""
    return between.join(every[:_MOST_REPORTED]) + more
