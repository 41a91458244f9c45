"""The example package outside our tree."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.pages import ROOT, blocks

EXAMPLE = ROOT / "examples/my_policy"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the example, far from the project and its settings."""
    return Path(
        shutil.copytree(
            EXAMPLE, tmp_path / "my_policy", ignore=shutil.ignore_patterns("__pycache__", "*.png")
        )
    )


def run(folder: Path, *command: str) -> str:
    """What a Python command prints in the folder, whose modules it finds; nothing is installed."""
    environment = os.environ | {
        "PYTHONPATH": str(folder),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.nightly
def test_the_tests_of_the_example_package_pass_outside_the_project(package: Path) -> None:
    assert "2 passed" in run(
        package, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_policy.py"
    )


def test_the_example_is_the_policy_of_the_tutorial_and_short() -> None:
    source = (EXAMPLE / "my_policy.py").read_text(encoding="utf-8")
    [of_tutorial] = [
        block.text for block in blocks("docs/tutorial/policy.md") if "class MyPolicy" in block.text
    ]
    assert of_tutorial.removeprefix("# my_policy.py\n").strip() in source
    [policy] = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    lines = [
        line
        for line in source.splitlines()[policy.lineno - 1 : policy.end_lineno]
        if line.strip() and '"""' not in line
    ]
    assert len(lines) <= 25


def test_the_endpoint_is_short_and_says_that_it_is_an_example() -> None:
    text = (ROOT / "examples/openai_endpoint.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    assert "an example, not a server" in (ast.get_docstring(ast.parse(text)) or "")
