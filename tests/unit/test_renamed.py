"""What was public under another name is named in one sentence."""

import importlib.util
import re
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy, RowStore, Scorer
from bass.policies import Fixed
from bass.policies.wrappers import Recording
from bass.records import RowAssignment, Sequences
from bass.renamed import MODULES


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


@pytest.mark.parametrize(("old", "new"), MODULES.items())
def test_an_old_module_is_an_error_that_gives_the_new_place(old: str, new: str) -> None:
    package, _, name = old.rpartition(".")
    says = rf"^`{re.escape(old)}` is now `{re.escape(new)}`\.$"
    for line in (f"import {old}", f"from {package} import {name}", f"from {old} import anything"):
        with pytest.raises(ImportError, match=says):
            exec(line)
    assert importlib.util.find_spec(new) is not None


def test_a_module_of_the_package_is_an_error_as_an_attribute_too() -> None:
    with pytest.raises(ImportError, match=r"`bass.hub` is now `bass.checkpoints.hub`"):
        getattr(importlib.import_module("bass"), "hub")  # noqa: B009


def test_what_was_never_there_is_what_it_is_elsewhere() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'bass.nothing'"):
        importlib.import_module("bass.nothing")


def test_old_fields_of_records_are_named() -> None:
    with pytest.raises(AttributeError, match="`extents`: it is now `capacities`"):
        _ = RowAssignment.of(np.array([3])).extents
    feedback = Feedback(*np.zeros((2, 1), int), np.ones(1, bool), 0.1)
    with pytest.raises(AttributeError, match="`asked`: it is now `requested`"):
        _ = Recording(np.array([3]), feedback).asked


@pytest.mark.parametrize(
    ("name", "new"),
    [("eos", "`end_tokens`"), ("last", "`bass.ops.batch_state.last`"), ("commit", "commit`")],
)
def test_old_names_of_sequences_are_named(name: str, new: str) -> None:
    rows = Sequences.empty(1, 4, [], torch.device("cpu"))
    with pytest.raises(AttributeError, match=f"`{name}`: it is now .*{new}"):
        getattr(rows, name)


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("bass.sampling", "draw", "bass.ops.sampling"),
        ("bass.verifiers.rejection", "accept_probs", "bass.ops.verification"),
        ("bass.models.rope", "speeds", "bass.models.rope.frequencies"),
    ],
)
def test_an_old_function_is_an_error_that_gives_its_new_place(
    module: str, old: str, new: str
) -> None:
    with pytest.raises(ImportError, match=rf"`{module}.{old}` is now `{new}"):
        getattr(importlib.import_module(module), old)


def test_a_policy_that_says_steady_keeps_working() -> None:
    with pytest.warns(DeprecationWarning, match="`Mine.steady` is now `constant_length`"):

        class Mine(DraftLengthPolicy[int]):
            steady: ClassVar[bool] = True

    assert Mine.constant_length
    assert Fixed.constant_length


def test_a_store_that_takes_tokens_and_positions_is_told_of_windows() -> None:
    with pytest.raises(TypeError, match=r"`Old.fill` has the old .* now `fill\(window\)`"):

        class Old(RowStore):
            def fill(self, tokens: Any, positions: Any, span: int, start: int) -> Any: ...

    with pytest.raises(
        TypeError, match=r"`OldScorer.__call__` has the old .* `bass.records.Window`"
    ):

        class OldScorer(Scorer):
            def __call__(self, tokens: Any, positions: Any, span: int) -> Any: ...
