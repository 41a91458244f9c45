"""A class of a user's own is found in the current folder, whose files shadow nothing that is
installed.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from unit.checkpoints import Pair, Said

Command = Callable[..., Said]
MARK = "import pathlib; pathlib.Path('ran').touch()\n"
OWN = (
    "from bass.policies import BatchAdaptive\nimport own_helper\nclass OneMore(BatchAdaptive):\n  "
    "  '''Mine.'''\n"
)


@pytest.fixture
def here(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint's folder with modules in it, as the current one."""
    folder = pair.copy(tmp_path).target
    for name in ("torch", "numpy", "difflib", "rich", "random", "bass_shadow"):
        (folder / f"{name}.py").write_text(MARK, encoding="utf-8")
    (folder / "own_policy.py").write_text(OWN, encoding="utf-8")
    (folder / "own_helper.py").write_text("", encoding="utf-8")
    for name in ("own_policy", "own_helper"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(
        sys, "path", [place for place in sys.path if place not in ("", str(folder))]
    )
    monkeypatch.chdir(folder)
    return folder


def test_a_class_of_one_s_own_is_found_after_everything_installed(
    bass_command: Command, here: Path
) -> None:
    own = ["--policy", "own_policy:OneMore", "--policy.start", "2"]
    said = bass_command("generate", "def f(", "--max-new-tokens", "4", *own)
    assert said.status == 0, said.err
    assert sys.path[-1] == str(here)
    assert not (here / "ran").exists()


@pytest.mark.parametrize(
    ("spec", "given"),
    [
        ("own_policy.py:OneMore", "own_policy:OneMore"),
        ("own_policy", "own_policy:Class"),
        ("own_policy.py", "own_policy:Class"),
        ("own/inner.py:OneMore", "own.inner:OneMore"),
    ],
)
def test_the_name_of_a_file_is_explained(
    bass_command: Command, here: Path, spec: str, given: str
) -> None:
    (here / "own").mkdir()
    (here / "own" / "inner.py").touch()
    said = bass_command("generate", "def f(", "--policy", spec)
    assert f"`policy={spec}` names a file: give its module and class, `{given}`." in said.err


def test_a_module_that_cannot_be_found_is_explained(bass_command: Command, here: Path) -> None:
    said = bass_command("generate", "def f(", "--policy", "nowhere_at_all:Policy")
    assert f"put `nowhere_at_all.py` into the current folder, `{here}`" in said.err
