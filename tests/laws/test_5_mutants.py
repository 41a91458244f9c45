"""Tier 5: planted defects. `make mutants` runs the tests against each; here, that each still fits the source it is planted in."""

import pytest

from support.mutants import MUTANTS, Mutant
from support.mutation import SOURCE, TESTS, attempt, mutated

TRAPS = range(1, 19)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_mutant_applies_in_exactly_one_place_and_leaves_valid_python(mutant: Mutant) -> None:
    compile(mutated(mutant, (SOURCE / mutant.file).read_text(encoding="utf-8")), mutant.file, "exec")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_mutant_names_tests_that_exist(mutant: Mutant) -> None:
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert f"def {name}" in (TESTS / file).read_text(encoding="utf-8")


def test_every_trap_has_a_mutant_and_no_two_mutants_share_a_name() -> None:
    assert {mutant.trap for mutant in MUTANTS} == {0, *TRAPS}
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_mutant_is_killed(mutant: Mutant) -> None:
    assert attempt(mutant).killer is not None
