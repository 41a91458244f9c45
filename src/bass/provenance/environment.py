"""The version of bass, installed or from source, and the machine."""

import platform
import tomllib
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypedDict

from bass.errors import DISTRIBUTION


def bass_version() -> str:
    """The version of the installed distribution, else of the source tree's pyproject.toml, else
    `unknown`.
    """
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        try:
            project = tomllib.loads(
                Path(__file__).parents[3].joinpath("pyproject.toml").read_text(encoding="utf-8")
            )
            return str(project["project"]["version"])
        except (OSError, ValueError, KeyError):
            return "unknown"


def cpu_name() -> str:
    """The product name of the processor if the system reports it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        lines = []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


class Here(TypedDict):
    """The fields of every manifest about software and time."""

    bass: str
    created: str
    torch: str
    python: str
    platform: str


def here() -> Here:
    """The fields for this process, now."""
    import torch  # here, since `bass --version` does not need it

    return {
        "bass": bass_version(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
