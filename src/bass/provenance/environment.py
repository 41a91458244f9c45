"""The version of bass, installed or from source, and the machine."""

import os
import platform
import subprocess
import tomllib
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from bass.errors import DISTRIBUTION
from bass.processor import cpu_name

if TYPE_CHECKING:
    import torch


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


def processors() -> float:
    """How many processors this process may use: by its affinity, and the quotas of its cgroups."""
    try:
        count = float(len(os.sched_getaffinity(0)))
    except AttributeError:  # not on every system
        count = float(os.cpu_count() or 1)
    return min([count, *quotas(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))])


def quotas(root: Path, own: Path) -> list[float]:
    """The quotas of processor time of the groups that the file `own` names and of those that they
    are in, in processors.
    """
    found = []
    for line in _read(own).splitlines():
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "cpu" if controllers else root
        inner = top / group.strip("/")
        # of the folders of the groups, a container has only its own at the top
        for folder in dict.fromkeys((inner, *inner.parents, top)):
            if not folder.is_relative_to(top):
                continue
            words = (
                [_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
                if controllers
                else _read(folder / "cpu.max").split()
            )
            if len(words) == 2 and all(word.isdigit() and int(word) for word in words):
                found.append(int(words[0]) / int(words[1]))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def device_name(device: "torch.device") -> str:
    """The product name of a device; of a CPU also the threads of torch, and the processors that
    this process may use.
    """
    import torch  # here, since `bass --version` does not need it

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    may_use = f"{processors():.3g} of {os.cpu_count() or 1} processors"
    return f"cpu ({cpu_name()}, {torch.get_num_threads()} threads, {may_use})"


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


def commit() -> str:
    """The commit of the source tree that bass is imported from, with `-dirty` if files differ;
    `unknown` outside a repository.
    """
    place = Path(__file__)
    try:
        for command in (
            ["ls-files", "--error-unmatch", place.parents[1].joinpath("__init__.py").name],
            ["describe", "--always", "--dirty", "--abbrev=40"],
        ):
            done = subprocess.run(
                ["git", *command],
                cwd=place.parents[1],
                capture_output=True,
                text=True,
                check=True,
                timeout=10,
            )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()
