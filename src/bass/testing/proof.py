"""A law, the cases that it is tried on, and what is said when one breaks it."""

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

CHEAP, COSTLY = 800, 60  # cases that are tried to make a broken one smaller
PHASES = (Phase.generate, Phase.shrink)
NO_ERROR = "it does its work without an error."


class Enough(BaseException):
    """The case is small enough; Hypothesis lets it pass, since it is no `Exception`."""


class ExactnessError(AssertionError):
    """A strategy broke a law.

    `law` is a sentence; `case` the smallest one found, in which `found` is not what was `expected`.
    """

    def __init__(self, name: str, law: str, expected: str, found: str, case: str) -> None:
        super().__init__(
            f"`{name}` broke a law: {law}\n  expected: {expected}\n  found: {found}\n  smallest "
            f"case: {case}"
        )
        self.law, self.expected, self.found, self.case = law, expected, found, case


@dataclass
class Proof:
    """The laws of one strategy, tried one after the other; the first that is broken ends it.

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
        """Of the case at hand."""
        self.law = law
        if not holds:
            self.break_(expected, found)

    def break_(self, expected: object, found: object) -> NoReturn:
        """The law named last does not hold."""
        raise ExactnessError(self.name, self.law, shown(expected), shown(found), shown(self.case))

    def attempt(self, law: str, case: object, action: Callable[[], Any]) -> Any:
        """Do it for one case; what is raised meanwhile breaks the law."""
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
        """Draw cases, the same in every run; one in which the law is broken is made as small as
        Hypothesis can.
        """
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
                    reject()  # another law than the one that is being made small
                broken.append(error)
                raise

        try:
            with no_files():
                tried()
        except (Exception, Enough):
            if not broken:
                raise
        # the last is the smallest; of a strategy that breaks a law now and then, one that was seen
        if broken:
            raise broken[-1] from broken[-1].__cause__


@contextlib.contextmanager
def no_files() -> Iterator[None]:
    """Hypothesis keeps what it learns of the source in a folder, and does without where it cannot
    make one.
    """
    before = vars(configuration).get("__hypothesis_home_directory")
    configuration.set_hypothesis_home_dir(Path(os.devnull) / "hypothesis")
    try:
        yield
    finally:
        configuration.set_hypothesis_home_dir(before)


def shown(value: object) -> str:
    """A value as a person reads it: numbers to four digits, arrays and tensors as lists."""
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
