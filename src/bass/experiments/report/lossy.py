"""Which cells of a run decode something else than the target's distribution, as far as their config
tells.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bass.experiments.report.cells import Cell
from bass.verifiers import VERIFIERS


def lossy(cells: Sequence[Cell], config: Mapping[str, Any]) -> str | None:
    """A sentence about cells whose verifier says that it is not lossless.

    Verifiers of the reader's own are not asked.
    """
    labels = [
        cell.choice for cell in cells if cell.speculative and is_lossy(config, cell.entry.settings)
    ]
    if not labels:
        return None
    return (
        f"Not lossless: {', '.join(dict.fromkeys(labels))}. What is decoded there does not follow "
        "the target's distribution, so that "
        "times and acceptance are not to be compared with those of the others."
    )


def is_lossy(config: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether the verifier of a cell, given by its value on each axis, is one of ours that is not
    lossless.
    """
    said = (config.get("base") or {}).get("verifier")
    for axis, label in settings.items():
        values = (config.get("axes") or {}).get(axis)
        chosen = (
            values.get(label, values.get(str(label), label))
            if isinstance(values, Mapping)
            else label
        )
        if axis == "verifier":
            said = chosen
        elif isinstance(chosen, Mapping):
            said = chosen.get("verifier", said)
    found = VERIFIERS.get(said.get("class_path", "") if isinstance(said, Mapping) else str(said))
    return found is not None and not found.lossless
