"""Checks properties on drawn cases, and the error for a violation."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, Verbosity, given, reject, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException
from torch import Tensor

from bass.errors import check_number

CHEAP, COSTLY = 800, 60  # maximum number of cases for shrinking a failing one
NO_ERROR = "it runs without an error."
LONGEST_CASE = 600  # characters of a case in an error


class SmallEnough(BaseException):
    """Ends shrinking. No `Exception`, so that Hypothesis passes it on."""


class ExactnessError(AssertionError):
    """A strategy violates a property.

    `property`: a sentence. `case`: the smallest failing case. `expected` and `found`: the
    difference in it.
    """

    def __init__(self, name: str, property: str, expected: str, found: str, case: str) -> None:
        super().__init__(
            f"`{name}` violates a property: {property}\n  expected: {expected}\n  found: {found}\n"
            f"  smallest case: {case}"
        )
        self.property, self.expected, self.found, self.case = property, expected, found, case


@dataclass
class Checker:
    """Checks one strategy's properties up to the first violation. `seed`: of cases and samples."""

    name: str
    examples: int
    seed: int = 0
    case: object = field(default="", init=False)

    def __post_init__(self) -> None:
        check_number("examples", self.examples, "[1, inf)")
        check_number("seed", self.seed, "[0, inf)")

    def require(self, property: str, holds: bool, expected: object, found: object) -> None:
        """Raise `ExactnessError` unless the property holds in the current case."""
        if not holds:
            raise self._violation(property, shown(expected), shown(found))

    def equal(self, property: str, found: Any, expected: Any, how: str = "") -> None:
        """Require that tensors or other values are equal. `how`: what led to `found`."""
        same = torch.equal(found, expected) if isinstance(found, Tensor) else found == expected
        if not same:  # text takes longer than most cases
            self.require(property, same, f"{shown(expected)} {how}".rstrip(), found)

    @contextlib.contextmanager
    def on(self, case: object) -> Iterator[None]:
        """Try one case within it; an exception is a violation."""
        self.case = case
        try:
            yield
        except (ExactnessError, HypothesisException):
            raise
        except Exception as error:
            found = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise self._violation(NO_ERROR, "no error", found) from error

    def _violation(self, property: str, expected: str, found: str) -> ExactnessError:
        case = shown(self.case)
        case = case if len(case) <= LONGEST_CASE else f"{case[:LONGEST_CASE]} ..."
        return ExactnessError(self.name, property, expected, found, case)

    def for_all(
        self,
        cases: st.SearchStrategy[Any],
        action: Callable[[Any], None],
        examples: int | None = None,
        most: int = CHEAP,
    ) -> None:
        """Draw cases, the same in every run. Hypothesis shrinks a failing one in `most` tries."""
        violations: list[ExactnessError] = []
        attempts = 0

        @seed(self.seed)
        @settings(
            max_examples=self.examples if examples is None else max(examples, 1),
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
            phases=(Phase.generate, Phase.shrink),
            report_multiple_bugs=False,
            print_blob=False,
            verbosity=Verbosity.quiet,
        )
        @given(case=cases)
        def tried(case: Any) -> None:
            nonlocal attempts
            attempts += bool(violations)
            if attempts > most:
                raise SmallEnough
            try:
                with self.on(case):
                    action(case)
            except ExactnessError as error:
                if violations and error.property != violations[0].property:
                    reject()  # another property than the one that is shrinking
                violations.append(error)
                raise

        try:
            tried()
        except (Exception, SmallEnough):
            if not violations:
                raise
        # the last is the smallest; for a strategy that fails at random, one that occurred
        if violations:
            raise violations[-1] from violations[-1].__cause__


def shown(value: object) -> str:
    """A value as one line of text, arrays with four digits."""
    with np.printoptions(precision=4, suppress=True):
        return " ".join(str(value.numpy() if isinstance(value, Tensor) else value).split())
