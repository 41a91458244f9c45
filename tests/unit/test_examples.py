"""The example package outside our tree, and what the pages say of the command line and of entry
points.
"""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bass import pair as embedded
from bass.api.kinds import KINDS
from bass.cli import main
from unit.checkpoints import byte_tokenizer, write_checkpoint
from unit.test_package import ROOT, SEAMS, TRAINED, blocks

EXAMPLE = ROOT / "examples/my_policy"
STRATEGIES = [seam for seam in SEAMS if seam != "model"]


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


@pytest.mark.nightly
@pytest.mark.skipif(not TRAINED, reason="the embedded pair is not there")
def test_the_ablation_of_the_example_compares_the_policies_and_draws_a_plot(package: Path) -> None:
    printed = run(package, "ablation.py", "--batches", "1", "2", "--tokens", "4", "--repeats", "1")
    assert [printed.count(name) for name in ("my-policy", "bass", "fixed", "plain")] == [2, 2, 2, 2]
    assert (package / "ablation.png").stat().st_size > 1000


def test_the_example_is_the_policy_of_the_tutorial_and_short() -> None:
    source = (EXAMPLE / "my_policy.py").read_text(encoding="utf-8")
    [of_tutorial] = [
        block for block in blocks("docs/tutorial/policy.md") if "class MyPolicy" in block
    ]
    assert of_tutorial.removeprefix("# my_policy.py\n").strip() in source
    [policy] = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    lines = [
        line
        for line in source.splitlines()[policy.lineno - 1 : policy.end_lineno]
        if line.strip() and '"""' not in line
    ]
    assert len(lines) <= 25


@pytest.mark.parametrize(
    "file",
    ["examples/my_policy/pyproject.toml", *(f"docs/extend/{seam}.md" for seam in STRATEGIES)],
)
def test_the_entry_points_that_are_shown_are_in_groups_that_are_read(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    shown = tomllib.loads(
        text
        if file.endswith(".toml")
        else "\n".join(re.findall(r"^```toml\n(.*?)^```", text, re.M | re.S))
    )
    points = shown["project"]["entry-points"]
    expected = "policy" if file.endswith(".toml") else Path(file).stem.replace("-", "_")
    assert list(points) == [KINDS[expected].group]
    source = (
        (EXAMPLE / "my_policy.py").read_text(encoding="utf-8")
        if file.endswith(".toml")
        else "".join(blocks(file))
    )
    for target in points[KINDS[expected].group].values():
        assert f"class {target.partition(':')[2]}(" in source


def definitions(page: str) -> str:
    """The imports and definitions of a page, as the file that its reader would have."""
    kinds = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef)
    nodes = [node for block in blocks(page) for node in ast.parse(block).body]
    return "\n\n".join(ast.unparse(node) for node in nodes if isinstance(node, kinds))


@pytest.mark.parametrize(
    "page", ["docs/tutorial/policy.md", *(f"docs/extend/{seam}.md" for seam in STRATEGIES)]
)
def test_the_commands_that_name_a_class_of_the_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a random pair in the embedded one's place;

    `bass` finds the file in the folder that it is called in.
    """
    tokenizer = byte_tokenizer()
    size = tokenizer.get_vocab_size()
    monkeypatch.setattr(
        embedded,
        "TARGET",
        write_checkpoint(tmp_path / "target", tokenizer, 32, 2, size, context=1024),
    )
    monkeypatch.setattr(
        embedded,
        "DRAFT",
        write_checkpoint(tmp_path / "draft", tokenizer, 16, 1, size, context=1024),
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    text = (ROOT / page).read_text(encoding="utf-8")
    shell = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S))
    commands = [
        shlex.split(line, comments=True)
        for line in shell.splitlines()
        if re.search(r" (mine|my_policy):\w+", line)
    ]
    assert commands
    for module in ("mine", "my_policy"):
        (tmp_path / f"{module}.py").write_text(definitions(page), encoding="utf-8")
        monkeypatch.delitem(sys.modules, module, raising=False)
    for program, command, *options in commands:
        assert program == "bass"
        options = [str(embedded.TARGET) if word == "CHECKPOINT" else word for word in options]
        assert (
            main([command, *options, *(("--max-new-tokens", "4") if command == "generate" else ())])
            == 0
        ), capsys.readouterr().err
    for module in ("mine", "my_policy"):
        monkeypatch.delitem(sys.modules, module, raising=False)
