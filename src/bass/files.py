"""Crash-safe writes of whole files; and why a file could not be read."""

import difflib
import os
from pathlib import Path


def reason(error: Exception) -> str:
    """Why a file could not be read, with the name next to it that is nearest to a missing one's."""
    why = str(getattr(error, "strerror", None) or error)
    if not isinstance(error, FileNotFoundError):
        return why
    path = Path(error.filename)
    near = difflib.get_close_matches(path.name, [one.name for one in path.parent.glob("*")], n=1)
    return f"{why}, but `{near[0]}` is next to it" if near else why


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
