"""The folders that commands read, and the files that they write: checked before the work, which may
take minutes.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bass.errors import OptionError
from bass.files import check_replaceable, write_atomically


def check_folder(folder: Path, wrote: str = "`bass ablate`") -> None:
    """Raise `OptionError` unless there is a folder. wrote: the commands that write such ones."""
    if not folder.is_dir():
        raise OptionError(f"`{folder}` is no folder: give one that {wrote} wrote.")


def check_parent(path: Path, option: str) -> None:
    """Raise `OptionError` for a file in a folder that does not exist."""
    if not path.parent.is_dir():
        raise OptionError(
            f"`{option} {path}` is in a folder that does not exist: make `{path.parent}`, or "
            "name another file."
        )


def check_output(path: Path, option: str) -> None:
    """Raise `OptionError` for a file that cannot be written."""
    check_parent(path, option)
    with replacing(path):
        check_replaceable(path)


def write(path: Path, content: str | bytes) -> None:
    """Write a file atomically. Raises `OptionError`."""
    with replacing(path):
        write_atomically(path, content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[None]:
    """Raise `OptionError` for an error of replacing the file at the path."""
    try:
        yield
    except OSError as error:
        raise OptionError(
            f"`{path}` cannot be written ({error.strerror}): name another file."
        ) from error
