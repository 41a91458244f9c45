"""A product that adds itself to the residual stream, on Hopper, and prepares the next norm.

    s' = s + x wᵀ + b ;  results: s', s' · weight, and the sums of the squares of s'

The next product computes (s' · weight / sqrt(mean(s'²) + eps)) wᵀ as ((s' · weight) wᵀ) /
sqrt(mean(s'²) + eps) (`gemm.Squares`), so the norm has no kernel of its own.

As in `gemm.py`, a program prefetches weights before the previous kernel ends. It has whole rows of
w, so there are no partial sums: tiles are narrow, at most one for each multiprocessor. Each warp
multiplies a share of a block's columns; the shares are added at the end.
"""

from dataclasses import dataclass
from typing import Any, no_type_check

import torch
from jaxtyping import Float, Float32
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from bass.kernels.hopper.gemm import (
    ROOM,
    descriptor,
    multiprocessors,
    rows_in_block,
    supports_matrix,
)

MOST_ROWS = 16  # of x; with a tile of 32, 32 rows of x are as many bytes as w
TILES = (16, 32, 64)  # rows of w
BLOCK = 16384  # bytes of a tile per load
BUSY = 0.7  # of the multiprocessors, at least: each takes in up to 1.3 times its share
SHARES = 4  # of a block's columns, one for each warp


@gluon.jit(do_not_specialize=["rows", "n_size", "blocks"])
@no_type_check  # Gluon reads the source, not the function
def _added(
    w_map, x_map, bias, stream, weight, y, weighted, squares, rows, n_size, blocks,
    ROWS: gl.constexpr, TILE: gl.constexpr, WIDTH: gl.constexpr, STAGES: gl.constexpr,
    SHARES: gl.constexpr, BIAS: gl.constexpr,
):  # fmt: skip
    kind: gl.constexpr = w_map.dtype
    layout: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [SHARES, 1, 1], [1, 16, 8])
    of_sums: gl.constexpr = gl.BlockedLayout([SHARES, 1, 1], [1, 16, 2], [1, 1, SHARES], [1, 2, 0])
    flat: gl.constexpr = gl.SliceLayout(0, of_sums)
    each: gl.constexpr = WIDTH // SHARES
    stage_bytes: gl.constexpr = (TILE + ROWS) * WIDTH * 2
    tile = gl.program_id(0)
    w_tiles = gl.allocate_shared_memory(kind, [STAGES, TILE, WIDTH], w_map.layout)
    x_tiles = gl.allocate_shared_memory(kind, [STAGES, ROWS, WIDTH], x_map.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.expect(full.index(stage), stage_bytes, stage < blocks)
        tma.async_copy_global_to_shared(
            w_map,
            [tile * TILE, stage * WIDTH],
            full.index(stage),
            w_tiles.index(stage),
            stage < blocks,
        )
    n, m = (
        tile * TILE + gl.arange(0, TILE, gl.SliceLayout(1, flat)),
        gl.arange(0, ROWS, gl.SliceLayout(0, flat)),
    )
    place, written = m[None, :] * n_size + n[:, None], (n < n_size)[:, None] & (m < rows)[None, :]
    weights = gl.load(weight + n, mask=n < n_size, other=0.0).to(gl.float32)
    gdc_launch_dependents()
    gdc_wait()
    for stage in gl.static_range(STAGES):
        tma.async_copy_global_to_shared(
            x_map, [0, stage * WIDTH], full.index(stage), x_tiles.index(stage), stage < blocks
        )
    value = gl.load(stream + place, mask=written, other=0.0).to(gl.float32)
    total = gl.zeros([SHARES, TILE, ROWS], gl.float32, layout)
    for block in range(blocks):
        slot = block % STAGES
        here = full.index(slot)
        mbarrier.wait(here, block // STAGES & 1)
        w = (
            w_tiles.index(slot)
            .reshape([TILE, SHARES, each])
            .permute((1, 0, 2))
            .load(gl.DotOperandLayout(0, layout, 2))
        )
        x = (
            x_tiles.index(slot)
            .reshape([ROWS, SHARES, each])
            .permute((1, 2, 0))
            .load(gl.DotOperandLayout(1, layout, 2))
        )
        total = mma_v2(w, x, total)
        if block + STAGES < blocks:
            mbarrier.expect(here, stage_bytes)
            tma.async_copy_global_to_shared(
                w_map, [tile * TILE, (block + STAGES) * WIDTH], here, w_tiles.index(slot)
            )
            tma.async_copy_global_to_shared(
                x_map, [0, (block + STAGES) * WIDTH], here, x_tiles.index(slot)
            )
    sums = gl.allocate_shared_memory(
        gl.float32, [SHARES, TILE, ROWS], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0]), total
    )
    value += gl.sum(sums.load(of_sums), 0)
    if BIAS:
        value += gl.load(bias + n, mask=n < n_size, other=0.0).to(gl.float32)[:, None]
    rounded = value.to(y.dtype.element_ty)
    gl.store(y + place, rounded, mask=written)
    value = gl.where(written, rounded.to(gl.float32), gl.zeros_like(value))
    gl.store(weighted + place, (value * weights[:, None]).to(y.dtype.element_ty), mask=written)
    gl.store(squares + tile * rows + m, gl.sum(value * value, 0), mask=m < rows)
    for stage in gl.static_range(STAGES):  # only here, so that `sums` is not put where barriers are
        mbarrier.invalidate(full.index(stage))


@dataclass(frozen=True)
class Added:
    """A residual stream with a product added, and the inputs of the next norm."""

    stream: Float[Tensor, "rows out"]
    weighted: Float[Tensor, "rows out"]
    sums: Float32[Tensor, "tiles rows"]  # of the stream's squares


def tile_for(n: int, processors: int) -> int | None:
    """Rows of w of a program, for a matrix of n rows; None if they do not divide evenly enough."""
    fitting = [tile for tile in TILES if BUSY * processors <= -(-n // tile) <= processors]
    return fitting[0] if fitting else None


def supports(rows: int, w: Float[Tensor, "out in"]) -> bool:
    """Whether the kernel supports this number of rows and this matrix, and divides it evenly."""
    return (
        0 < rows <= MOST_ROWS
        and w.dtype == torch.bfloat16
        and supports_matrix(w)
        and tile_for(len(w), multiprocessors(w.device)) is not None
    )


def added(
    x: Float[Tensor, "rows in"],
    w: Float[Tensor, "out in"],
    bias: Float[Tensor, " out"] | None,
    stream: Float[Tensor, "rows out"],
    weight: Float[Tensor, " out"],
) -> Added:
    """stream + x wᵀ + bias, for a norm with this weight, for inputs that it `supports`."""
    x, stream = x.to(w.dtype), stream.contiguous()  # as a backend of the user's own may give it
    x = x if supports_matrix(x) else x.clone(memory_format=torch.contiguous_format)
    (rows, k), n = x.shape, len(w)
    tile = tile_for(n, multiprocessors(x.device))
    assert tile is not None
    block_rows, width, tiles = rows_in_block(rows), BLOCK // (2 * tile), -(-n // tile)
    blocks = -(-k // width)
    stages = max(2, min(blocks, ROOM // (2 * (tile + block_rows) * width)))
    y, weighted, sums = (
        torch.empty_like(stream),
        torch.empty_like(stream),
        x.new_empty(tiles, rows, dtype=torch.float32),
    )
    launch: Any = _added[(tiles,)]
    with torch.cuda.device_of(x):
        launch(
            descriptor(w, tile, width), descriptor(x, block_rows, width), bias, stream, weight, y,
            weighted, sums, rows, n, blocks,
            ROWS=block_rows, TILE=tile, WIDTH=width, STAGES=stages, SHARES=SHARES,
            BIAS=bias is not None, num_warps=SHARES, launch_pdl=True,
        )  # fmt: skip
    return Added(y, weighted, sums)
