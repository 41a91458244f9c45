"""Imports go one way; siblings do not know each other; files and functions are short."""

import ast
import functools
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
    {
        "errors",
        "renamed",
        "files",
        "plain_json",
        "plain_yaml",
        "printable",
        "processes",
        "own_modules",
        "interrupt",
    },
    {"processor"},
    {"problems", "prompts"},
    {"kernels"},
    {"host_records"},
    {"records"},
    {"interfaces"},
    {"ops"},
    {"sampling"},
    {"models", "caches", "attention", "policies", "stop_rules", "drafters", "verifiers"},
    {"engine"},
    {"quantization"},
    {"checkpoints"},
    {"text", "pair"},
    {"api"},
    {"provenance"},
    {"runs"},
    {"analysis"},
    {"report"},
    {"experiments", "evaluation"},
    {"testing"},
    {"cli"},
    {"__init__", "__main__"},
]
# within `api`, likewise
ORDER_OF_API: list[set[str]] = [
    {"kinds", "values", "loading", "results", "elsewhere"},
    {"resolve", "options", "generation"},
    {"checks"},
    {"requests"},
    {"plan", "progress"},
    {"assembly"},
    {"engines"},
    {"memory", "warm_up"},
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


@functools.cache
def imports(path: Path) -> list[str]:
    """Absolute names that a file imports, `from a import b` as a.b."""
    found = []
    for node in nodes(path):
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


def test_no_file_is_over_400_lines() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in READ}
    assert {path: count for path, count in lines.items() if count > 400} == {}


def test_no_function_is_over_60_lines() -> None:
    """But for kernels, which cannot be split."""
    assert not [
        f"{path}: {node.name}"
        for path in READ
        if not path.is_relative_to(SOURCE / "kernels")
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.end_lineno is not None and node.end_lineno - node.lineno >= 60
    ]


def test_only_evaluation_knows_the_sandbox_which_knows_errors_alone() -> None:
    sandbox = SOURCE / "evaluation" / "sandbox"
    for path in FILES:
        named = [name for name in imports(path) if name.startswith("bass.")]
        within = [name for name in named if name.startswith("bass.evaluation.sandbox")]
        if path.is_relative_to(sandbox):
            others = {name.split(".")[1] for name in named if name not in within}
            assert others <= ({"errors"} if path.stem == "judge" else set()), path
        else:
            assert not within or package(path) == "evaluation", path


def test_policies_know_no_torch() -> None:
    for path in FILES:
        if package(path) == "policies":
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
