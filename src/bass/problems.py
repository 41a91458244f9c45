"""Problems of a config, collected and reported together."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import final

from bass.errors import BassError, OptionError, ProblemsError

MOST_REPORTED = 100  # problems, out of up to thousands


@final
@dataclass
class Problems:
    """Problems, one sentence each."""

    sentences: list[str] = field(default_factory=list)

    def add(self, sentence: str) -> None:
        """Add a problem."""
        self.sentences.append(sentence)

    @contextmanager
    def noted(self, where: str = "") -> Iterator[None]:
        """Add a `BassError` raised within as a problem."""
        try:
            yield
        except BassError as error:
            self.add(f"In `{where}`: {error}" if where else str(error))

    def raise_any(self, what: str) -> None:
        """Raise an `OptionError` for one problem, or a `ProblemsError` with a line for each."""
        found = list(dict.fromkeys(self.sentences))
        if len(found) == 1:
            raise OptionError(found[0])
        if found:
            left = len(found) - MOST_REPORTED
            lines = [*found[:MOST_REPORTED], *([f"And {left} more."] if left > 0 else [])]
            raise ProblemsError(f"{what} has {len(found)} problems:", lines)
