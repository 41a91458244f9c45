"""Sources: filling a parameter and splitting it again are inverse, and every fused row comes from
where the checkpoint keeps it.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bass.models import FAMILIES
from bass.models.sources import WeightSource
from models.cases import CASES, Case


@dataclass(frozen=True)
class Kind:
    """A source with so many rows in each of its tensors, and columns, if it is a matrix."""

    sizes: list[int]
    columns: int | None
    rows: list[int] | None
    transposed: bool

    def made(self) -> tuple[WeightSource, list[Tensor]]:
        """The source, and what a checkpoint may hold for it: all numbers different."""
        shapes = [(size,) if self.columns is None else (size, self.columns) for size in self.sizes]
        shapes = [shape[::-1] for shape in shapes] if self.transposed else shapes
        parts = [
            torch.arange(100.0 * i, 100 * i + math.prod(shape)).view(shape)
            for i, shape in enumerate(shapes)
        ]
        rows = None if self.rows is None else np.array(self.rows)
        return WeightSource(
            tuple(f"part{i}" for i in range(len(shapes))), tuple(self.sizes), rows, self.transposed
        ), parts


@st.composite
def kinds(draw: st.DrawFn) -> Kind:
    """Every combination of stacked, permuted, repeated and transposed."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    columns = draw(st.sampled_from([None, 1, 4]))
    every = [*range(sum(sizes))]
    orders = st.lists(st.sampled_from(every), max_size=4).flatmap(
        lambda repeated: st.permutations(every + repeated)
    )
    return Kind(
        sizes, columns, draw(st.none() | orders), columns is not None and draw(st.booleans())
    )


def filled(source: WeightSource, parts: list[Tensor], dtype: torch.dtype = torch.float32) -> Tensor:
    """The parameter that the parts make up."""
    columns = [] if parts[0].dim() == 1 else [parts[0].shape[0 if source.transposed else 1]]
    parameter = torch.empty(
        (sum(source.sizes) if source.rows is None else len(source.rows), *columns), dtype=dtype
    )
    source.fill(parameter, parts)
    return parameter


@given(kinds())
def test_splitting_gives_back_what_was_filled_in(kind: Kind) -> None:
    source, parts = kind.made()
    for again, part in zip(source.split(filled(source, parts)), parts, strict=True):
        assert torch.equal(again, part)


@given(kinds())
def test_the_shapes_are_those_that_a_checkpoint_stores(kind: Kind) -> None:
    source, parts = kind.made()
    assert source.shapes(filled(source, parts).shape) == [tuple(part.shape) for part in parts]


@given(kinds())
def test_row_i_of_a_parameter_is_row_i_of_the_order_in_the_stack(kind: Kind) -> None:
    source, parts = kind.made()
    stack = [row for part in parts for row in (part.T if source.transposed else part)]
    order = range(len(stack)) if source.rows is None else source.rows
    for ours, place in zip(filled(source, parts), order, strict=True):
        assert torch.equal(ours, stack[place])


@given(kinds())
def test_filling_converts_to_the_type_of_the_parameter(kind: Kind) -> None:
    source, parts = kind.made()
    expected = filled(source, parts).to(torch.bfloat16)
    assert torch.equal(filled(source, [part.double() for part in parts], torch.bfloat16), expected)


@pytest.mark.parametrize("case", [case for case in CASES if case.family in FAMILIES], ids=str)
def test_every_parameter_has_a_source_and_every_source_a_parameter(case: Case) -> None:
    family = FAMILIES[case.family]
    config = family.config_type.from_json(case.arguments)
    decoder = family(config, torch.device("meta"), torch.float32)  # pyright: ignore[reportCallIssue]
    found = family.sources(config)
    assert found.keys() == dict(decoder.named_parameters()).keys()
    tensors = [name for source in found.values() for name in source.tensors]
    assert len(tensors) == len(set(tensors))
    for source in found.values():
        assert len(source.tensors) == len(source.sizes)
        assert source.rows is None or set(source.rows) == set(range(sum(source.sizes)))
