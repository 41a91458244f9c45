"""A defect to plant, as a value."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`old` -> `new` within `symbol`, to be killed by one of `tests` (files or tests, the cheapest
    first).

    `symbol` is the dotted name of a function, method, class or module-level constant of `bass`, as
    short as is unique: `Sequences.commit`, `caches.paged.BLOCK`. `old` and `new` are expressions or
    whole statements, compared as syntax trees: formatting and comments do not matter, and `old`
    occurs once in the symbol. An empty `new` removes the statements. `trap` is the number in the
    table of docs/correctness.md, 0 for those of our own.
    """

    name: str
    symbol: str
    old: str
    new: str
    tests: tuple[str, ...]
    trap: int = 0
