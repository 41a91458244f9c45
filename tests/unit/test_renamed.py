"""What was public under another name is named in one sentence."""

import importlib
from typing import Any, ClassVar

import numpy as np
import pytest

from bass.interfaces import DraftLengthPolicy, RowStore, Scorer
from bass.policies import Fixed
from bass.records import RowAssignment


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("records", "Room", "CacheBudget"),
        ("records", "Seats", "RowAssignment"),
        ("interfaces", "Workbench", "DrafterContext"),
        ("testing", "LawBroken", "ExactnessError"),
    ],
)
def test_an_old_name_is_an_error_that_gives_the_new_one(module: str, old: str, new: str) -> None:
    found = importlib.import_module(f"bass.{module}")
    with pytest.raises(ImportError, match=rf"`bass.{module}.{old}` is now `bass.{module}.{new}`"):
        getattr(found, old)
    assert hasattr(found, new)


def test_an_old_module_is_an_error_that_gives_the_new_place() -> None:
    with pytest.raises(ImportError, match=r"`bass.results` is now `bass.api.results`"):
        getattr(importlib.import_module("bass"), "results")  # noqa: B009
    assert importlib.import_module("bass.api.results")


def test_old_fields_of_records_are_named() -> None:
    with pytest.raises(AttributeError, match="`extents`: it is now `capacities`"):
        _ = RowAssignment.of(np.array([3])).extents


def test_a_policy_that_says_steady_keeps_working() -> None:
    with pytest.warns(DeprecationWarning, match="`Mine.steady` is now `constant_length`"):

        class Mine(DraftLengthPolicy[int]):
            steady: ClassVar[bool] = True

    assert Mine.constant_length
    assert Fixed.constant_length


def test_a_store_that_takes_tokens_and_positions_is_told_of_windows() -> None:
    with pytest.raises(TypeError, match=r"`Old.fill` takes .* now `fill\(window\)`"):

        class Old(RowStore):
            def fill(self, tokens: Any, positions: Any, span: int, start: int) -> Any: ...

    with pytest.raises(TypeError, match=r"`OldScorer.__call__` takes .* `bass.records.Window`"):

        class OldScorer(Scorer):
            def __call__(self, tokens: Any, positions: Any, span: int) -> Any: ...
