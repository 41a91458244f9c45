"""Short hashes of files and texts."""

import functools
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

WHOLE = 2**26  # maximum bytes of a file that is hashed completely
UNREADABLE = "unreadable"  # never equal to another hash
_SAMPLES, _SAMPLE = 1024, 2**14  # of a larger file: number and bytes of evenly spread pieces


def hash_of_text(text: str) -> str:
    """The hash of any text, also with lone surrogates."""
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]


def hash_of(path: Path) -> str:
    """The hash of a file's bytes; `unreadable` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError:
        return UNREADABLE


def hash_of_large(path: Path) -> str:
    """The hash of a file's bytes; beyond `WHOLE` bytes, of its size and evenly spread pieces.

    A file is read once in a process, and again only if its size or times change.
    """
    try:
        status = os.stat(path)
        times = status.st_mtime_ns, status.st_ctime_ns
        return _hash_of_large(path, status.st_size, status.st_dev, status.st_ino, times)
    except OSError:
        return UNREADABLE


@functools.lru_cache(2**16)
def _hash_of_large(path: Path, size: int, *_identity: object) -> str:
    with path.open("rb") as file:
        if size <= WHOLE:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
        found = hashlib.sha256(str(size).encode())
        for i in range(_SAMPLES):
            file.seek(i * (size - _SAMPLE) // (_SAMPLES - 1))
            found.update(file.read(_SAMPLE))
    return found.hexdigest()[:16]


def hash_of_all(files: Iterable[Path], root: Path) -> str:
    """The hash of files and their paths below `root`."""
    return hash_of_text(
        "\n".join(
            f"{path.relative_to(root).as_posix()} {hash_of_large(path)}" for path in sorted(files)
        )
    )
