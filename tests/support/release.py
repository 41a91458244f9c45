"""`make release`: checks that this tree can be released, and says how; it tags and uploads nothing.

`python -m support.release CHECK ...` (in `tests/`) runs these checks alone.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

import bass
from bass import pair
from support import packaging
from support.packaging import ROOT

DIST = ROOT / "dist"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION = str(PROJECT["version"])  # the one place that states it


class CannotRelease(Exception):
    """One sentence: what is not ready, and what to do."""


def need(holds: bool, otherwise: str) -> None:
    """Raise `CannotRelease` unless it holds."""
    if not holds:
        raise CannotRelease(otherwise)


def command(*words: str | Path) -> str:
    """The output of a command in the project. Raises `subprocess.CalledProcessError`."""
    return subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def check_tree() -> None:
    """Everything is committed, and the version has no tag."""
    need(not command("git", "status", "--porcelain"), "Commit or remove the changed files.")
    tag = command("git", "tag", "--list", f"v{VERSION}")
    need(not tag, f"The tag `v{VERSION}` exists: raise `version` in pyproject.toml.")


def check_version() -> None:
    """The installed version is that of pyproject.toml; changelog and citation have it too."""
    need(bass.__version__ == VERSION, "The installed version is another: `pip install -e .`.")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    check_texts((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), cited, VERSION)


def check_texts(changelog: str, cited: Mapping[str, Any], version: str) -> None:
    """A changelog begins with the version and its date, and a citation has both."""
    heading = re.search(r"^## .*$", changelog, re.MULTILINE)
    found = re.fullmatch(r"## \[(.+)\] - (\d{4}-\d\d-\d\d)", heading[0] if heading else "")
    need(
        found is not None and found[1] == version,
        f"CHANGELOG.md must begin with `## [{version}] - YYYY-MM-DD`, with the lines of "
        "`Unreleased` below it.",
    )
    assert found is not None
    for name, value in (("version", version), ("date-released", found[2])):
        need(str(cited.get(name)) == value, f"CITATION.cff needs `{name}: {value}`.")


def check_build() -> None:
    """Wheel and sdist are built into dist/, are valid for an index, and hold the source."""
    shutil.rmtree(DIST, ignore_errors=True)
    wheel, sdist = packaging.build(DIST)
    command(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    links, wrong = packaging.relative_links(wheel), packaging.difference(wheel)
    need(not links, f"setup.py must make the links of the description absolute: {links}.")
    need(not wrong, f"The wheel {wrong}: correct `package-data`, or remove `src/*.egg-info`.")


def check_installed() -> None:
    """Wheel and sdist run in environments without the source, from another folder."""
    with tempfile.TemporaryDirectory(prefix="bass-release-") as name:
        folder = Path(name)
        for built in sorted(DIST.glob("*")):
            python, installed = packaging.environment(folder / built.suffix[1:], built)
            where = "import bass.pair; print(bass.pair.TARGET)"
            target = packaging.run(folder, python, "-c", where).strip()
            said = packaging.run(folder, installed, "--version").strip()
            need(said == f"bass {VERSION}", f"`{built.name}` is `{said}`.")
            draft = Path(target).parent / pair.DRAFT.name
            packaging.run(folder, installed, "info", target, "--draft", draft)
            packaging.run(folder, installed, "generate", "--example", "--max-new-tokens", "8")


CHECKS: dict[str, Callable[[], Any]] = {
    "tree": check_tree,
    "version": check_version,
    "lint": lambda: command("make", "lint"),
    "docs": lambda: command("make", "docs"),
    "build": check_build,
    "installed": check_installed,
    "test": lambda: command("make", "test"),
}


def main(names: list[str]) -> int:
    """Run the named checks, or all and then print the next steps; ends at the first that fails."""
    for name in names or CHECKS:
        print(f"{name} ...", flush=True)
        try:
            CHECKS[name]()
        except (CannotRelease, RuntimeError, subprocess.CalledProcessError) as error:
            print(f"release: {error}", file=sys.stderr, flush=True)
            return 1
    if not names:
        print(
            f"{VERSION} can be released. Next, by hand:\n"
            f"  git tag -a v{VERSION} -m 'bass {VERSION}' && git push origin v{VERSION}\n"
            f"  {Path(sys.prefix).name}/bin/twine upload dist/*"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
