"""Crash-safe writes of whole files or of lines, and reads of untrusted files within limits."""

import contextlib
import errno
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_LONGEST_LINE = 2**26  # bytes
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # error numbers of a write without space
# of a file of lines that a run wrote: three hours of steps of 10 ms, with a line for each
MOST_RUN_LINES, LARGEST_RUN_BYTES = 2**20, 2**30
_LFS = b"version https://git-lfs.github.com/spec/"  # how a pointer begins
SHORTEST_LINE = 16  # bytes of a record in JSON
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


def _check_regular(status: os.stat_result, path: str | None = None) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no regular file")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", path)


def append(path: Path, text: str) -> None:
    """Add text at the end with one write, and flush it to the operating system.

    Raises `OSError` if the path is a link.
    """
    data = text.encode()
    handle = os.open(
        path,
        os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
        0o666,
    )
    with open(handle, "ab", buffering=0) as file:
        # one write, unless the disk is full: then the next write raises the reason
        while data:
            data = data[file.write(data) :]


def check_room(path: Path, text: str) -> None:
    """Raise `OSError` if `file_lines` could not read the file once this text is appended to it."""
    size, count = len(text.encode()), text.count("\n")
    with contextlib.suppress(FileNotFoundError), open_regular(path) as file:
        size += os.fstat(file.fileno()).st_size
        if size > SHORTEST_LINE * MOST_RUN_LINES:  # a smaller file has no more lines
            count += _line_breaks(file)
    if size > LARGEST_RUN_BYTES:
        raise too_large(LARGEST_RUN_BYTES)
    if count > MOST_RUN_LINES:
        raise _too_many_lines()


def check_replaceable(path: Path) -> None:
    """Raise `OSError`, as `open_regular`, if something else than a regular file is at the path, or
    at the end of a link there.
    """
    with contextlib.suppress(FileNotFoundError):
        _check_regular(os.stat(path), str(path))


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file atomically: at any time it is complete, absent, or as before.

    A link to a file is replaced, and the file is kept. Raises `OSError` as `check_replaceable`.
    """
    check_replaceable(path)
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)  # left by a crash, or a link or pipe of an attacker
    try:
        with part.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:  # a full disk
        part.unlink(missing_ok=True)
        raise


def file_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, read lazily, with their line breaks; a line without one was cut off by a
    crash.

    Empty without a file. Raises `OSError` as `open_regular`, and for a file of more than
    `MOST_RUN_LINES` lines or `LARGEST_RUN_BYTES` bytes before the first line is given.
    """
    if not path.exists():
        return
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > LARGEST_RUN_BYTES:
            raise too_large(LARGEST_RUN_BYTES)
        if _line_breaks(file) > MOST_RUN_LINES:
            raise _too_many_lines()
        file.seek(0)
        while line := file.readline(_LONGEST_LINE + 1):
            if len(line) > _LONGEST_LINE:
                raise too_large(_LONGEST_LINE)
            yield line


def _line_breaks(file: BinaryIO) -> int:
    """The line breaks of a file; it stops counting above `MOST_RUN_LINES`."""
    count = 0
    while count <= MOST_RUN_LINES and (part := file.read(2**20)):
        count += part.count(b"\n")
    return count


def _too_many_lines() -> OSError:
    return OSError(errno.EFBIG, f"it has more than {MOST_RUN_LINES:,} lines")
