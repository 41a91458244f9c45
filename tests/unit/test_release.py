"""`make release`: what it finds in a changelog and a citation, and what each finding says."""

import datetime
from typing import Any

import pytest

from support import release
from support.release import CannotRelease

TEXT = "# Changelog\n\n## [0.2.0] - 2027-01-31\n\n### Added\n\n- A.\n\n## [0.1.0] - 2026-12-01\n"
DAY = datetime.date(2027, 1, 31)
WRONG = {
    "unreleased lines": ("## [0.2.0]", "## [Unreleased]\n\n- B.\n\n## [0.2.0]", "move its lines"),
    "another version first": ("[0.2.0]", "[0.3.0]", "begins with `0.3.0` instead of `0.2.0`"),
    "no date": (" - 2027-01-31", " - unreleased", "has no date for `0.2.0`"),
    "a day that is none": ("2027-01-31", "2027-02-31", "has no date for `0.2.0`"),
    "an empty section": ("- A.", "### Fixed\n\n- A.", "nothing below `Added`"),
    "an empty last section": (
        "- A.",
        "- A.\n\n### Fixed\n\n<!-- here -->",
        "nothing below `Fixed`",
    ),
}


def test_a_changelog_of_a_release_has_its_date() -> None:
    assert release.released(TEXT, "0.2.0") == DAY


@pytest.mark.parametrize("case", WRONG)
def test_a_changelog_that_is_not_ready_is_one_sentence(case: str) -> None:
    old, new, said = WRONG[case]
    with pytest.raises(CannotRelease, match=said):
        release.released(TEXT.replace(old, new, 1), "0.2.0")


@pytest.mark.parametrize(
    "cited",
    [{"version": "0.1.0", "date-released": DAY}, {"version": "0.2.0"}],
    ids=["an older version", "no date"],
)
def test_a_citation_has_the_version_and_its_date(cited: dict[str, Any]) -> None:
    release.check_citation({"version": "0.2.0", "date-released": DAY}, "0.2.0", DAY)
    with pytest.raises(CannotRelease, match=r"CITATION.cff has `.*: write `"):
        release.check_citation(cited, "0.2.0", DAY)


def test_quick_checks_are_reported_together_and_keep_the_slow_ones_from_starting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise CannotRelease("It is not ready.")

    started: list[str] = []
    checks = {name: lambda name=name: started.append(name) for name in release.CHECKS}
    monkeypatch.setattr(release, "CHECKS", checks | {"tree": fail, "changelog": fail})
    assert release.main([]) == 1
    said = capsys.readouterr()
    assert said.err == "release: It is not ready.\n" * 2
    assert started == ["version"]
    assert "Next" not in said.out
    monkeypatch.setattr(release, "CHECKS", checks)
    assert release.main([]) == 0
    assert "git tag -a v" in capsys.readouterr().out
    assert release.main(["tag"]) == 2
