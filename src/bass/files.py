"""Atomic writes of files, why a file could not be read, and hashes of the user's files."""

import dataclasses
import difflib
import functools
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# files below these are of bass, or of installed packages
_INSTALLED = (
    f"{Path(__file__).parent}/",
    *{sysconfig.get_path(n) for n in ("stdlib", "purelib", "platlib")},
)


def reason(error: Exception) -> str:
    """Why a file could not be read, with the name next to it that is nearest to a missing one's."""
    why = str(getattr(error, "strerror", None) or error)
    if not isinstance(error, FileNotFoundError):
        return why
    path = Path(error.filename)
    near = difflib.get_close_matches(path.name, [one.name for one in path.parent.glob("*")], n=1)
    return f"{why}, but `{near[0]}` is next to it" if near else why


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file atomically: at any time it is complete, absent, or as before."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content.encode() if isinstance(content, str) else content)
    part.replace(path)


def digests(values: list[Any]) -> dict[str, str]:
    """The sha256 of the files that values depend on, by path: files that they or their fields
    name, and the sources of the user's classes among them.
    """
    found = {*_files(values)}
    return {path: _digest(path, os.stat(path).st_mtime_ns) for path in sorted(found)}


@functools.cache
def _digest(path: str, _: int) -> str:
    """The sha256 of a file, read once while its time is the same."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(value: Any, parameter: bool = False) -> Iterator[str]:
    """The files that a value names (for a `parameter` folders too), and those of its classes."""
    if isinstance(value, str | Path):
        inside = Path(value).rglob("*") if parameter and os.path.isdir(value) else [value]
        yield from (os.path.abspath(path) for path in inside if os.path.isfile(path))
    elif isinstance(value, Mapping):
        yield from _files([*value.values()], True)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _files(one, parameter)
    else:
        kind = value if isinstance(value, type) else type(value)
        for base in kind.__mro__:
            file = getattr(sys.modules.get(base.__module__), "__file__", None)
            if file is not None and not file.startswith(_INSTALLED):
                yield os.path.abspath(file)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [getattr(value, f.name, None) for f in dataclasses.fields(value)]
            yield from _files(fields, True)
