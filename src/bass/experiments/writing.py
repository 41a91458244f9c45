"""Writes into the folder of a run, whose errors say what is kept, by one process at a time."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from bass.errors import RunFolderError
from bass.files import FULL


class UnwritableError(RunFolderError):
    """Files that cannot be written; no cell can continue then."""


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise `UnwritableError` for an error of writing within it."""
    try:
        yield
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else folder
        if isinstance(error, FileExistsError):
            raise UnwritableError(
                f"`{where}` exists and is no folder: name another with `--output`."
            ) from error
        free = "free disk space or " if error.errno in FULL else ""
        raise UnwritableError(
            f"`{where}` cannot be written ({error.strerror or error}): {free}name "
            "another folder with `--output`, and repeat the command; finished results are kept."
        ) from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait until no other process writes the cell: an ending process may still write."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
