"""Planted defects, as data: the tests must kill every one. `python -m support.mutants` (in tests/)
shows which test does.

A mutant that survives is a hole in the tests, and is closed there.
"""

from support.mutants import (
    analysis,
    captures,
    cpu,
    drafting,
    engine,
    hopper,
    kernels,
    memory,
    mixtures,
    models,
    requests,
    sampling,
    verification,
)
from support.mutants.mutant import Mutant

MUTANTS = tuple(
    mutant
    for part in (
        verification,
        sampling,
        drafting,
        engine,
        captures,
        memory,
        models,
        mixtures,
        kernels,
        hopper,
        cpu,
        requests,
        analysis,
    )
    for mutant in part.MUTANTS
)


def select(only: list[str] | None) -> tuple[Mutant, ...]:
    """The mutants whose name contains one of `only`; all without it."""
    return tuple(
        mutant
        for mutant in MUTANTS
        if only is None or any(part.lower() in mutant.name.lower() for part in only)
    )
