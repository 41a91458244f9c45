"""Sources: filling a parameter and splitting it again are inverse, and every fused row comes from
where the checkpoint keeps it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bass.models import FAMILIES
from bass.models.codegen import CodeGen, CodeGenConfig
from bass.models.decoder import CausalDecoder
from bass.models.gpt_bigcode import GPTBigCode, GPTBigCodeConfig
from bass.models.gpt_neox import GPTNeoX, GPTNeoXConfig
from bass.models.gptj import GPTJ, GPTJConfig
from bass.models.sources import WeightSource
from models.cases import CASES, Case

Row = tuple[str, int, int]  # "q", "k" or "v"; head; dimension
PARTS = 4  # of CodeGen's checkpoints


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
def test_filling_gives_back_what_was_split(kind: Kind) -> None:
    source, parts = kind.made()
    parameter = filled(source, parts)
    assert torch.equal(filled(source, source.split(parameter)), parameter)


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


def stored_per_kind(heads: int, dim: int) -> Iterator[Row]:
    """q, k and v one after the other (GPT-J)."""
    for kind in "qkv":
        for head in range(heads):
            for d in range(dim):
                yield kind, head, d


def stored_per_head(heads: int, dim: int) -> Iterator[Row]:
    """Each head with its own q, k and v (GPT-NeoX, GPT-BigCode)."""
    for head in range(heads):
        for kind in "qkv":
            for d in range(dim):
                yield kind, head, d


def stored_per_part(heads: int, dim: int) -> Iterator[Row]:
    """Four parts, each with a quarter of the heads' q, then v, then k (CodeGen)."""
    for part in range(PARTS):
        for kind in "qvk":
            for head in range(part * heads // PARTS, (part + 1) * heads // PARTS):
                for d in range(dim):
                    yield kind, head, d


def rows_of(family: type[CausalDecoder], config: object, stored: Iterator[Row]) -> dict[Row, int]:
    """Our (kind, head, dimension) -> the checkpoint's dimension, after a check that kind and head
    are the right ones.
    """
    of_bias = family.sources(config).get("blocks.0.attention.qkv.bias")
    rows = family.sources(config)["blocks.0.attention.qkv.weight"].rows
    assert rows is not None
    assert of_bias is None or (of_bias.rows is not None and np.array_equal(of_bias.rows, rows))
    places = list(stored)
    assert sorted(rows) == list(range(len(places)))
    heads = max(head for _, head, _ in places) + 1
    found = {}
    for ours, place in zip(stored_per_kind(heads, len(places) // (3 * heads)), rows, strict=True):
        kind, head, d = places[place]
        assert (kind, head) == ours[:2]
        found[ours] = d
    return found


def check_pairs(
    rows: dict[Row, int], heads: int, dim: int, rotary_dim: int, interleaved: bool
) -> None:
    """Dimensions i and i + dim / 2 of ours are the checkpoint's pair i, for q and k alike; those of
    v are left in place.
    """
    for head in range(heads):
        for kind in "qk":
            for i in range(rotary_dim // 2):
                pair = (2 * i, 2 * i + 1) if interleaved else (i, i + rotary_dim // 2)
                assert (rows[kind, head, i], rows[kind, head, i + dim // 2]) == pair
        assert [rows["q", head, d] for d in range(dim)] == [rows["k", head, d] for d in range(dim)]
        assert [rows["v", head, d] for d in range(dim)] == list(range(dim))


@st.composite
def rotary_heads(draw: st.DrawFn) -> tuple[int, int, int]:
    """Heads, in parts of as many; dimensions of each; how many of them are rotated."""
    dim = 2 * draw(st.integers(1, 6))
    return draw(st.integers(1, 3)), dim, 2 * draw(st.integers(1, dim // 2))


@given(rotary_heads())
def test_rows_of_gptj_go_where_they_belong(sizes: tuple[int, int, int]) -> None:
    heads, dim, rotary_dim = sizes
    config = GPTJConfig(n_embd=heads * dim, n_head=heads, n_layer=1, rotary_dim=rotary_dim)
    check_pairs(
        rows_of(GPTJ, config, stored_per_kind(heads, dim)), heads, dim, rotary_dim, interleaved=True
    )


@given(rotary_heads())
def test_rows_of_codegen_go_where_they_belong(sizes: tuple[int, int, int]) -> None:
    heads, dim, rotary_dim = PARTS * sizes[0], *sizes[1:]
    config = CodeGenConfig(n_embd=heads * dim, n_head=heads, n_layer=1, rotary_dim=rotary_dim)
    check_pairs(
        rows_of(CodeGen, config, stored_per_part(heads, dim)),
        heads,
        dim,
        rotary_dim,
        interleaved=True,
    )


@given(rotary_heads())
def test_rows_of_gpt_neox_go_where_they_belong(sizes: tuple[int, int, int]) -> None:
    heads, dim, rotary_dim = sizes
    share = (rotary_dim + 0.5) / dim  # what is not a whole dimension is cut off
    config = GPTNeoXConfig(
        hidden_size=heads * dim,
        num_attention_heads=heads,
        num_hidden_layers=1,
        intermediate_size=8,
        partial_rotary_factor=share,
    )
    assert config.rotary_dim == rotary_dim
    check_pairs(
        rows_of(GPTNeoX, config, stored_per_head(heads, dim)),
        heads,
        dim,
        rotary_dim,
        interleaved=False,
    )


@given(rotary_heads())
def test_rows_of_gpt_bigcode_go_where_they_belong(sizes: tuple[int, int, int]) -> None:
    heads, dim, _ = sizes
    fused = GPTBigCodeConfig(n_embd=heads * dim, n_head=heads, n_layer=1, multi_query=False)
    rows = rows_of(GPTBigCode, fused, stored_per_head(heads, dim))
    assert all(d == ours[2] for ours, d in rows.items())
    shared = GPTBigCodeConfig(n_embd=heads * dim, n_head=heads, n_layer=1)
    source = GPTBigCode.sources(shared)["blocks.0.attention.qkv.weight"]
    assert source.rows is None
    assert source.sizes == ((heads + 2) * dim,)


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
