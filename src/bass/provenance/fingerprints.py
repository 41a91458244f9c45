"""Hashes of files, short enough to be read."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

WHOLE = 2**26  # bytes of a file up to which all of it is hashed
UNREADABLE = "unreadable"  # equal to nothing, not even to itself
_SAMPLES, _SAMPLE = 1024, 2**14  # of a larger one: so many pieces, evenly spread, of so many bytes


def hash_of_text(text: str) -> str:
    """Of any text, half characters too."""
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]


def hash_of(path: Path) -> str:
    """Of a file's bytes; `unreadable` where there are none to be had."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError:
        return UNREADABLE


def hash_of_large(path: Path) -> str:
    """Of a file's bytes; of one of more than `WHOLE` bytes, of its size and evenly spread
    pieces.
    """
    try:
        size = path.stat().st_size
        if size <= WHOLE:
            return hash_of(path)
        found = hashlib.sha256(str(size).encode())
        with path.open("rb") as file:
            for i in range(_SAMPLES):
                file.seek(i * (size - _SAMPLE) // (_SAMPLES - 1))
                found.update(file.read(_SAMPLE))
    except OSError:
        return UNREADABLE
    return found.hexdigest()[:16]


def hash_of_all(files: Iterable[Path], root: Path) -> str:
    """Of files and their paths below `root`."""
    return hash_of_text(
        "\n".join(
            f"{path.relative_to(root).as_posix()} {hash_of_large(path)}" for path in sorted(files)
        )
    )
