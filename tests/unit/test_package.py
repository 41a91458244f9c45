"""The package as it is installed, and the examples that the pages show."""

import re
import runpy
import shutil
import tomllib
from pathlib import Path

import pytest
import yaml

import bass
from bass import pair as embedded
from bass.errors import DISTRIBUTION
from bass.experiments.provenance import bass_version
from support import packaging
from support.pages import ROOT, blocks

TRAINED = (embedded.TARGET / "config.json").is_file()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_public_name_exists() -> None:
    assert all(getattr(bass, name).__name__ == name for name in bass.__all__)
    with pytest.raises(AttributeError, match="`bass` has no attribute `laod`"):
        bass.laod  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_the_version_is_in_one_place_and_the_citation_has_it() -> None:
    assert bass.__version__ == bass_version() == PROJECT["version"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= cited.keys()
    assert (cited["type"], cited["license"]) == ("software", PROJECT["license"])
    assert str(cited["version"]) == PROJECT["version"]
    for reference in cited["references"]:
        assert {"type", "title", "authors", "year", "identifiers"} <= reference.keys()


def test_whatever_tells_how_to_install_names_our_distribution_and_extras() -> None:
    """A package `bass` of the index would be a stranger's."""
    assert PROJECT["name"] == DISTRIBUTION
    pages = [
        ROOT / "README.md",
        *(p for p in (ROOT / "docs").rglob("*.md") if "log" not in p.parts),
    ]
    files = [*pages, *(ROOT / "src").rglob("*.py"), *(ROOT / "examples/my_policy").iterdir()]
    texts = {file: file.read_text(encoding="utf-8") for file in files if file.is_file()}
    stranger = re.compile(r"(?<![\w-])bass\[[\w-]+\]|pip install [^\n`#]*\bbass\b(?!-)")
    assert {file: found for file in texts if (found := stranger.findall(texts[file]))} == {}
    ours = re.compile(rf"""(?:'\.\[|{DISTRIBUTION}\[|\binstall\(['"])([\w-]+)""")
    extras = {
        extra
        for file, text in texts.items()
        if "examples" not in file.parts  # it has extras of its own
        for extra in ours.findall(text)
    }
    assert {"hub", "ray"} <= extras <= {*PROJECT["optional-dependencies"]}


def test_every_file_of_the_source_is_packaged() -> None:
    """What setuptools does not find by itself has a pattern in pyproject.toml."""
    source = ROOT / "src"
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "setuptools"
    ]["package-data"]
    packaged = {
        path
        for package, globs in patterns.items()
        for glob in globs
        for path in (source / package.replace(".", "/")).glob(glob)
    }
    assert {path for path in packaging.shipped() if path.suffix != ".py"} == packaged
    assert all((path.parent / "__init__.py").is_file() for path in packaging.shipped() - packaged)


def test_the_description_of_the_package_has_absolute_links_alone() -> None:
    """A package index has neither the files of the repository nor the anchors of the page."""
    described = runpy.run_path(str(ROOT / "setup.py"))["described"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    link = re.compile(r"\]\(([^)\s]+)\)")
    assert not all("://" in one for one in link.findall(text))
    for repository in (None, "https://example.org/bass"):
        made = described(text, repository, "v1.0")
        assert all("://" in one for one in link.findall(made))
        assert [b.text for b in blocks("README.md")] == re.findall(
            r"^```\w+\n(.*?)^```$", made, re.MULTILINE | re.DOTALL
        )
    assert "(https://example.org/bass/blob/v1.0/docs/tutorial/policy.md)" in made
    assert "(https://example.org/bass/raw/v1.0/docs/assets/run.svg)" in made
    assert described("See [a](b.md), ![c](d.svg)[e](#f), [g](https://h).", None, "v1") == (
        "See a, e, [g](https://h)."
    )


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_wheel_and_an_sdist_generate_in_an_empty_environment(tmp_path: Path) -> None:
    wheel, sdist = packaging.build(tmp_path / "dist")
    assert packaging.difference(wheel) == ""
    assert packaging.relative_links(wheel) == []
    example = shutil.copytree(ROOT / "examples/my_policy", tmp_path / "example")
    for built in (wheel, sdist):
        env = tmp_path / built.suffix[1:]
        python, command = packaging.environment(env, built, example)
        where = packaging.run(tmp_path, python, "-c", "import bass; print(bass.__file__)")
        assert where.startswith(str(env))
        assert packaging.run(tmp_path, command, "--version") == f"bass {bass_version()}\n"
        # what messages give as the remedy extends this installation, and asks no index for it
        packaging.install(python, f"{DISTRIBUTION}[testing]")
        assert "my-policy" in packaging.run(tmp_path, command, "list", "policy")
        if TRAINED:
            said = packaging.run(
                tmp_path, command, "generate", "--example", "-n", "2", "--max-new-tokens", "8"
            )
            assert "=== prompt 0, sample 1" in said
    if not TRAINED:
        pytest.skip("the embedded pair is not there: nothing was generated")
