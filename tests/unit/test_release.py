"""`make release`: what it finds in a changelog and a citation."""

import pytest

from support import release
from support.release import CannotRelease, check_texts

TEXT = "# Changelog\n\n## [0.2.0] - 2027-01-31\n\n### Added\n\n- A.\n"
CITED = {"version": "0.2.0", "date-released": "2027-01-31"}


def test_a_changelog_and_a_citation_of_the_version_are_ready() -> None:
    check_texts(TEXT, CITED, "0.2.0")


@pytest.mark.parametrize("old", ["## [0.2.0] - 2027-01-31", "[0.2.0]", " - 2027-01-31"])
def test_a_changelog_that_begins_with_something_else_is_not(old: str) -> None:
    with pytest.raises(CannotRelease, match="must begin with"):
        check_texts(TEXT.replace(old, "## [Unreleased]"), CITED, "0.2.0")


@pytest.mark.parametrize("name", CITED)
def test_a_citation_of_another_version_is_not(name: str) -> None:
    with pytest.raises(CannotRelease, match=f"needs `{name}"):
        check_texts(TEXT, CITED | {name: "0.1.0"}, "0.2.0")


def test_the_first_check_that_fails_ends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[str] = []
    checks = {name: lambda name=name: started.append(name) for name in ("tree", "version")}
    monkeypatch.setattr(release, "CHECKS", checks)
    assert release.main([]) == 0
    assert "git tag -a v" in capsys.readouterr().out
    monkeypatch.setitem(checks, "tree", lambda: release.need(False, "It is not ready."))
    assert release.main([]) == 1
    assert capsys.readouterr().err == "release: It is not ready.\n"
    assert started == ["tree", "version"]
