"""The inputs of results: versions, the machine, and hashes of the user's files."""

import dataclasses
import os
import platform
import subprocess
import tomllib
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bass.errors import DISTRIBUTION
from bass.files import digests
from bass.process import cpu_name

if TYPE_CHECKING:
    import torch

    from bass.api.plan import LoadPlan

PACKAGE = Path(__file__).parents[1]


def bass_version() -> str:
    """The version of the installed distribution, else that in the source tree's pyproject.toml."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        with PACKAGE.parents[1].joinpath("pyproject.toml").open("rb") as file:
            return str(tomllib.load(file)["project"]["version"])


def commit() -> str:
    """The commit of bass's source tree, with `-dirty` if files differ; else `unknown`."""
    source, command = PACKAGE.parents[1], ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    if not (source / ".git").exists():  # it is installed, maybe below another repository
        return "unknown"
    try:
        return subprocess.run(command, cwd=source, capture_output=True, text=True).stdout.strip()
    except OSError:
        return "unknown"


def device_name(device: "torch.device") -> str:
    """The product name of a device; of a CPU also the threads of torch."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({cpu_name()}, {torch.get_num_threads()} of {os.cpu_count()} threads)"


def here() -> dict[str, str]:
    """Versions, commit and time of this process, for a manifest."""
    return {
        "bass": bass_version(),
        "commit": commit(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": version("torch"),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def files_of(load_plan: "LoadPlan", settings: Any) -> dict[str, str]:
    """The sha256 of the files that a cell depends on, by path: the sources of the user's strategies
    and of the classes in their fields, the files and folders that parameters of strategies name,
    and that of the prompts. Checkpoints are left out.
    """
    from bass.experiments.prompts import SETS

    given = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    prompts = given.pop("prompts", None)
    if isinstance(prompts, str):
        given["file"] = SETS[prompts].path(given.get("data")) if prompts in SETS else prompts
    return digests([*load_plan.strategies, *given.values()])
