"""Access to the files of a run folder or evaluation folder.

The folder is untrusted: no name in it may lead out of it or block.
"""

import fcntl
import os
import platform
import re
from pathlib import Path
from typing import BinaryIO

from bass.errors import RunFolderError
from bass.files import check_room, read_regular
from bass.runs.strict import Json

LARGEST_FILE = 64 << 20  # bytes of a manifest or a summary
LONGEST_ID = 200  # bytes of a cell's id
LOCK = "lock"


class ReplacedError(RunFolderError):
    """The folder was deleted or replaced, and another run may write a folder of its name."""


def inside(folder: Path, *names: str) -> Path:
    """The path `folder`/NAME/..., for reading or writing.

    Raises `RunFolderError` if one of the names is a symbolic link; `folder` itself may be one.
    """
    path = folder
    for name in names:
        path /= name
        if path.is_symlink():
            raise RunFolderError(
                f"{path} is a symbolic link, which may lead out of the folder: replace it by its "
                "target."
            )
    return path


def take_lock(folder: Path) -> BinaryIO:
    """Lock the folder for this process until the returned file is closed or the process ends.

    Raises `RunFolderError` if another process has the lock, or `OSError`.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    lock = open(os.open(inside(folder, LOCK), flags, 0o644), "r+b", buffering=0)  # noqa: SIM115
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {platform.node()}".encode())
    except BlockingIOError as error:
        who = lock.read(100).decode(errors="replace") or "another process"
        lock.close()
        raise RunFolderError(
            f"`{folder}` is being written by {who}: wait until it has ended, or name another "
            "folder with `--output`."
        ) from error
    except OSError:
        lock.close()
        raise
    return lock


def holder(lock: BinaryIO) -> str:
    """The process that the file of a lock names."""
    lock.seek(0)
    return lock.read(300).decode(errors="replace")


def check_lock(folder: Path, ours: str) -> None:
    """Raise `ReplacedError` if the folder's lock is no longer that of this run (`holder`)."""
    try:
        found = read_regular(inside(folder, LOCK), 300).decode(errors="replace")
    except OSError:
        found = ""
    if found != ours:
        raise ReplacedError(
            f"`{folder}` has been deleted or replaced while this run wrote it: this run ends, and "
            "writes nothing more. Repeat the command, or name another folder with `--output`."
        )


def check_room_for(path: Path, text: str, remedy: str) -> None:
    """Raise `RunFolderError` if the file would become too large to be read, with this remedy."""
    try:
        check_room(path, text)
    except OSError as error:
        raise RunFolderError(
            f"`{path}` would become a file that cannot be read again ({error.strerror}): {remedy}."
        ) from error


def check_cell(cell: str) -> None:
    """Raise an error for a cell id that is not a folder name."""
    if (
        not re.fullmatch(r"[^./\\\x00-\x1f][^/\\\x00-\x1f]*", cell)
        or len(cell.encode(errors="replace")) > LONGEST_ID
    ):
        raise RunFolderError(
            f"the cell id {cell!r:.100} is no name of a folder: restore the file, or name another "
            "folder"
        )


def content(path: Path) -> bytes:
    """The content of a file of a run.

    Raises `RunFolderError` for a link, or a file that is not regular.
    """
    try:
        return read_regular(inside(path.parent, path.name), LARGEST_FILE)
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be read ({error.strerror}): restore it, or delete the folder it is in."
        ) from error


def decoded(text: bytes, where: str, remedy: str = Json.REMEDY) -> str:
    """A line or a file as text. Raises `RunFolderError` for invalid UTF-8."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise RunFolderError(f"{where} is damaged ({error.reason}): {remedy}.") from error


def holds_other_files(folder: Path, manifest: str, *ours: str) -> bool:
    """Whether a folder without its manifest holds files, other than what a start may leave."""
    if not folder.is_dir() or (folder / manifest).exists():
        return False
    left = {LOCK, f"{manifest}.part", *ours}
    return any(path.name not in left for path in folder.iterdir())
