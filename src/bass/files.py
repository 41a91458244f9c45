"""Crash-safe writes of whole files or of lines, and reads of files of checkpoints within limits."""

import errno
import io
import os
import stat
from pathlib import Path
from typing import BinaryIO

_LFS = b"version https://git-lfs.github.com/spec/"  # how a pointer begins
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read its bytes. Symbolic links are followed.

    Opens no pipe or device, which could block. Raises `OSError`, with the reason as `strerror`.
    """
    _check_regular(os.stat(path))
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = open(handle, "rb")  # noqa: SIM115  the caller closes it
    try:
        _check_regular(os.fstat(handle))  # the file at the path may have been replaced
    except OSError:
        file.close()
        raise
    return file


def read_regular(path: Path, limit: int) -> bytes:
    """Content of a regular file of at most `limit` bytes. Raises `OSError` as `open_regular`."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(size + 1) if size <= limit else b""
        if len(content) > size:  # a file of /proc is longer than its reported size
            content += file.read(limit + 1 - len(content))
    if max(size, len(content)) > limit:
        raise too_large(limit)
    return content


def read_text(path: Path, limit: int) -> str:
    """Text of a regular file in UTF-8, without a byte order mark, every line break as `\\n`.

    Raises `UnicodeDecodeError`, or `OSError` as `read_regular`.
    """
    return io.TextIOWrapper(io.BytesIO(read_regular(path, limit)), encoding="utf-8-sig").read()


def is_lfs_pointer(path: Path) -> bool:
    """Whether a file is the pointer that Git leaves where Git LFS has not fetched the content."""
    try:
        with open_regular(path) as file:
            return file.read(len(_LFS)) == _LFS
    except (OSError, ValueError):
        return False


def too_large(limit: int) -> OSError:
    """The error for a file with more than `limit` bytes, packed or unpacked."""
    return OSError(errno.EFBIG, f"it is larger than the limit of {size_in_words(limit)}")


def size_in_words(count: int) -> str:
    """A number of bytes for a sentence: `5 MiB`, `300 bytes`."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} bytes"


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no regular file")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file")


def append(path: Path, text: str) -> None:
    """Add text at the end of a file with one write."""
    with path.open("ab", buffering=0) as file:
        data = text.encode()
        while data:  # once, unless the disk is full: then the next write raises the reason
            data = data[file.write(data) :]


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file atomically: at any time it is complete, absent, or as before."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:  # a full disk
        part.unlink(missing_ok=True)
        raise
