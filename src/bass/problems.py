"""What is wrong with a config: collected, so that all of it is told at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import final

from bass.errors import BassError, OptionError, ProblemsError

MOST_TOLD = 100  # problems, of perhaps thousands


@final
@dataclass
class Problems:
    """What is wrong, sentence by sentence.

    `replaced`: settings that have a default instead of a value that cannot be.
    """

    told: list[str] = field(default_factory=list)
    replaced: set[str] = field(default_factory=set)

    def add(self, sentence: str, *settings: str) -> None:
        """One problem more, for which the settings get their defaults."""
        self.told.append(sentence)
        self.replaced |= {*settings}

    @contextmanager
    def noted(self, where: str = "", *settings: str) -> Iterator[None]:
        """A `BassError` raised within is one problem more."""
        try:
            yield
        except BassError as error:
            self.add(f"In `{where}`: {error}" if where else str(error), *settings)

    def raise_any(self, what: str) -> None:
        """One sentence as it is, several with a line for each. Raises an `OptionError`."""
        told = list(dict.fromkeys(self.told))
        if len(told) == 1:
            raise OptionError(told[0])
        if told:
            more = [f"And {len(told) - MOST_TOLD} more."] if len(told) > MOST_TOLD else []
            raise ProblemsError(f"{what} has {len(told)} problems:", [*told[:MOST_TOLD], *more])
