"""Short hashes of files and texts."""

import hashlib
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
    """The hash of a file's bytes; beyond `WHOLE` bytes, of its size and evenly spread pieces."""
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
    """The hash of files and their paths below `root`."""
    return hash_of_text(
        "\n".join(
            f"{path.relative_to(root).as_posix()} {hash_of_large(path)}" for path in sorted(files)
        )
    )
