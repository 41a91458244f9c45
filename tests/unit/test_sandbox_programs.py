"""What a generated program may read, and right programs that depend on how they are run."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bass.evaluation.sandbox import Program, Sandbox, SandboxError
from support.strengths import landlock_here

BOX = Sandbox(workers=1)

try:
    assert BOX.layers
except SandboxError as error:
    pytest.skip(str(error), allow_module_level=True)

READS = """
import glob, json, sys
def f():
    found = []
    for folder in {folders!r}:
        for path in glob.glob(folder + "/*") + glob.glob(folder + "/.*"):
            try:
                found.append(open(path).read())
            except OSError:
                pass
    return "secret" in "".join(found)
def g():
    import csv, ctypes, decimal, sqlite3, zoneinfo, mine
    return str(mine.value) + csv.__name__
"""


@pytest.mark.skipif(landlock_here() == 0, reason="needs Landlock")
def test_an_environment_made_in_the_project_folder_does_not_open_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m venv .`: the prefix is the project; its libraries alone are needed."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    folders = [tmp_path, tmp_path / "bin", tmp_path / "lib", tmp_path / "share", tmp_path / "data"]
    for folder in folders:
        folder.mkdir(exist_ok=True)
        (folder / "answers.txt").write_text("secret")
    (tmp_path / ".env").write_text("secret")
    [packages] = tmp_path.glob("lib/python*/site-packages")
    (packages / "mine.py").write_text("value = 7")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    code = READS.format(folders=[*map(str, folders)])
    tests = "assert f() is False\nassert g() == '7csv'"
    assert BOX.check(Program(code, tests, ("f", "g"))).detail == ""


RIGHT = {
    "a dataclass whose annotation is a text": (
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Node:\n    value: int\n    left: 'Node' = None\n"
        "def f(x):\n    return Node(x, Node(1)).left.value + x\n",
        "assert f(3) == 4",
    ),
    "a dataclass under postponed annotations": (
        "from __future__ import annotations\nfrom dataclasses import dataclass, field\n"
        "from typing import get_type_hints\n"
        "@dataclass\nclass Tree:\n    children: list[Tree] = field(default_factory=list)\n"
        "def f(x):\n    return len(Tree([Tree()]).children) + len(get_type_hints(Tree))\n",
        "assert f(0) == 2",
    ),
    "pickle of its own class": (
        "import pickle\nclass P: pass\n"
        "def f(x):\n    return type(pickle.loads(pickle.dumps(P()))).__name__\n",
        "assert f(0) == 'P'",
    ),
    "a dataclass of the tests": (
        "def f(x): return x\n",
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Case:\n    given: 'int'\n"
        "assert f(Case(3).given) == 3",
    ),
    "a number of its own kind": (
        "import numbers\n"
        "class Half:\n"
        "    def __init__(self, n): self.n = n\n"
        "    def __float__(self): return self.n / 2\n"
        "numbers.Real.register(Half)\n"
        "def f(x): return Half(x)\n",
        "assert f(3) == 1.5",
    ),
    "a fraction of its own kind": (
        "import numbers\n"
        "class Half:\n"
        "    def __init__(self, n): self.numerator, self.denominator = n, 2\n"
        "numbers.Rational.register(Half)\n"
        "def f(x): return Half(x)\n",
        "from fractions import Fraction\nassert f(3) == Fraction(3, 2)",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_program_passes_that_passes_as_a_file(name: str) -> None:
    code, tests = RIGHT[name]
    outcome = BOX.check(Program(code, tests, ("f",)))
    assert (outcome.reason, outcome.detail) == ("passed", "")


NUMPY = """
import numpy as np
def f(x):
    return np.all(np.array(x) > 0)
def g(kind, x):
    return getattr(np, kind)(x)
def h(x):
    return [np.bool_(x), {"a": np.float32(x)}, np.array([x])[0] > 0]
"""
KINDS = ("bool_", "float16", "float32", "float64", "longdouble", "complex64", "int8", "uint64")


def test_scalars_of_numpy_arrive_as_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """In lists and dictionaries too."""
    home = Path(np.__file__).parents[4] / "bin" / "python"  # reads what is installed beside it
    monkeypatch.setattr(sys, "executable", str(home) if home.exists() else sys.executable)
    tests = "assert f([1, 2]) == True\nassert f([1, -2]) == False\nassert f([1]) is True\n"
    tests += "".join(f"assert g({kind!r}, 1) == 1\n" for kind in KINDS)
    tests += "assert h(1) == [True, {'a': 1.0}, True]\n"
    outcome = BOX.check(Program(NUMPY, tests, ("f", "g", "h")))
    assert (outcome.reason, outcome.detail) == ("passed", "")
