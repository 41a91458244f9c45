"""Tier 5: planted defects.

`make mutants` runs the tests against each; here, that each still fits the source it is planted in.
"""

import ast
import functools
from pathlib import Path

import pytest

from support.mutants import MUTANTS
from support.mutants.mutant import Mutant
from support.mutation import TESTS, attempt
from support.planting import planted

TRAPS = range(1, 19)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_mutant_applies_in_exactly_one_place_and_leaves_valid_python(mutant: Mutant) -> None:
    file, text = planted(mutant)
    compile(text, str(file), "exec")
    assert ast.dump(ast.parse(mutant.old)) != ast.dump(ast.parse(mutant.new))


def test_a_mutant_names_tests_that_exist_and_one_of_every_run() -> None:
    """Whose function is not `nightly`: it may have some cases that are."""
    for mutant in MUTANTS:
        named = [test.partition("::")[::2] for test in mutant.tests]
        for file, name in named:
            assert f"def {name}" in source(TESTS / file), mutant.name
        assert any(quick(TESTS / file, name) for file, name in named), mutant.name


@functools.cache
def source(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@functools.cache
def quick(file: Path, name: str) -> bool:
    """Is there a test of this name, or any where it is empty, that is not for the night alone?"""
    return any(
        isinstance(part, ast.FunctionDef)
        and part.name.startswith(name or "test_")
        and "pytest.mark.nightly" not in map(ast.unparse, part.decorator_list)
        for part in ast.parse(source(file)).body
    )


def test_every_trap_has_a_mutant_and_no_two_mutants_share_a_name() -> None:
    assert {mutant.trap for mutant in MUTANTS} == {0, *TRAPS}
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_mutant_is_killed(mutant: Mutant) -> None:
    assert attempt(mutant).killer is not None
