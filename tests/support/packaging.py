"""Builds the wheel and the sdist, and installs them into environments without any other package."""

import email
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
OFFLINE = ("--quiet", "--no-index", "--no-build-isolation")


def run(folder: Path, *command: str | Path) -> str:
    """The standard output of a command in `folder`, without this tree on its path.

    Raises `RuntimeError` with all of its output where it fails.
    """
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={name: os.environ[name] for name in os.environ if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return done.stdout


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist of this tree, written into the new folder."""
    run(ROOT, sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def shipped(source: Path = SOURCE) -> set[Path]:
    """The files of the source that an installation needs."""
    return {
        path
        for path in (source / "bass").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def difference(wheel: Path) -> str:
    """What the wheel lacks of the source, or has besides it; empty if they agree."""
    held = {
        name
        for name in zipfile.ZipFile(wheel).namelist()
        if ".dist-info/" not in name and not name.endswith("/")
    }
    source = {path.relative_to(SOURCE).as_posix() for path in shipped()}
    for what, names in (("lacks", source - held), ("has besides the source", held - source)):
        if names:
            return f"{what} {len(names)} files, `{min(names)}` first"
    return ""


def relative_links(wheel: Path) -> list[str]:
    """The targets of links in the wheel's description that are no addresses."""
    archive = zipfile.ZipFile(wheel)
    [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    text = email.message_from_bytes(archive.read(name)).get_payload()
    assert isinstance(text, str)
    assert "## Install" in text
    return [one for one in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in one]


def environment(folder: Path, *packages: Path) -> tuple[Path, Path]:
    """`python` and `bass` of a new environment with these packages.

    No network: the dependencies are those of this environment, by a .pth file.
    """
    python = folder / "bin/python"
    run(folder.parent, sys.executable, "-m", "venv", "--without-pip", folder)
    [found] = folder.glob("lib/python*/site-packages")
    paths = [path for path in sys.path if path.endswith("site-packages")]
    (found / "dependencies.pth").write_text("\n".join(paths), encoding="utf-8")
    for package in packages:
        install(python, "--no-deps", "--ignore-installed", package)
    return python, folder / "bin/bass"


def install(python: Path, *arguments: str | Path) -> None:
    """`pip install` into the environment of this interpreter, without an index."""
    pip = (sys.executable, "-m", "pip", "--python", python, "install", *OFFLINE)
    run(python.parents[1], *pip, *arguments)
