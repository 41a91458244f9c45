"""`make release`: checks that this tree can be released, and says how; it tags and uploads nothing.

`python -m support.release CHECK ...` (in `tests/`) runs these checks alone.
"""

import datetime
import re
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
from support.packaging import ROOT, SOURCE

DIST = ROOT / "dist"
_HEADING = re.compile(r"^## \[(?P<version>[^\]]+)\](?: - (?P<date>.*))?$", re.MULTILINE)
_SECTION = re.compile(r"^### (.+)\n+(?=###? |\Z)", re.MULTILINE)


class CannotRelease(Exception):
    """One sentence: what is not ready, and what to do."""


def stated_version() -> str:
    """The version in pyproject.toml, the one place that states it."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(text)["project"]["version"])


def check_tree() -> None:
    """Everything is committed, and the version has no tag."""
    changed = _git("status", "--porcelain").splitlines()
    if changed:
        raise CannotRelease(
            f"The working tree has {len(changed)} changed or untracked files, `{changed[0][3:]}` "
            "first: commit or remove them."
        )
    tag = f"v{stated_version()}"
    if tag in _git("tag", "--list", tag).split():
        raise CannotRelease(f"The tag `{tag}` exists: raise `version` in pyproject.toml.")


def check_version() -> None:
    """pyproject.toml alone states the version; the installed metadata and the citation agree."""
    stated = stated_version()
    if bass.__version__ != stated:
        raise CannotRelease(
            f"`bass.__version__` is {bass.__version__} and pyproject.toml has {stated}: install "
            "the tree again, `pip install -e .`."
        )
    for path in sorted(SOURCE.rglob("*.py")):
        if re.search(r"^__version__\s*=", path.read_text(encoding="utf-8"), re.MULTILINE):
            raise CannotRelease(f"`{path.relative_to(ROOT)}` states a version too: remove it.")


def check_changelog() -> None:
    """CHANGELOG.md and CITATION.cff have the version and the day of its release."""
    date = released(_text("CHANGELOG.md"), stated_version())
    check_citation(yaml.safe_load(_text("CITATION.cff")), stated_version(), date)


def released(changelog: str, version: str) -> datetime.date:
    """The date of a version, the newest in a changelog without lines that belong to no version."""
    headings = [*_HEADING.finditer(changelog)]
    names = [heading["version"] for heading in headings]
    if any(name.lower() == "unreleased" for name in names):
        raise CannotRelease(
            f"CHANGELOG.md has the section `Unreleased`: move its lines to `{version}`, and remove "
            "it."
        )
    if names[:1] != [version]:
        first = f"`{names[0]}`" if names else "nothing"
        raise CannotRelease(
            f"CHANGELOG.md begins with {first} instead of `{version}`: add `## [{version}] - "
            "YYYY-MM-DD`."
        )
    try:
        date = datetime.date.fromisoformat(headings[0]["date"] or "")
    except ValueError:
        raise CannotRelease(
            f"CHANGELOG.md has no date for `{version}`: write `## [{version}] - YYYY-MM-DD`."
        ) from None
    end = headings[1].start() if len(headings) > 1 else len(changelog)
    lines = re.sub(r"<!--.*?-->\n*", "", changelog[headings[0].end() : end], flags=re.DOTALL)
    if empty := _SECTION.search(lines):
        raise CannotRelease(f"CHANGELOG.md has nothing below `{empty[1]}`: remove the heading.")
    return date


def check_citation(cited: Mapping[str, Any], version: str, date: datetime.date) -> None:
    """A citation has the version and the date."""
    for field, value in (("version", version), ("date-released", date)):
        if str(cited.get(field)) != str(value):
            raise CannotRelease(
                f"CITATION.cff has `{field}: {cited.get(field)}`: write `{field}: {value}`."
            )


def check_build() -> None:
    """Wheel and sdist are built into dist/, are valid for an index, and hold the source."""
    for old in DIST.glob("*") if DIST.is_dir() else ():
        old.unlink()
    try:
        wheel, sdist = packaging.build(DIST)
    except RuntimeError as error:
        print(error)
        raise CannotRelease("The wheel was not built: the output above says why.") from error
    _command("twine check", sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    if links := packaging.relative_links(wheel):
        raise CannotRelease(
            f"The wheel's description has {len(links)} links that an index cannot follow, "
            f"`{links[0]}` first: `described` in setup.py must make them absolute."
        )
    if wrong := packaging.difference(wheel):
        raise CannotRelease(
            f"The wheel {wrong}: correct `package-data` in pyproject.toml, or remove "
            "`src/*.egg-info`."
        )


def check_installed() -> None:
    """Wheel and sdist run in environments without the source, from another folder."""
    with tempfile.TemporaryDirectory(prefix="bass-release-") as folder:
        for built in sorted(DIST.glob("*")):
            print(f"  {built.name}")
            try:
                python, command = packaging.environment(Path(folder) / built.suffix[1:], built)
                where = "import bass, bass.pair; print(bass.pair.TARGET)"
                target = packaging.run(Path(folder), python, "-c", where).strip()
                said = packaging.run(Path(folder), command, "--version").strip()
                for arguments in (
                    ("list",),
                    ("info", target, "--draft", Path(target).parent / pair.DRAFT.name),
                    ("generate", "--example", "-n", "2", "--max-new-tokens", "8"),
                ):
                    packaging.run(Path(folder), command, *arguments)
            except RuntimeError as error:
                print(error)
                raise CannotRelease(
                    f"`{built.name}` does not run when it is installed: the output above says why."
                ) from error
            if said != f"bass {stated_version()}":
                raise CannotRelease(f"`{built.name}` is `{said}`: remove `src/*.egg-info`.")


def check_make(target: str) -> Callable[[], None]:
    """A target of the Makefile passes."""
    return lambda: _command(f"make {target}", "make", "--no-print-directory", target)


CHECKS: dict[str, Callable[[], None]] = {
    "tree": check_tree,
    "version": check_version,
    "changelog": check_changelog,
    "lint": check_make("lint"),
    "docs": check_make("docs"),
    "build": check_build,
    "installed": check_installed,
    "test": check_make("test"),
}
QUICK = ("tree", "version", "changelog")  # reported together


def run(names: list[str]) -> int:
    """The exit status; each check that fails is one sentence."""
    failed = False
    for name in names:
        print(f"{name} ...", flush=True)
        try:
            CHECKS[name]()
        except CannotRelease as error:
            print(f"release: {error}", file=sys.stderr, flush=True)
            failed = True
        if failed and name not in QUICK[:-1]:
            return 1
    return int(failed)


def main(names: list[str]) -> int:
    """Run the named checks, or all and then print the next steps."""
    if unknown := [name for name in names if name not in CHECKS]:
        print(f"release: `{unknown[0]}` is no check: {', '.join(CHECKS)}.", file=sys.stderr)
        return 2
    status = run(names or [*CHECKS])
    if not names and not status:
        tag = f"v{stated_version()}"
        print(
            f"{stated_version()} can be released. Next, by hand:\n"
            f"  git tag -a {tag} -m 'bass {stated_version()}' && git push origin {tag}\n"
            f"  {Path(sys.prefix).name}/bin/twine upload dist/*"
        )
    return status


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotRelease(f"Git cannot read this tree ({done.stderr.strip()}): use a clone.")
    return done.stdout


def _command(what: str, *command: str | Path) -> None:
    if subprocess.run([str(part) for part in command], cwd=ROOT, check=False).returncode:
        raise CannotRelease(f"`{what}` failed: the output above says why.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
