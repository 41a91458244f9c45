"""Which bass this is, where it is installed and where it is not."""

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


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
