"""Every family's variants, as arguments of the configs of `transformers`.

A file per family, found by its name.
"""

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Any

from support.matrix import by_day

COMMON: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "bos_token_id": 1,
    "eos_token_id": 96,
    "pad_token_id": 0,
}


@dataclass(frozen=True, eq=False)  # with a hash, pytest groups the tests of a case
class Case:
    """One variant of one family."""

    family: str
    variant: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.family}: {self.variant}"


def all_cases() -> list[Case]:
    """The variants of every file beside this one."""
    cases = []
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        found = importlib.import_module(f"{__name__}.{module}")
        common = (
            COMMON
            if getattr(found, "USES_COMMON", True)
            else {k: COMMON[k] for k in ("vocab_size", "bos_token_id", "eos_token_id")}
        )
        cases += [
            Case(found.FAMILY, variant, {**common, **arguments})
            for variant, arguments in found.CASES.items()
        ]
    return cases


CASES = all_cases()
FIRST = {case.family: case for case in reversed(CASES)}  # by family


def cases_by_day() -> list[Any]:
    """The cases as parameters: the first of each family in every run, the others `nightly`."""
    return by_day(CASES, FIRST.values())
