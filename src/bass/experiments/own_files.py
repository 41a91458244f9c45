"""Files of a run folder.

Somebody else may have made it: none of its names leads out of it, and none is waited for.
"""

import re
from pathlib import Path

from bass.errors import RunFolderError
from bass.experiments.strict import Json
from bass.files import read_regular

LARGEST_FILE = 64 << 20  # bytes of a manifest or a summary
LONGEST_ID = 200  # bytes of a cell's id


def check_cell(cell: str) -> None:
    """Refuse an id that is no name of a folder in the run's."""
    if (
        not re.fullmatch(r"[^./\\\x00-\x1f][^/\\\x00-\x1f]*", cell)
        or len(cell.encode(errors="replace")) > LONGEST_ID
    ):
        raise RunFolderError(
            f"the cell id {cell!r:.100} is no name of a folder: restore the file, or name another "
            "folder"
        )


def content(path: Path) -> bytes:
    """What a file of a run holds.

    Raises `RunFolderError` where it, or its folder, is a link, or it is no regular file.
    """
    check_no_link(path)
    try:
        return read_regular(path, LARGEST_FILE)
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be read ({error.strerror}): restore it, or delete the folder it is in."
        ) from error


def decoded(text: bytes, where: str, remedy: str = Json.REMEDY) -> str:
    """A line or a file as text. Raises `RunFolderError` where it is none."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise RunFolderError(f"{where} is damaged ({error.reason}): {remedy}.") from error


def check_no_link(path: Path) -> None:
    """Refuse FOLDER/cells/ID/FILE where `cells`, ID or FILE is a symbolic link; and FOLDER/FILE
    where FILE is.
    """
    for place in (
        (path, path.parent, path.parent.parent) if path.parent.parent.name == "cells" else (path,)
    ):
        if place.is_symlink():
            raise RunFolderError(
                f"{place} is a symbolic link, which may lead out of the run's folder: put the file "
                "itself there."
            )
