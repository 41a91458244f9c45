"""Tier 3:

Hopper's products of few rows: how they are divided; that they equal their twins, emulated and on
such a GPU.
"""

import itertools
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bass.kernels.hopper.gemm import ROOM
from bass.kernels.triton import residual_norm
from bass.kernels.triton.launch import kept_zeros
from bass.kernels.values import Norm
from support import twins
from support.gluon import emulated

ahead: Any = pytest.importorskip("bass.kernels.hopper.gemm")  # needs the Gluon of Triton 3.6

H200 = 132
# out, in
SHAPES = [
    (12288, 4096),
    (4096, 4096),
    (4096, 11008),
    (22016, 4096),
    (2048, 2048),
    (11264, 2048),
    (6144, 4096),
    (51200, 2048),
]


def pieces_of(cut: Any, tiles: int) -> list[list[tuple[int, list[int]]]]:
    """What each program takes, in its order:

    (tile, blocks of it), by the kernel's own arithmetic.
    """
    names = _block.__globals__
    kept, names["gl"] = (
        names["gl"],
        SimpleNamespace(maximum=max, where=lambda condition, yes, no: yes if condition else no),
    )
    try:
        total, taken = tiles * cut.blocks, []
        for program in range(cut.programs):
            begin, end = program * total // cut.programs, (program + 1) * total // cut.programs
            pieces: list[tuple[int, list[int]]] = []
            done = True
            for i in range(end - begin):
                tile, block, first, ends = _block(i, begin, end, cut.blocks)
                assert first == done, (program, i)
                if first:
                    pieces.append((tile, []))
                assert pieces[-1][0] == tile
                pieces[-1][1].append(block)
                done = ends
            assert done
            taken.append(pieces)
    finally:
        names["gl"] = kept
    return taken


_block = ahead._block.fn  # as Python, of numbers


def check(n: int, k: int, rows: int, size: int, gated: bool, multiprocessors: int) -> None:
    cut, tiles = ahead.cut_for(n, k, rows, size, gated, multiprocessors), -(-n // ahead.TILE)
    assert 1 <= cut.programs <= multiprocessors
    assert cut.blocks * cut.width >= k > (cut.blocks - 1) * cut.width
    stage = (ahead.TILE * (2 if gated else 1) + cut.block_rows) * cut.width * size
    assert cut.stages >= 2
    # Up to 8 rows attention must find room beside; two blocks of more rows must be within the 227
    # KB that a program has.
    assert cut.stages * stage <= (ROOM if rows <= 8 or cut.stages > 2 else 200_000)
    taken = pieces_of(cut, tiles)
    by_tile = defaultdict(list)
    for program, pieces in enumerate(taken):
        for number, (tile, blocks) in enumerate(pieces):
            by_tile[tile].append((program, blocks))
            if blocks[-1] != cut.blocks - 1:  # a piece that is given away
                assert number == 0
    assert sorted(by_tile) == list(range(tiles))
    for tile, pieces in by_tile.items():
        assert [block for _, blocks in sorted(pieces) for block in blocks] == list(
            range(cut.blocks)
        )
        programs = sorted(program for program, _ in pieces)
        total = tiles * cut.blocks
        assert programs == list(
            range(((tile * cut.blocks + 1) * cut.programs - 1) // total, programs[-1] + 1)
        )
        assert len(pieces) <= cut.pieces
    loads = [sum(len(blocks) for _, blocks in pieces) for pieces in taken]
    assert max(loads) - min(loads) <= 1


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_every_block_is_taken_once_and_pieces_are_given_before_anything_else(
    n: int, k: int
) -> None:
    """Every multiprocessor gets equally much, of a tile's pieces the last has its end, and the
    programs of one are neighbours.
    """
    for rows, size, gated in itertools.product((1, 8, 9, 32), (1, 2), (False, True)):
        check(n // 2 if gated else n, k, rows, size, gated, H200)


@given(
    st.integers(1, 700),
    st.integers(1, 900),
    st.integers(1, 32),
    st.sampled_from([1, 2]),
    st.booleans(),
    st.integers(1, 148),
)
def test_the_same_of_any_product(
    n: int, k: int, rows: int, size: int, gated: bool, multiprocessors: int
) -> None:
    check(n, k, rows, size, gated, multiprocessors)


@pytest.mark.parametrize(("n", "k"), [(3072, 2048), (6144, 2048), (6144, 4096), (12288, 4096)])
def test_queries_keys_and_values_are_sums_of_two_at_most(n: int, k: int) -> None:
    """Attention reads all of them. As many programs as the largest share asks for, and no more."""
    for rows in (1, 8, 32):
        assert ahead.cut_for(n, k, rows, 2, False, H200).pieces <= 2


@pytest.mark.parametrize(
    ("n", "k", "size"), [(896, 896, 2), (768, 768, 2), (1024, 1024, 2), (1024, 1024, 1)]
)
def test_a_small_matrix_still_gives_many_multiprocessors_something_to_do(
    n: int, k: int, size: int
) -> None:
    assert ahead.cut_for(n, k, 8, size, False, H200).programs >= H200 // 4


def test_only_aligned_rows_of_one_type_are_served() -> None:
    x, w = torch.zeros(8, 64, dtype=torch.bfloat16), torch.zeros(128, 64, dtype=torch.bfloat16)
    assert ahead.supports(x, w)
    assert not ahead.supports(x[:0], w)
    assert not ahead.supports(x.float(), w.float())
    assert not ahead.supports(x, w.to(torch.int8))
    assert not ahead.supports(torch.zeros(33, 64, dtype=torch.bfloat16), w)
    assert not ahead.supports(x[:, :60], w[:, :60].contiguous())
    assert not ahead.supports(torch.zeros(8 * 64 + 1, dtype=torch.bfloat16)[1:].view(8, 64), w)
    assert not ahead.supports(x, torch.zeros(64, 128, dtype=torch.bfloat16).T)


def drawn(rows: int, size: int, kind: torch.dtype, device: torch.device, seed: int) -> torch.Tensor:
    x = torch.randn(rows, size, generator=torch.Generator(device).manual_seed(seed), device=device)
    if kind == torch.int8:
        return (30 * x).round().clamp(-127, 127).to(kind)
    return x.to(kind)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.int8], ids=str)
@pytest.mark.parametrize("multiprocessors", [5, 12])
def test_products_equal_their_twins_wherever_they_are_cut(
    kind: torch.dtype, multiprocessors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs with a tile each, several, or pieces of some, emulated: nothing of x is read before
    the wait, no copy before it has come.
    """
    monkeypatch.setattr(ahead, "multiprocessors", lambda _: multiprocessors)
    sizes = [(64, 64), (130, 520), (600, 1544), (600, 64), (64, 1544), (384, 520), (192, 2056)]
    for (n, k), rows in itertools.product(sizes, (1, 5, 31)):
        x, w = (
            drawn(rows, k, kind, torch.device("cpu"), 0),
            drawn(n, k, kind, torch.device("cpu"), 1),
        )
        x_scale, w_scale, bias = (
            torch.rand(rows) / 30 + 0.01,
            torch.rand(n) / 30 + 0.01,
            torch.randn(n),
        )
        with emulated(ahead, [x, x_scale]):
            y = ahead.linear(x, w, bias, x_scale, w_scale, torch.float32)
            value = ahead.gated(x, w, "gelu_tanh", x_scale, w_scale, torch.float32)
            alone = ahead.linear(x, w, bias, x_scale, w_scale, torch.float32, "relu")
        meant = x.double() * x_scale.double()[:, None], w.double() * w_scale.double()[:, None]
        for found, expected in (
            (y.sum(0), twins.linear(*meant, bias)),
            (value, twins.gated(*meant, "gelu_tanh")),
            (alone[0], twins.linear(*meant, bias).relu()),
        ):
            assert (found.double() - expected).norm() <= 1e-5 * expected.norm(), (n, k, rows)
    assert not kept_zeros("product", multiprocessors, torch.device("cpu")).any()


KINDS = pytest.mark.parametrize(
    "kind", [torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn], ids=str
)


@pytest.mark.gpu
@KINDS
@pytest.mark.parametrize(
    ("n", "k"),
    [
        (64, 64),
        (130, 144),
        (4096, 1024),
        (2048, 8192),
        (8512, 528),
        (8512, 1040),
        (9000, 512),
        (12288, 4096),
        (17024, 272),
    ],
)
def test_products_on_hopper_equal_their_twins(
    n: int, k: int, kind: torch.dtype, hopper: torch.device
) -> None:
    """With scales and bias, by programs that have a tile each, several, or pieces of some; and
    again, bit for bit.
    """
    tolerance = {torch.int8: 1e-6, torch.float8_e4m3fn: 3e-3}.get(kind, 1e-5)
    for rows in (1, 5, 8, 16, 31):
        x, w = drawn(rows, k, kind, hopper, 0), drawn(n, k, kind, hopper, 1)
        x_scale, w_scale = (torch.rand(size, device=hopper) / 30 + 0.01 for size in (rows, n))
        bias = torch.randn(n, device=hopper)
        assert ahead.supports(x, w)
        y = ahead.linear(x, w, bias, x_scale, w_scale, torch.float32)
        meant = x.double() * x_scale.double()[:, None], w.double() * w_scale.double()[:, None]
        expected = twins.linear(*meant, bias)
        assert (y.double().sum(0) - expected).norm() <= tolerance * expected.norm()
        assert torch.equal(y, ahead.linear(x, w, bias, x_scale, w_scale, torch.float32))
        plain = ahead.linear(x, w, None, None, None, torch.float32).sum(0)
        assert (
            plain.double() - x.double() @ w.double().T
        ).norm() <= tolerance * plain.double().norm()
        for act in ("silu", "gelu", "gelu_tanh", "relu", "relu2"):
            [alone] = ahead.linear(x, w, bias, x_scale, w_scale, torch.float32, act)
            expected = twins.ACTS[act](twins.linear(*meant, bias))
            # the relative error of a square is twice that of its root
            size = 2 * expected.norm() if act == "relu2" else y.double().norm()
            assert (alone.double() - expected).norm() <= tolerance * size
            value = ahead.gated(x, w, act, x_scale / 10, w_scale, torch.float32)
            expected = twins.gated(meant[0] / 10, meant[1], act)
            assert (value.double() - expected).norm() <= tolerance * expected.norm()
            assert torch.equal(value, ahead.gated(x, w, act, x_scale / 10, w_scale, torch.float32))
    assert not kept_zeros("product", ahead.multiprocessors(hopper), hopper).any()


@pytest.mark.gpu
def test_a_chain_of_products_in_a_graph_is_the_chain_one_by_one(hopper: torch.device) -> None:
    """Each waits for what the one before writes, whatever of its own it asked for earlier.

    Buffers are poisoned in between.
    """
    ws = [
        drawn(n, k, torch.bfloat16, hopper, seed) / 45
        for seed, (n, k) in enumerate([(6144, 2048), (2048, 3072), (11264, 2048), (2048, 5632)])
    ]
    x = drawn(8, 2048, torch.bfloat16, hopper, 9)

    def layer(x: torch.Tensor, wait: bool) -> torch.Tensor:
        for i, w in enumerate(ws):
            y = (
                ahead.gated(x, w, "silu", None, None, x.dtype)
                if i % 2 == 0
                else ahead.linear(x, w, None, None, None, x.dtype).sum(0).to(torch.bfloat16)
            )
            x = (
                y
                if i % 2 == 0
                else residual_norm.add_norm(
                    y, None, Norm(torch.ones(y.shape[1], device=hopper, dtype=y.dtype), 1e-5)
                )[1]
            )
            if wait:
                torch.cuda.synchronize()
        return x

    expected = layer(layer(x, True), True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = layer(layer(x, False), False)
    for _ in range(20):
        found.fill_(float("nan"))
        graph.replay()
        assert torch.equal(found, expected)


@pytest.mark.gpu
def test_rows_that_are_not_there_are_neither_read_nor_written(hopper: torch.device) -> None:
    """Around x and around the result all is NaN, and stays so."""
    around = torch.full((40, 1024), float("nan"), dtype=torch.bfloat16, device=hopper)
    x, w = around[3:8], drawn(4096, 1024, torch.bfloat16, hopper, 1)
    x.copy_(drawn(5, 1024, torch.bfloat16, hopper, 0))
    y = ahead.linear(x, w, None, None, None, torch.float32)
    assert y.isfinite().all()
    assert around[:3].isnan().all()
    assert around[8:].isnan().all()
