"""Which bass this is, where it is installed and where it is not, and what it runs on."""

import platform
import tomllib
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypedDict


def bass_version() -> str:
    """That of the installed package; else what the source tree's pyproject.toml says; else `unknown`."""
    try:
        return version("bass")
    except PackageNotFoundError:
        try:
            said = tomllib.loads(Path(__file__).parents[3].joinpath("pyproject.toml").read_text(encoding="utf-8"))
            return str(said["project"]["version"])
        except (OSError, ValueError, KeyError):
            return "unknown"


class Here(TypedDict):
    """What every manifest says of the software and the moment."""

    bass: str
    created: str
    torch: str
    python: str
    platform: str


def here() -> Here:
    """Of this process, now."""
    import torch  # here, since `bass --version` does without it

    return {
        "bass": bass_version(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
