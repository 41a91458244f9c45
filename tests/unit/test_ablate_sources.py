"""Whatever own code a cell is made with, directly or not: after a change of it, the folder is not
gone on with.
"""

import importlib
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bass.errors import RunFolderError
from bass.experiments import inputs, runner
from bass.experiments.cells import Task, finish
from bass.experiments.config import plan
from bass.experiments.executors import Executor, Watch
from bass.experiments.runner import Ablation
from bass.provenance.fingerprints import UNREADABLE
from bass.runs.changes import changes, other_inputs
from bass.runs.records import Summary
from bass.runs.run_folder import RunFolder

BASE = """
from dataclasses import dataclass
from typing import Any, Callable
import numpy as np
from bass.interfaces import DraftLengthPolicy

class Base(DraftLengthPolicy):
    max_length = 8
    def init(self, batch_size): return batch_size
    def lengths(self, state): return np.full(state, 1)
    def update(self, state, feedback): return state
"""
MINE = BASE + "\nclass Mine(Base): pass\n"
ONE, OTHER = "def choose(rows): return 1\n", "def choose(rows): return 8\n"
LAZY = "\nclass Mine(Base):\n    def lengths(self, state):\n        "


class Noted(Executor):
    """Runs nothing, and notes which cells it was given."""

    def __init__(self) -> None:
        self.cells: list[str] = []

    def run(self, tasks: Sequence[Task], watch: Watch) -> None:
        for task in tasks:
            self.cells.append(task.id)
            task.folder.mkdir(parents=True, exist_ok=True)
            finish(task, Summary(task.id, task.labels, "done", None, {}, [], 0.0))


class Quiet(Watch):
    """Is told, and says nothing."""

    def at(self, task: Task, share: float) -> None: ...

    def ended(self, task: Task, summary: Summary) -> None: ...


Files = dict[str, str | None]  # the text by path; None: the file is deleted


def installed(name: str, module: str, version: str = "1.0", recorded: str = "x") -> Files:
    """A distribution with one package of that name, as pip leaves it."""
    info = f"site-packages/{name}-{version}.dist-info"
    return {
        f"site-packages/{name}/__init__.py": module,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/top_level.txt": f"{name}\n",
        f"{info}/RECORD": f"{name}/__init__.py,sha256={recorded},9\n{info}/METADATA,sha256=y,9\n",
    }


def by_function(body: str) -> str:
    return f"{BASE}\n@dataclass(frozen=True)\nclass Mine(Base):\n{body}"


FUNCTION = by_function("    choose: Callable[[int], int]\n")
MADE = by_function(
    "    where: str\n    def __post_init__(self):\n        import importlib\n        "
    "object.__setattr__(self, 'held', HELD(importlib.import_module(self.where).choose))\n"
)
OWN = "own_a:Mine"
TAKES = {"class_path": OWN, "init_args": {"choose": "own_b.choose"}}
FINDS = {"class_path": OWN, "init_args": {"where": "own_b"}}
TWO = installed("own_lib", ONE)
HELPER = "site-packages/own_lib/helper.py"
IN_LIB = f"from own_lib import choose\n{MINE}"

# What the code is, the policy that is asked for, what is changed, and what the sentence names.
CASES: dict[str, tuple[Files, Any, Files, str]] = {
    "a module imported in a method": (
        {"own_a.py": BASE + LAZY + "from own_b import choose\n", "own_b.py": ONE}, OWN,
        {"own_b.py": OTHER}, "module `own_b`"),
    "a module of a package, imported in a method": (
        {"own_p/__init__.py": "", "own_p/a.py": BASE + LAZY + "from . import b\n",
         "own_p/b.py": "from own_p.c import d\n", "own_p/c/__init__.py": "",
         "own_p/c/d.py": ONE}, "own_p.a:Mine",
        {"own_p/c/d.py": OTHER}, "module `own_p.c.d`"),
    "a module named in a call": (
        {"own_a.py": BASE + LAZY + "import importlib; importlib.import_module('own_b')\n",
         "own_b.py": ONE}, OWN, {"own_b.py": OTHER}, "module `own_b`"),
    "a module named in a call by keyword": (
        {"own_a.py": BASE + LAZY + "import importlib; importlib.import_module(name='own_b')\n",
         "own_b.py": ONE}, OWN, {"own_b.py": OTHER}, "module `own_b`"),
    "a module named in a call of another name": (
        {"own_a.py": "from importlib import import_module as load\n" + BASE + LAZY
         + "load('own_b')\n", "own_b.py": ONE}, OWN, {"own_b.py": OTHER}, "module `own_b`"),
    "a module named in a call of a variable": (
        {"own_a.py": "import importlib\nload = importlib.import_module\n" + BASE + LAZY
         + "load('own_b')\n", "own_b.py": ONE}, OWN, {"own_b.py": OTHER}, "module `own_b`"),
    "a function as a value": (
        {"own_a.py": FUNCTION, "own_b.py": ONE}, TAKES,
        {"own_b.py": OTHER}, "module `own_b`"),
    "a function by another module's name": (
        {"own_a.py": FUNCTION, "own_b.py": "from own_c import choose\n", "own_c.py": ONE,
         "own_d.py": OTHER}, TAKES,
        {"own_b.py": "from own_d import choose\n"}, "module `own_b`"),
    "a function found when the object is made": (
        {"own_a.py": MADE.replace("HELD", ""), "own_b.py": ONE}, FINDS,
        {"own_b.py": OTHER}, "module `own_b`"),
    "a partial of a function": (
        {"own_a.py": MADE.replace("HELD", "__import__('functools').partial"), "own_b.py": ONE},
        FINDS, {"own_b.py": OTHER}, "module `own_b`"),
    "a function that another one holds": (
        {"own_a.py": MADE.replace("HELD", "(lambda found: lambda rows: found(rows))"),
         "own_b.py": ONE}, FINDS, {"own_b.py": OTHER}, "module `own_b`"),
    "a module as a value": (
        {"own_a.py": MADE.replace(".choose", "").replace("HELD", ""), "own_b.py": ONE},
        FINDS, {"own_b.py": OTHER}, "module `own_b`"),
    "a module that is gone": (
        {"own_a.py": f"try:\n    import own_b\nexcept ImportError: pass\n{MINE}", "own_b.py": ONE},
        OWN, {"own_b.py": None}, "module `own_b` is missing"),
    "a module that was not there": (
        {"own_a.py": f"try:\n    import own_b\nexcept ImportError: pass\n{MINE}"},
        OWN, {"own_b.py": ONE}, "module `own_b` is new"),
    "another class by the same name": (
        {"own_a.py": "from bass.policies import Fixed as Mine\n"}, OWN,
        {"own_a.py": "from bass.policies.bandit import Bandit as Mine\n"}, "module `own_a`"),
    "a helper of an installed package of the same version": (
        installed("own_lib", f"from own_lib.helper import choose\n{MINE}") | {HELPER: ONE},
        "own_lib:Mine", {HELPER: OTHER}, "module `own_lib`"),
    "another version of an installed package that is imported": (
        {"own_a.py": IN_LIB, **TWO}, OWN,
        dict.fromkeys(TWO) | installed("own_lib", OTHER, "2.0"), "package `own_lib` was 1.0"),
    "another build of an installed package that is imported": (
        {"own_a.py": IN_LIB, **TWO}, OWN,
        installed("own_lib", OTHER, recorded="z"), "package `own_lib`"),
    "an installed package without a record": (
        {"own_a.py": IN_LIB, "site-packages/own_lib/__init__.py": ONE}, OWN,
        {"site-packages/own_lib/__init__.py": OTHER}, "module `own_lib`"),
    "an installed package that the installed one imports": (
        installed("own_two", f"from own_lib import choose\n{MINE}") | TWO, "own_two:Mine",
        dict.fromkeys(TWO) | installed("own_lib", OTHER, "2.0"), "package `own_lib` was 1.0"),
}  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's folder, and a place for installed packages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site-packages"), str(tmp_path)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    # which take most of the time, and do not change
    for owner, name in ((runner, "commit"), (inputs, "source_of_bass")):
        monkeypatch.setattr(owner, name, lambda: "the same")
    monkeypatch.setattr(Ablation, "_write_texts", lambda _: None)
    yield tmp_path
    forget()


def forget() -> None:
    """As in a new process."""
    for name in [name for name in sys.modules if name.startswith("own")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def write(folder: Path, files: Files) -> None:
    for name, text in files.items():
        path = folder / name
        if text is None:
            path.unlink()
            if path.parent.suffix == ".dist-info" and not any(path.parent.iterdir()):
                path.parent.rmdir()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def ablation(folder: Path, policies: dict[str, Any], **options: bool) -> list[str]:
    """The cells that the command would run."""
    forget()
    base = {"batch": 1, "max_new_tokens": 1, "num_prompts": 1, "repeats": 1}
    made = plan({"name": "x", "base": base, "axes": {"policy": policies}})
    executor = Noted()
    Ablation(made, folder / "run", **options).run(executor, Quiet())
    return executor.cells


def renamed(case: str, value: Any) -> Any:
    """With names of its own for the case's modules and packages."""
    if isinstance(value, dict):
        return {renamed(case, key): renamed(case, one) for key, one in value.items()}
    own = f"own{[*CASES].index(case)}_"
    return value.replace("own_", own) if isinstance(value, str) else value


def test_a_change_of_own_code_is_refused_wherever_it_is(here: Path) -> None:
    policies = {case: renamed(case, policy) for case, (_, policy, _, _) in CASES.items()}
    asked = policies | {"ours": "fixed"}
    for case, (before, _, _, _) in CASES.items():
        write(here, renamed(case, before))
    ids = ablation(here, asked)
    assert len(ids) == len(asked)
    assert ablation(here, asked) == []
    first = RunFolder(here / "run").manifest
    for case, (_, _, change, _) in CASES.items():
        write(here, renamed(case, change))
    with pytest.raises(RunFolderError, match="made with other inputs"):
        ablation(here, asked)
    assert sorted(ablation(here, asked, redo_changed=True)) == ids[:-1]
    assert ablation(here, asked) == []
    then = RunFolder(here / "run").manifest
    for cell, (case, (_, _, _, named)) in zip(ids, CASES.items(), strict=False):
        assert renamed(case, named) in "; ".join(changes(first, then, cell))


def test_what_own_code_does_not_use_may_change(here: Path) -> None:
    asked = {"mine": OWN}
    write(here, {"own_a.py": IN_LIB, "own_b.py": ONE} | TWO)
    assert ablation(here, asked) == ["0000-mine"]
    # installed again: what the installer notes is another
    record = "own_lib-1.0.dist-info/METADATA,sha256=z,9\nown_lib/__init__.py,sha256=x,9\n"
    write(here, {"own_b.py": OTHER, "site-packages/own_lib-1.0.dist-info/RECORD": record})
    assert ablation(here, asked) == []


def test_a_change_of_an_archive_and_of_what_it_imports_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive holds the class, which imports a module of the archive and one of a folder."""
    archive = here / "lib.zip"

    def pack(helper: str) -> None:
        with zipfile.ZipFile(archive, "w") as written:
            written.writestr("own_zip/__init__.py", "")
            written.writestr("own_zip/a.py", f"import own_beside\nfrom . import b\n{MINE}")
            written.writestr("own_zip/b.py", helper)
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(str(archive))
    pack(ONE)
    write(here, {"own_beside.py": ONE})
    asked = {"mine": "own_zip.a:Mine"}
    assert ablation(here, asked) == ["0000-mine"]
    assert ablation(here, asked) == []
    for change, before in (
        (lambda: pack(OTHER + "\n"), lambda: pack(ONE)),
        (
            lambda: write(here, {"own_beside.py": OTHER}),
            lambda: write(here, {"own_beside.py": ONE}),
        ),
    ):
        change()
        with pytest.raises(RunFolderError, match="made with other inputs"):
            ablation(here, asked)
        before()


def test_what_cannot_be_read_is_equal_to_nothing() -> None:
    assert other_inputs({"module a": "x"}, {"module a": "x"}) == []
    gone = {"module a": UNREADABLE}
    assert other_inputs(gone, gone) == ["the module `a` cannot be read"]
