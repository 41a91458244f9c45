"""Imports go one way, siblings do not know each other, and heavy libraries load on use."""

import ast
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bass

SOURCE = Path(bass.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
ROOT = Path(__file__).parents[2]
# what is read: ours, the tests and the benchmarks
READ = [*FILES, *(path for part in ("tests", "benchmarks") for path in (ROOT / part).rglob("*.py"))]

# A module may import from rows above its own, and from its own package; not from another name of
# its own row.
ORDER: list[set[str]] = [
    {"errors", "files", "process", "progress"},
    {"option"},
    {"sampling_params"},
    {"kernels"},
    {"host_records"},
    {"records"},
    {"interfaces"},
    {"ops"},
    {"sampling"},
    {"models", "caches", "attention", "policies", "stop_rules", "trims", "verifiers"},
    {"drafters"},
    {"engine"},
    {"quantization"},
    {"checkpoints"},
    {"text", "pair"},
    {"analysis"},
    {"api"},
    {"testing"},
    {"experiments"},
    {"training"},
    {"__init__"},
    {"cli"},
    {"__main__"},
]
# within `api`, likewise
ORDER_OF_API: list[set[str]] = [
    {"kinds", "loading", "results"},
    {"options"},
    {"resolve"},
    {"requests"},
    {"generation"},
    {"plan", "queue"},
    {"llm"},
    {"__init__"},
]
RANK_OF_API = {name: rank for rank, names in enumerate(ORDER_OF_API) for name in names}
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}


def package(path: Path) -> str:
    """The first name below `bass` that a file belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree without those of `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield child
            yield from at_run_time(child)


@functools.cache
def imports(path: Path) -> list[str]:
    """Absolute names that a file imports at run time, `from a import b` as a.b."""
    found = []
    for node in at_run_time(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where things live"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_file_imports_only_from_what_comes_before_it(path: Path) -> None:
    own = package(path)
    assert own in RANK, f"say in ORDER where `{own}` stands"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "bass":
            other = parts[1] if len(parts) > 1 and parts[1] in RANK else "__init__"
            assert other == own or RANK[other] < RANK[own], f"`{own}` imports `{name}`"
            if own == "kernels":
                assert other == own, "kernels import nothing of bass"


@pytest.mark.parametrize("path", sorted((SOURCE / "api").glob("*.py")), ids=lambda p: p.stem)
def test_a_file_of_the_api_imports_only_from_what_comes_before_it(path: Path) -> None:
    assert path.stem in RANK_OF_API, f"say in ORDER_OF_API where `{path.stem}` stands"
    for name in imports(path):
        if name.startswith("bass.api."):
            other = name.split(".")[2]
            assert RANK_OF_API[other] < RANK_OF_API[path.stem], f"`{path.stem}` imports `{name}`"


def test_no_function_is_over_60_lines() -> None:
    """Without its docstring, and but for kernels, which cannot be split."""
    assert not [
        f"{path}: {node.name}"
        for path in READ
        if not path.is_relative_to(SOURCE / "kernels")
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.end_lineno is not None
        if node.end_lineno - node.lineno - len((ast.get_docstring(node) or "").splitlines()) >= 60
    ]


def test_policies_and_analysis_know_no_torch() -> None:
    for path in FILES:
        if package(path) in ("policies", "analysis"):
            assert not [name for name in imports(path) if name.split(".")[0] == "torch"], path


def test_only_kernels_know_triton() -> None:
    for path in FILES:
        if package(path) != "kernels":
            assert not [name for name in imports(path) if name.split(".")[0] == "triton"], path


def test_only_ops_know_kernels() -> None:
    for path in FILES:
        if package(path) not in ("kernels", "ops"):
            assert not [name for name in imports(path) if name.startswith("bass.kernels")], path


def test_annotations_are_evaluated_so_that_they_can_be_checked() -> None:
    assert not [path for path in FILES if "__future__.annotations" in imports(path)]


_RUN = (
    "from bass.cli import main\nfor words in {}:\n    try: main(words)\n    except SystemExit: pass"
)
COMMANDS = ["ablate", "bench", "eval", "generate", "train-draft"]
# what is run in a new process, and the libraries that it does not load
COLD = {
    "help of commands": (
        _RUN.format([["list"], *([name, "--help"] for name in COMMANDS)]),
        "torch pandas scipy matplotlib",
    ),
    "help": (_RUN.format([["--version"], ["--help"]]), "torch jsonargparse pandas rich"),
    "policies": ("import bass.interfaces, bass.policies as p\np.Fixed(2).init(2)", "torch"),
    "a tokenizer": (
        "from bass import pair, text\nassert text.Tokenizer.read(pair.TARGET)",
        "sentencepiece jinja2 google.protobuf",
    ),
    "analysis": ("import bass.analysis.report, bass.analysis.tables", "torch matplotlib"),
    "a call": ("import bass\nbass.load().generate('a', max_new_tokens=2)", "pandas scipy"),
}


@pytest.mark.parametrize("case", COLD)
def test_heavy_libraries_are_loaded_on_use(case: str) -> None:
    code, libraries = COLD[case]
    code += f"\nimport sys\nassert not {{*{libraries.split()}}} & {{*sys.modules}}"
    environment = os.environ | {"PYTHONWARNINGS": "ignore::RuntimeWarning"}  # of busy cores
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.stderr == ""
