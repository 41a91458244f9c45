"""Files of one JSON value per line, appended during a run; an incomplete last line is ignored."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, final

from bass.errors import RunFolderError
from bass.files import file_lines
from bass.runs.own_files import decoded, inside
from bass.runs.strict import Json

Value = TypeVar("Value")


@final
@dataclass(frozen=True)
class Lines(Generic[Value]):
    """The values of a jsonl file.

    `dropped`: a sentence about an incomplete last line, or None.
    """

    values: list[Value]
    dropped: str | None = None


def jsonl(values: Iterable[Json]) -> str:
    """One line for each."""
    return "".join(value.to_json() + "\n" for value in values)


def count_lines(path: Path) -> int:
    """The number of complete lines; 0 without a file."""
    try:
        return sum(line.endswith(b"\n") for line in file_lines(inside(path.parent, path.name)))
    except OSError as error:
        raise _unreadable(path, error) from error


def read_lines(path: Path, read: Callable[[str, str], Value]) -> Lines[Value]:
    """The lines of a jsonl file, each read by `read(text, where)`; none without a file."""
    values: list[Value] = []
    try:
        for number, line in enumerate(file_lines(inside(path.parent, path.name)), 1):
            where = f"{path}, line {number}"
            if not line.endswith(b"\n"):
                dropped = f"{path}: line {number}, the last, is incomplete and was left out."
                return Lines(values, dropped)
            values.append(read(decoded(line, where), where))
    except OSError as error:
        raise _unreadable(path, error) from error
    return Lines(values)


def _unreadable(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(f"{path} cannot be read ({error.strerror}): {Json.REMEDY}.")
