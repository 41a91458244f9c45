"""Properties, the cases that they are tested on, and the error for a violation."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from hypothesis import HealthCheck, Phase, Verbosity, configuration, given, reject, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException
from torch import Tensor

from bass.errors import check_integer

CHEAP, COSTLY = 800, 60  # maximum number of cases for shrinking a failing one
PHASES = (Phase.generate, Phase.shrink)
NO_ERROR = "it runs without an error."


class Enough(BaseException):
    """Ends shrinking: the case is small enough. No `Exception`, so that Hypothesis passes it on."""


class ExactnessError(AssertionError):
    """A strategy violates a property.

    `law`: the property, a sentence. `case`: the smallest failing case. `expected` and `found`: the
    difference in it.
    """

    def __init__(self, name: str, law: str, expected: str, found: str, case: str) -> None:
        super().__init__(
            f"`{name}` violates a property: {law}\n  expected: {expected}\n  found: {found}\n"
            f"  smallest case: {case}"
        )
        self.law, self.expected, self.found, self.case = law, expected, found, case


@dataclass
class Proof:
    """Tests the properties of one strategy in order, up to the first violation.

    `seed`: of cases and of samples.
    """

    name: str
    examples: int
    seed: int = 0
    law: str = field(default="", init=False)
    case: object = field(default="", init=False)

    def __post_init__(self) -> None:
        check_integer("examples", self.examples, 1)
        check_integer("seed", self.seed, 0)

    def require(self, law: str, holds: bool, expected: object, found: object) -> None:
        """Check a property of the current case."""
        self.law = law
        if not holds:
            self.break_(expected, found)

    def break_(self, expected: object, found: object) -> NoReturn:
        """Raise `ExactnessError` for the current property."""
        raise ExactnessError(self.name, self.law, shown(expected), shown(found), shown(self.case))

    def attempt(self, law: str, case: object, action: Callable[[], Any]) -> Any:
        """Run `action` for one case; an exception in it is a violation."""
        self.law, self.case = law, case
        try:
            return action()
        except (ExactnessError, HypothesisException):
            raise
        except Exception as error:
            text = " ".join(str(error).split())
            expected, found = "no error", f"{type(error).__name__}: {text[:300]}"
            raise ExactnessError(self.name, NO_ERROR, expected, found, shown(self.case)) from error

    def for_all(
        self,
        law: str,
        cases: st.SearchStrategy[Any],
        action: Callable[[Any], None],
        examples: int | None = None,
        most: int = CHEAP,
    ) -> None:
        """Draw cases, the same in every run. Hypothesis shrinks a failing one."""
        broken: list[ExactnessError] = []
        smaller = 0

        @seed(self.seed)
        @settings(
            max_examples=self.examples if examples is None else max(examples, 1),
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
            phases=PHASES,
            report_multiple_bugs=False,
            print_blob=False,
            verbosity=Verbosity.quiet,
        )
        @given(case=cases)
        def tried(case: Any) -> None:
            nonlocal smaller
            smaller += bool(broken)
            if smaller > most:
                raise Enough
            try:
                self.attempt(law, case, lambda: action(case))
            except ExactnessError as error:
                if broken and error.law != broken[0].law:
                    reject()  # another property than the one that is shrinking
                broken.append(error)
                raise

        try:
            with no_files():
                tried()
        except (Exception, Enough):
            if not broken:
                raise
        # the last is the smallest; for a strategy that fails at random, one that occurred
        if broken:
            raise broken[-1] from broken[-1].__cause__


@contextlib.contextmanager
def no_files() -> Iterator[None]:
    """Point Hypothesis's cache at a folder that cannot exist, so that it writes no files."""
    before = vars(configuration).get("__hypothesis_home_directory")
    configuration.set_hypothesis_home_dir(Path(os.devnull) / "hypothesis")
    try:
        yield
    finally:
        configuration.set_hypothesis_home_dir(before)


def shown(value: object) -> str:
    """A value as text: numbers with four digits, arrays and tensors as lists."""
    if isinstance(value, str):
        return value
    if isinstance(value, Tensor):
        return shown(value.tolist())
    if isinstance(value, np.ndarray):
        return shown(value.tolist())
    if isinstance(value, list | tuple):
        return f"[{', '.join(shown(part) for part in value)}]"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
