"""Products of the fewest rows (`triton/small_m_gemm.py`) on Hopper. Prefetches weights before the
previous kernel ends (programmatic dependent launch).

Only the rows of a product depend on the previous kernel, the matrix does not. A program first loads
its first blocks of weights by the tensor memory accelerator, then waits for the previous kernel,
then loads the matching rows. The blocks in flight leave shared memory for the small kernels between
two products, so that these start early, too (attention for up to 8 rows).

A multiprocessor reads at most 1.3 times its share of the memory's bandwidth, so one with more work
delays all others. Work is divided equally (Osama et al. 2023, "Stream-K"): the blocks of all tiles
of 64 rows of w form one sequence, cut into one share for each multiprocessor, or for fewer if no
share gets larger.

    tile            0         |         1         |         2         | ...
    program     0 ........ | 1 ........ | 2 ........ | 3 ........ | ...

A tile that is cut has several pieces. In `linear` with more programs than tiles, each piece is a
partial sum of the result. Otherwise the program with the tile's last block adds all of them: the
others first write their sums to a workspace, so it rarely waits. It waits only for programs with
lower numbers, which start before it.

The norm of input rows may be unfinished (`PendingNorm`, from `gemm_residual.py`); the product
finishes it in its result: with x' = x · weight

    RMSNorm     x' wᵀ / sqrt(mean(x²) + eps)
    LayerNorm   (x' wᵀ - mean(x) (weight wᵀ)) / sqrt(var(x) + eps) + shift wᵀ

For a LayerNorm, weight and shift are two more rows of x', so their products cost no launch.

The kernels are in Gluon, Triton's dialect with explicit shared memory, barriers and copies.
"""

import functools
from dataclasses import dataclass
from typing import Any, no_type_check

import torch
from jaxtyping import Float, Float32, Num
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from bass.kernels.triton.launch import TRITON_DTYPES, kept_zeros
from bass.kernels.triton.small_m_gemm import activated, activation

MOST_ROWS = 32  # of x; beyond, its share of what a multiprocessor takes in is too large
KINDS = (torch.float16, torch.bfloat16, torch.int8, torch.float8_e4m3fn)
TILE = 64  # rows of w: what one instruction multiplies
# bytes of a row of a tile per load; half as many for two tiles
BLOCK = 1024
LEAST_BLOCK = 256  # where there are blocks for less than a quarter of the multiprocessors
# bytes in flight of a program, or two blocks; with less memory is idle at times, with more the
# small kernels come late
ROOM = 150_000
EVEN = 0.95  # of all multiprocessors busy: enough not to cut tiles


@gluon.jit
@no_type_check  # Gluon reads the source, not the function
def _block(i, begin, end, each):
    """(tile, block of it, whether its piece's first, last) of the block that the program of [begin,
    end) takes i-th; tiles have `each`.

    From the last tile to the first; the blocks of one in their order. So a piece without its tile's
    end comes first.
    """
    last = (end - 1) // each
    head = end - gl.maximum(begin, last * each)  # blocks in the last tile
    later = i - head
    tile = gl.where(later < 0, last, last - 1 - later // each)
    offset = gl.where(later < 0, i, later % each)
    block = gl.maximum(begin - tile * each, 0) + offset
    return tile, block, offset == 0, (i == head - 1) | (block == each - 1)


@gluon.jit
@no_type_check
def _prefetch(
    w_map, bar, w_tile, up_tile, tile, block, n_size, live,
    TILE: gl.constexpr, WIDTH: gl.constexpr, BYTES: gl.constexpr, GATED: gl.constexpr,
):  # fmt: skip
    """For the weights of a block; the barrier also waits for the rows that go with them."""
    mbarrier.expect(bar, BYTES, live)
    tma.async_copy_global_to_shared(w_map, [tile * TILE, block * WIDTH], bar, w_tile, live)
    if GATED:
        tma.async_copy_global_to_shared(
            w_map, [n_size + tile * TILE, block * WIDTH], bar, up_tile, live
        )


@gluon.jit
@no_type_check
def _centered(value, m, rows, means, x_scales):
    """The products with normalised rows: columns `rows` and `rows` + 1 are the products with the
    norm's weight and shift.
    """
    weight = gl.sum(gl.where(m[None, :] == rows, value, 0.0), 1)
    shift = gl.sum(gl.where(m[None, :] == rows + 1, value, 0.0), 1)
    return (value - weight[:, None] * means[None, :]) * x_scales[None, :] + shift[:, None]


@gluon.jit(do_not_specialize=["rows", "n_size", "k_size", "tiles", "each", "square_tiles"])
@no_type_check
def _product(
    w_map, x_map, bias, x_scale, w_scale, squares, sums, y, workspace, flags,
    rows, n_size, k_size, tiles, each, square_tiles, eps,
    CENTERED: gl.constexpr,
    ROWS: gl.constexpr, TILE: gl.constexpr, WIDTH: gl.constexpr, STAGES: gl.constexpr,
    SUMMANDS: gl.constexpr, COMBINES: gl.constexpr, GATED: gl.constexpr, ACT: gl.constexpr,
    BIAS: gl.constexpr, X_SCALED: gl.constexpr, W_SCALED: gl.constexpr, SUM: gl.constexpr,
    SIZE: gl.constexpr,
    SQUARE_TILES: gl.constexpr,
):  # fmt: skip
    kind: gl.constexpr = w_map.dtype
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [gl.num_warps(), 1], [16, ROWS, 32 // SIZE]
    )
    parts: gl.constexpr = 2 if GATED else 1
    stage_bytes: gl.constexpr = (TILE * parts + ROWS) * WIDTH * SIZE
    program, programs, blocks = gl.program_id(0), gl.num_programs(0), tiles * each
    begin, end = program * blocks // programs, (program + 1) * blocks // programs
    w_tiles = gl.allocate_shared_memory(kind, [STAGES, TILE, WIDTH], w_map.layout)
    x_tiles = gl.allocate_shared_memory(kind, [STAGES, ROWS, WIDTH], x_map.layout)
    # one for each stage: it has come
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    up_tiles = w_tiles
    if GATED:
        up_tiles = gl.allocate_shared_memory(kind, [STAGES, TILE, WIDTH], w_map.layout)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
    for stage in gl.static_range(STAGES):
        tile, block, _, _ = _block(stage, begin, end, each)
        w_tile, up_tile = w_tiles.index(stage), up_tiles.index(stage)
        _prefetch(
            w_map,
            full.index(stage),
            w_tile,
            up_tile,
            tile,
            block,
            n_size,
            begin + stage < end,
            TILE,
            WIDTH,
            stage_bytes,
            GATED,
        )
    gdc_launch_dependents()
    gdc_wait()
    for stage in gl.static_range(STAGES):
        _, block, _, _ = _block(stage, begin, end, each)
        tma.async_copy_global_to_shared(
            x_map, [0, block * WIDTH], full.index(stage), x_tiles.index(stage), begin + stage < end
        )
    m, in_tile = (
        gl.arange(0, ROWS, gl.SliceLayout(0, layout)),
        gl.arange(0, TILE, gl.SliceLayout(1, layout)),
    )
    live_m = m < rows
    x_scales = gl.full([ROWS], 1.0, gl.float32, gl.SliceLayout(0, layout))
    w_scales = gl.full([TILE], 1.0, gl.float32, gl.SliceLayout(1, layout))
    up_scales = w_scales
    if X_SCALED:
        x_scales = gl.load(x_scale + m, mask=live_m, other=0.0)
    if SQUARE_TILES > 0:
        of_squares: gl.constexpr = gl.BlockedLayout(
            [1, 1], [32 // ROWS, ROWS] if ROWS < 32 else [1, 32], [gl.num_warps(), 1], [1, 0]
        )
        square_tile, row = (
            gl.arange(0, SQUARE_TILES, gl.SliceLayout(1, of_squares))[:, None],
            gl.arange(0, ROWS, gl.SliceLayout(0, of_squares))[None, :],
        )
        at, there = square_tile * rows + row, (square_tile < square_tiles) & (row < rows)
        spread = gl.sum(gl.load(squares + at, mask=there, other=0.0), 0) / k_size
        if CENTERED:
            mean = gl.sum(gl.load(sums + at, mask=there, other=0.0), 0) / k_size
            spread = gl.maximum(spread - mean * mean, 0.0)
            means = gl.convert_layout(mean, gl.SliceLayout(0, layout))
        x_scales = gl.convert_layout(gl.rsqrt(spread + eps), gl.SliceLayout(0, layout))
    total = gl.zeros([TILE, ROWS], SUM, layout)
    if GATED:
        up = gl.zeros([TILE, ROWS], SUM, layout)
    for i in range(end - begin):
        tile, block, first, ends = _block(i, begin, end, each)
        slot = i % STAGES
        here = full.index(slot)
        mbarrier.wait(here, i // STAGES & 1)
        x = x_tiles.index(slot).permute((1, 0))
        total = warpgroup_mma(w_tiles.index(slot), x, total, use_acc=first == 0)
        if GATED:
            up = warpgroup_mma(up_tiles.index(slot), x, up, use_acc=first == 0)
        n = tile * TILE + in_tile
        live_n = n < n_size
        if W_SCALED:  # here, so that they come while others are multiplied
            w_scales = gl.load(w_scale + n, mask=live_n, other=0.0)
            if GATED:
                up_scales = gl.load(w_scale + n_size + n, mask=live_n, other=0.0)
        next_tile, next_block, _, _ = _block(i + STAGES, begin, end, each)
        more = begin + i + STAGES < end
        w_tile, up_tile = w_tiles.index(slot), up_tiles.index(slot)
        _prefetch(
            w_map, here, w_tile, up_tile, next_tile, next_block, n_size, more, TILE, WIDTH,
            stage_bytes, GATED,
        )  # fmt: skip
        tma.async_copy_global_to_shared(
            x_map, [0, next_block * WIDTH], here, x_tiles.index(slot), more
        )
        if ends:
            owner = ((tile * each + 1) * programs - 1) // blocks  # of the tile's first piece
            piece, finishes = program - owner, True
            if COMBINES:
                piece, finishes = 0, block == each - 1
                in_partial = in_tile[:, None] * ROWS + m[None, :]
                if finishes:
                    for peer in range(owner, program):
                        while gl.atomic_cas(flags + peer, 1, 0, sem="acquire", scope="gpu") != 1:
                            pass
                        gl.thread_barrier()
                        partial = workspace + peer * (parts * TILE * ROWS) + in_partial
                        total += gl.load(partial, cache_modifier=".cg")
                        if GATED:
                            up += gl.load(partial + TILE * ROWS, cache_modifier=".cg")
                else:
                    partial = workspace + program * (parts * TILE * ROWS) + in_partial
                    gl.store(partial, total)
                    if GATED:
                        gl.store(partial + TILE * ROWS, up)
                    gl.thread_barrier()
                    gl.atomic_xchg(flags + program, 1, sem="release", scope="gpu")
            if finishes:
                place, written = (
                    y + m[None, :] * n_size + n[:, None],
                    live_n[:, None] & live_m[None, :],
                )
                value = total.to(gl.float32)
                if CENTERED:
                    value = _centered(value, m, rows, means, x_scales)
                else:
                    value = value * x_scales[None, :] * w_scales[:, None]
                if GATED:
                    other = up.to(gl.float32)
                    if CENTERED:
                        other = _centered(other, m, rows, means, x_scales)
                    else:
                        other = other * x_scales[None, :] * up_scales[:, None]
                    value = activated(value, other, ACT)
                if BIAS:
                    added = gl.load(bias + n, mask=live_n, other=0.0).to(gl.float32)
                    value += gl.where(piece == 0, added, gl.zeros_like(added))[:, None]
                if ACT != "" and not GATED:
                    value = activation(value, ACT)
                gl.store(place + piece * rows * n_size, value.to(y.dtype.element_ty), mask=written)
                if SUMMANDS > 1:  # those that this tile does not have are zero
                    for other in range(gl.where(block == each - 1, piece + 1, SUMMANDS), SUMMANDS):
                        gl.store(
                            place + other * rows * n_size,
                            gl.zeros_like(value).to(y.dtype.element_ty),
                            mask=written,
                        )


@dataclass(frozen=True)
class ProductSchedule:
    """How a product is cut:

    `blocks` of a tile, of `width` numbers of each row, `stages` of them in flight; `pieces` of a
    tile at most.
    """

    block_rows: int  # of x, with those that are not there
    width: int
    blocks: int
    stages: int
    programs: int
    pieces: int


def rows_in_block(rows: int) -> int:
    """Rows of x with padding: a power of two, and at least 8, as the instructions require."""
    return max(8, 1 << (rows - 1).bit_length())


@functools.cache
def cut_for(
    n: int, k: int, rows: int, size: int, gated: bool, processors: int, whole: bool = False
) -> ProductSchedule:
    """How to cut a product of `rows` rows with a matrix of n rows (gated: twice n) of k numbers of
    `size` bytes. whole: no tile is divided into summands, as an activation function requires.
    """
    parts = 2 if gated else 1
    block, tiles = BLOCK // parts, -(-n // TILE)
    while block > LEAST_BLOCK and tiles * -(-k * size // block) < processors // 4:
        block //= 2
    width = block // size
    blocks = -(-k // width)
    stage, total = (parts * TILE + rows_in_block(rows)) * block, tiles * blocks
    splits = (1,) if gated or whole else (1, 2, 4, 8)
    even = [
        tiles * s for s in splits if EVEN * processors <= tiles * s <= processors and s <= blocks
    ]
    # no more than the largest share needs
    programs = even[0] if even else -(-total // -(-total // processors))
    # the program of a tile's first block, as below
    first = [((tile * blocks + 1) * programs - 1) // total for tile in range(tiles)]
    last = [((tile + 1) * blocks * programs - 1) // total for tile in range(tiles)]
    pieces = max(b - a + 1 for a, b in zip(first, last, strict=True))
    return ProductSchedule(
        rows_in_block(rows), width, blocks, max(2, ROOM // stage), programs, pieces
    )


def supports(x: Num[Tensor, "rows in"], w: Num[Tensor, "out in"]) -> bool:
    """Whether the kernel supports the matrices: one supported type, rows that begin at multiples of
    16 bytes.
    """
    return (
        0 < len(x) <= MOST_ROWS and x.dtype == w.dtype and supports_matrix(x) and supports_matrix(w)
    )


def supports_matrix(x: Num[Tensor, "rows size"]) -> bool:
    """Whether the kernel supports a matrix's type and layout."""
    return (
        x.dtype in KINDS
        and x.stride(1) == 1
        and x.data_ptr() % 16 == 0
        and x.stride(0) * x.element_size() % 16 == 0
    )


@dataclass(frozen=True)
class PendingNorm:
    """The unfinished norm of rows x: the product divides them by sqrt(Σ squares / size of a row +
    eps).

    sums: for a LayerNorm; the last two rows of x are then its weight and shift.
    """

    squares: Float32[Tensor, "tiles rows"]
    eps: float
    sums: Float32[Tensor, "tiles rows"] | None = None


def linear(
    x: Num[Tensor, "read in"],
    w: Num[Tensor, "out in"],
    bias: Float[Tensor, " out"] | None,
    x_scale: Float[Tensor, " read"] | PendingNorm | None,
    w_scale: Float[Tensor, " out"] | None,
    dtype: torch.dtype,
    act: str | None = None,
) -> Float[Tensor, "splits rows out"]:
    """As `small_m_gemm.linear`."""
    return _launched(x, w, bias, x_scale, w_scale, dtype, act, gated=False)


def gated(
    x: Num[Tensor, "read in"],
    w: Num[Tensor, "twice in"],
    act: str,
    x_scale: Float[Tensor, " read"] | PendingNorm | None,
    w_scale: Float[Tensor, " twice"] | None,
    dtype: torch.dtype,
) -> Float[Tensor, "rows inner"]:
    """As `small_m_gemm.gated`."""
    return _launched(x, w, None, x_scale, w_scale, dtype, act, gated=True)[0]


def _launched(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    x_scale: Tensor | PendingNorm | None,
    w_scale: Tensor | None,
    dtype: torch.dtype,
    act: str | None,
    gated: bool,
) -> Float[Tensor, "splits rows out"]:
    (read, k), n = x.shape, len(w) // 2 if gated else len(w)
    pending, x_scale = (x_scale, None) if isinstance(x_scale, PendingNorm) else (None, x_scale)
    squares, sums = (None, None) if pending is None else (pending.squares, pending.sums)
    rows = read if sums is None else read - 2
    cut = cut_for(n, k, read, x.element_size(), gated, multiprocessors(x.device), act is not None)
    tiles, total = -(-n // TILE), torch.int32 if x.dtype == torch.int8 else torch.float32
    combines = cut.pieces > 1 and (act is not None or cut.programs <= tiles)
    summands = 1 if combines else cut.pieces
    y = x.new_empty(summands, rows, n, dtype=dtype if summands == 1 else torch.float32)
    workspace = (
        x.new_empty(cut.programs, 2 if gated else 1, TILE, cut.block_rows, dtype=total)
        if combines
        else None
    )
    square_tiles = 0 if squares is None else len(squares)
    launch: Any = _product[(cut.programs,)]
    with torch.cuda.device_of(x):
        launch(
            descriptor(w, TILE, cut.width), descriptor(x, cut.block_rows, cut.width), bias, x_scale,
            w_scale, squares, sums, y, workspace,
            kept_zeros("product", multiprocessors(x.device), x.device),
            rows, n, k, tiles, cut.blocks, square_tiles, 0.0 if pending is None else pending.eps,
            CENTERED=sums is not None,
            ROWS=cut.block_rows, TILE=TILE, WIDTH=cut.width, STAGES=cut.stages,
            SUMMANDS=summands, COMBINES=combines, GATED=gated, ACT=act or "",
            BIAS=bias is not None, X_SCALED=x_scale is not None, W_SCALED=w_scale is not None,
            SUM=TRITON_DTYPES[total], SIZE=x.element_size(),
            SQUARE_TILES=0 if square_tiles == 0 else 1 << (square_tiles - 1).bit_length(),
            num_warps=4, launch_pdl=True,
        )  # fmt: skip
    return y


def descriptor(x: Tensor, rows: int, width: int) -> Any:
    """The matrix's descriptor for the tensor memory accelerator. Loads beyond its edges are
    zeros.
    """
    layout = _layout(gl.NVMMASharedLayout.get_default_for, rows, width, TRITON_DTYPES[x.dtype])
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, width], layout)


@functools.cache
def _layout(default_for: Any, rows: int, width: int, kind: Any) -> Any:
    """The layout of a tile in shared memory; Triton takes 10 us to find it."""
    return default_for([rows, width], kind)


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """The number of multiprocessors of the device."""
    return torch.cuda.get_device_properties(device).multi_processor_count
