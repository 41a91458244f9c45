"""Fingerprints of the inputs of results: the source of bass, user code, and checkpoints."""

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, final

from bass.checkpoints.hub import resolve
from bass.provenance.fingerprints import UNREADABLE, hash_of, hash_of_large, hash_of_text
from bass.provenance.own_code import modules_named, modules_of
from bass.provenance.sources import Sources

SOURCE, SCORING = "source of bass", "source of bass's scoring"
# parts of the source of bass
_NO_RESULT_DEPENDS_ON = (
    "cli",
    "evaluation",
    "testing",
    "report/",
    "experiments/configs",
)
_CHECKPOINT = (".safetensors", ".json", ".model", ".txt", ".jinja")


def fingerprints(
    strategies: Iterable[Any],
    specs: Iterable[Any],
    checkpoints: Mapping[str, str],
    read: "Readers | None" = None,
) -> dict[str, str]:
    """The fingerprints of user code and of checkpoints.

    `specs`: the strategies as the user names them. `checkpoints`: a folder or hub id by its role,
    such as `target`.
    """
    read = read or Readers()
    found = read.sources.of(modules_of(strategies) | modules_named(specs))
    return found | {f"{role} {spec}": read.checkpoint(spec) for role, spec in checkpoints.items()}


@final
class Readers:
    """Reads each module and each checkpoint once."""

    def __init__(self) -> None:
        self.sources, self.checkpoint = Sources(), functools.cache(checkpoint)


def source_of_bass() -> str:
    """A hash of the source of bass, without reports, analysis and scoring."""
    return _source("", _NO_RESULT_DEPENDS_ON)


def source_of_scoring() -> str:
    """A hash of the source of bass for problems and scores of an evaluation."""
    return _source("evaluation/", ())


def _source(part: str, without: tuple[str, ...]) -> str:
    """A hash of the files of bass whose names begin with `part`, and with none of `without`."""
    root = Path(__file__).parents[1]
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
    reported = [
        f"{name} {hash_of(path)}"
        for name, path in sorted(files.items())
        if name.startswith(part) and not name.startswith(without)
    ]
    return hash_of_text("\n".join(reported))


def checkpoint(spec: str) -> str:
    """A hash of a checkpoint's files.

    For large files it reads some bytes in every few megabytes, which any training changes.
    """
    return hash_of_checkpoint(resolve(spec))


def hash_of_checkpoint(folder: Path) -> str:
    """The hash of `checkpoint` for a folder; `unreadable` without one."""
    try:
        files = sorted(
            path for path in folder.iterdir() if path.suffix in _CHECKPOINT and path.is_file()
        )
    except OSError:
        return UNREADABLE
    return hash_of_text("\n".join(f"{path.name} {hash_of_large(path)}" for path in files))


def hash_of_config(spec: str) -> str:
    """The hash of a checkpoint's config.json, on which random weights depend."""
    return hash_of(resolve(spec, weights=False) / "config.json")
