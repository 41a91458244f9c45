"""Files that outlive a crash: written whole or not at all, or line by line."""

import os
from pathlib import Path


def append(path: Path, text: str) -> None:
    """Add text at the end with one write, and flush it to the operating system."""
    data = text.encode()
    with path.open("ab", buffering=0) as file:
        while data:  # once, but where there is no room for all of it: then writing the rest says why
            data = data[file.write(data) :]


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that at any moment it is there whole, or not (or as it was before)."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def whole_lines(path: Path) -> tuple[list[bytes], bytes]:
    """The lines of a file, and what follows the last line break: a line that a crash has cut off. Nothing where there is no file."""
    *lines, rest = path.read_bytes().split(b"\n") if path.exists() else [b""]
    return lines, rest
