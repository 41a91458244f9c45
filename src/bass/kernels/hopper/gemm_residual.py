"""A product that adds itself to the residual stream, on Hopper, and prepares the next norm.

    s' = s + x wᵀ + b [+ x₂ w₂ᵀ + b₂] ;  results: s', s' · weight, and the sums of the squares of s'

The next product finishes the norm (`gemm.PendingNorm`), so it has no kernel of its own. For a
LayerNorm there are also the sums of s', and weight and shift as two more rows of s' · weight. The
second product is that of a parallel block (attention and MLP read the same norm).

As in `gemm.py`, a program prefetches weights before the previous kernel ends. It has whole rows of
w, so there are no partial sums: tiles are narrow, at most one for each multiprocessor. Each warp
multiplies a share of a block's columns; the shares are added at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from bass.kernels.hopper.gemm import (
    ROOM,
    PendingNorm,
    descriptor,
    multiprocessors,
    rows_in_block,
    supports_matrix,
)
from bass.kernels.values import Norm

MOST_ROWS = 16  # of x; with a tile of 32, 32 rows of x are as many bytes as w
TILES = (16, 32, 64)  # rows of w; the smallest of which there is one for each multiprocessor
BLOCK = 16384  # bytes of a tile per load
# Bytes a microsecond that a multiprocessor takes in, 1.3 times its share of the memory's bandwidth,
# and that products in equal shares read from memory. A norm of its own takes NORM microseconds, the
# boundary between two products BETWEEN.
EACH, ALL, NORM, BETWEEN = 42e3, 4.0e6, 4.2, 2.5
SHARES = 4  # of a block's columns, one for each warp


@gluon.jit
@no_type_check  # Gluon reads the source, not the function
def _load(
    first_map, second_map, bar, to, row, block, blocks, live, WIDTH: gl.constexpr, TWO: gl.constexpr
):
    """A block of the first matrix; beyond its last one, of the second."""
    if TWO:
        second = live & (block >= blocks)
        at = (block - blocks) * WIDTH
        tma.async_copy_global_to_shared(second_map, [row, at], bar, to, second)
        live = live & (block < blocks)
    tma.async_copy_global_to_shared(first_map, [row, block * WIDTH], bar, to, live)


@gluon.jit(do_not_specialize=["rows", "n_size", "blocks", "every"])
@no_type_check
def _added(
    w_map, x_map, bias, second_w_map, second_x_map, second_bias, stream, weight, shift, y, weighted,
    squares, sums, rows, n_size, blocks, every,
    ROWS: gl.constexpr, TILE: gl.constexpr, WIDTH: gl.constexpr, STAGES: gl.constexpr,
    SHARES: gl.constexpr, TWO: gl.constexpr, BIAS: gl.constexpr, SECOND_BIAS: gl.constexpr,
    KIND: gl.constexpr, WEIGHT: gl.constexpr, SHIFT: gl.constexpr,
):  # fmt: skip
    kind: gl.constexpr = w_map.dtype
    layout: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [SHARES, 1, 1], [1, 16, 8])
    of_sums: gl.constexpr = gl.BlockedLayout([SHARES, 1, 1], [1, 16, 2], [1, 1, SHARES], [1, 2, 0])
    flat: gl.constexpr = gl.SliceLayout(0, of_sums)
    each: gl.constexpr = WIDTH // SHARES
    stage_bytes: gl.constexpr = (TILE + ROWS) * WIDTH * 2
    tile = gl.program_id(0)
    row = tile * TILE
    w_tiles = gl.allocate_shared_memory(kind, [STAGES, TILE, WIDTH], w_map.layout)
    x_tiles = gl.allocate_shared_memory(kind, [STAGES, ROWS, WIDTH], x_map.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
    for stage in gl.static_range(STAGES):
        here, w_tile = full.index(stage), w_tiles.index(stage)
        mbarrier.expect(here, stage_bytes, stage < every)
        _load(w_map, second_w_map, here, w_tile, row, stage, blocks, stage < every, WIDTH, TWO)
    n, m = (
        row + gl.arange(0, TILE, gl.SliceLayout(1, flat)),
        gl.arange(0, ROWS, gl.SliceLayout(0, flat)),
    )
    live_n = n < n_size
    place, written = m[None, :] * n_size + n[:, None], live_n[:, None] & (m < rows)[None, :]
    weights = gl.full([TILE], 1.0, gl.float32, gl.SliceLayout(1, flat))
    shifts = gl.zeros([TILE], gl.float32, gl.SliceLayout(1, flat))
    if WEIGHT:
        weights = gl.load(weight + n, mask=live_n, other=0.0).to(gl.float32)
        if KIND == "offset_rms":
            weights += 1.0
    if SHIFT:
        shifts = gl.load(shift + n, mask=live_n, other=0.0).to(gl.float32)
    gdc_launch_dependents()
    gdc_wait()
    for stage in gl.static_range(STAGES):
        here, x_tile = full.index(stage), x_tiles.index(stage)
        _load(x_map, second_x_map, here, x_tile, 0, stage, blocks, stage < every, WIDTH, TWO)
    value = gl.load(stream + place, mask=written, other=0.0).to(gl.float32)
    total = gl.zeros([SHARES, TILE, ROWS], gl.float32, layout)
    for block in range(every):
        slot = block % STAGES
        here, w_tile, x_tile = full.index(slot), w_tiles.index(slot), x_tiles.index(slot)
        mbarrier.wait(here, block // STAGES & 1)
        w = (
            w_tile.reshape([TILE, SHARES, each])
            .permute((1, 0, 2))
            .load(gl.DotOperandLayout(0, layout, 2))
        )
        x = (
            x_tile.reshape([ROWS, SHARES, each])
            .permute((1, 2, 0))
            .load(gl.DotOperandLayout(1, layout, 2))
        )
        total = mma_v2(w, x, total)
        later = block + STAGES
        if later < every:
            mbarrier.expect(here, stage_bytes)
            _load(w_map, second_w_map, here, w_tile, row, later, blocks, True, WIDTH, TWO)
            _load(x_map, second_x_map, here, x_tile, 0, later, blocks, True, WIDTH, TWO)
    shares = gl.allocate_shared_memory(
        gl.float32, [SHARES, TILE, ROWS], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0]), total
    )
    value += gl.sum(shares.load(of_sums), 0)
    if BIAS:
        value += gl.load(bias + n, mask=live_n, other=0.0).to(gl.float32)[:, None]
    if SECOND_BIAS:
        value += gl.load(second_bias + n, mask=live_n, other=0.0).to(gl.float32)[:, None]
    rounded = value.to(y.dtype.element_ty)
    gl.store(y + place, rounded, mask=written)
    value = gl.where(written, rounded.to(gl.float32), gl.zeros_like(value))
    gl.store(weighted + place, (value * weights[:, None]).to(y.dtype.element_ty), mask=written)
    gl.store(squares + tile * rows + m, gl.sum(value * value, 0), mask=m < rows)
    if KIND == "layer":
        gl.store(sums + tile * rows + m, gl.sum(value, 0), mask=m < rows)
        gl.store(weighted + rows * n_size + n, weights.to(y.dtype.element_ty), mask=live_n)
        gl.store(weighted + (rows + 1) * n_size + n, shifts.to(y.dtype.element_ty), mask=live_n)
    # only here, so that `shares` is not put where barriers are
    for stage in gl.static_range(STAGES):
        mbarrier.invalidate(full.index(stage))


@dataclass(frozen=True)
class Term:
    """A product x wᵀ + bias."""

    x: Float[Tensor, "rows in"]
    w: Float[Tensor, "out in"]
    bias: Float[Tensor, " out"] | None = None


@dataclass(frozen=True)
class Added:
    """A residual stream with products added, and the input of the next product: a norm of it."""

    stream: Float[Tensor, "rows out"]
    weighted: Float[Tensor, "rows_of_x out"]  # two more rows for a LayerNorm
    norm: PendingNorm


def tile_for(n: int, ks: Sequence[int], rows: int, processors: int) -> int | None:
    """Rows of w of a program, for one or two matrices of n rows and `ks` columns; None where
    products in equal shares and a norm of its own take less time.
    """
    k, saved = sum(ks), NORM + BETWEEN * (len(ks) - 1)
    for tile in TILES:
        share = 2 * (tile + rows_in_block(rows)) * k  # bytes
        if -(-n // tile) <= processors:
            return tile if share / EACH <= 2 * n * k / ALL + saved else None
    return None


def supports(rows: int, first: Tensor, *more: Tensor) -> bool:
    """Whether the kernel supports this number of rows and one or two matrices [out, in], and
    divides them evenly.
    """
    n, matrices = len(first), (first, *more)
    ks = [w.shape[1] for w in matrices]
    return (
        0 < rows <= MOST_ROWS
        and len(matrices) <= 2
        and all(w.dtype == torch.bfloat16 and supports_matrix(w) for w in matrices)
        and all(len(w) == n for w in matrices)
        and tile_for(n, ks, rows, multiprocessors(first.device)) is not None
    )


def added(terms: Sequence[Term], stream: Float[Tensor, "rows out"], norm: Norm) -> Added:
    """The stream with one term or two added, for a norm, for inputs that it `supports`."""
    stream = stream.contiguous()
    xs = [_readable(term) for term in terms]
    rows, n = stream.shape
    tile = tile_for(n, [x.shape[1] for x in xs], rows, multiprocessors(stream.device))
    assert tile is not None
    block_rows, width, tiles = rows_in_block(rows), BLOCK // (2 * tile), -(-n // tile)
    blocks = [-(-x.shape[1] // width) for x in xs]
    stages = max(2, min(sum(blocks), ROOM // (2 * (tile + block_rows) * width)))
    layer, two = norm.kind == "layer", len(terms) == 2
    y, weighted = torch.empty_like(stream), stream.new_empty(rows + 2 * layer, n)
    squares, sums = stream.new_empty(2, tiles, rows, dtype=torch.float32)
    maps = [
        (descriptor(term.w, tile, width), descriptor(x, block_rows, width), term.bias)
        for term, x in zip(terms, xs, strict=True)
    ]
    launch: Any = _added[(tiles,)]
    with torch.cuda.device_of(stream):
        launch(
            *maps[0], *(maps[1] if two else (None, None, None)), stream, norm.weight, norm.bias, y,
            weighted, squares, sums, rows, n, blocks[0], sum(blocks),
            ROWS=block_rows, TILE=tile, WIDTH=width, STAGES=stages, SHARES=SHARES, TWO=two,
            BIAS=terms[0].bias is not None, SECOND_BIAS=two and terms[1].bias is not None,
            KIND=norm.kind, WEIGHT=norm.weight is not None, SHIFT=norm.bias is not None,
            num_warps=SHARES, launch_pdl=True,
        )  # fmt: skip
    return Added(y, weighted, PendingNorm(squares, norm.eps, sums if layer else None))


def _readable(term: Term) -> Float[Tensor, "rows in"]:
    """The rows in the matrix's type, aligned: a backend of the user's own may give others."""
    x = term.x.to(term.w.dtype)
    return x if supports_matrix(x) else x.clone(memory_format=torch.contiguous_format)
