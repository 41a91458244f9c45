"""Products of a few rows with a large matrix, bound by the matrix's bytes.

    linear   y[m, n] = Σ_k x[m, k] w[n, k] + b[n]
    gated    y[m, i] = act(Σ_k x[m, k] w[i, k]) · Σ_k x[m, k] w[I + i, k]

w is read once, in tiles of BN rows. If the tiles are too few to fill the GPU, `splits` programs
share K. So the result of `linear` is a stack of partial sums [splits, M, N], which the next kernel
adds as it reads them. (On an H200 it was slower to let the last program add them, or to normalise x
as the product reads it: docs/log.)

x and w may be quantized, with a scale for each row of either. Tensor cores add products of e4m3
with fewer bits than float32: a relative error of at most 1e-3 over 11,008 products, a twentieth of
the error of quantization.

Kernels use programmatic dependent launch: the next one may begin while this one ends, and waits
before it reads what this one writes (Hopper and later; elsewhere they run one after the other).
"""

from dataclasses import dataclass
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Num
from torch import Tensor

from bass.kernels.support import MOST_SHARED, shared_memory
from bass.kernels.triton.launch import dependent, operand, wait_for_inputs

MOST_ROWS = 64  # of x; beyond, cuBLAS is as fast or faster (measured on an H200, docs/log)
MULTIPROCESSORS = 132  # of an H100 or H200
LEAST_K = 256  # of a split
GATE_WIDTH = 1024  # columns of a program of `gate`


@dataclass(frozen=True)
class Tile:
    """How a product is cut: BN rows of w, BK of K at a time, `stages` of them in flight, by `warps`
    warps, K divided by `splits`.
    """

    bn: int
    bk: int
    stages: int
    warps: int
    splits: int = 1

    @property
    def options(self) -> dict[str, int]:
        """For a launch."""
        return {"BN": self.bn, "BK": self.bk, "STAGES": self.stages, "num_warps": self.warps}


@triton.jit
@no_type_check  # Triton reads the source, not the function
def _product(
    x, x_scale, w_rows, rows, k_size, first,
    SIZE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    EVEN: tl.constexpr,
    X_SCALED: tl.constexpr, SUM: tl.constexpr, OPERAND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Σ_k w[n, k] x[m, k] over the share of K that begins at `first`, times the scales of x, in
    float32 [BN, BM].
    """
    m, k = tl.arange(0, BM), tl.arange(0, BK)
    stop = tl.minimum(first + SIZE, k_size)
    # Rows of x beyond the last are masked: many reads of one address slow all of them down.
    x_rows, x_live = x + m[None, :] * k_size, (m < rows)[None, :]
    wait_for_inputs(PDL)
    total = tl.zeros((BN, BM), dtype=SUM)
    for step in tl.range(0, SIZE, BK, num_stages=STAGES):
        at = first + step + k
        part = tl.load(
            w_rows + at[None, :],
            mask=None if EVEN else (at < stop)[None, :],
            other=None if EVEN else 0.0,
        )
        value = tl.load(
            x_rows + at[:, None], mask=x_live if EVEN else x_live & (at < stop)[:, None], other=0.0
        )
        total = tl.dot(
            part.to(OPERAND), value.to(OPERAND), total, input_precision="ieee", out_dtype=SUM
        )
    result = total.to(tl.float32)
    if X_SCALED:
        result *= tl.load(x_scale + m, mask=m < rows, other=0.0)[None, :]
    return result


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def _linear(
    x, w, bias, x_scale, w_scale, y, rows, n_size, k_size,
    SIZE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    EVEN: tl.constexpr,
    BIAS: tl.constexpr, X_SCALED: tl.constexpr, W_SCALED: tl.constexpr, SUM: tl.constexpr,
    OPERAND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    split = tl.program_id(1)
    m = tl.arange(0, BM)
    # Rows of w beyond the last read the last one again, and are not stored.
    w_rows = w + tl.minimum(n, n_size - 1).to(tl.int64)[:, None] * k_size
    result = _product(
        x, x_scale, w_rows, rows, k_size, split * SIZE, SIZE, BM, BN, BK, STAGES, EVEN, X_SCALED,
        SUM, OPERAND, PDL,
    )  # fmt: skip
    if W_SCALED:
        result *= tl.load(w_scale + n, mask=n < n_size, other=0.0)[:, None]
    if BIAS:
        result += tl.where(
            split == 0, tl.load(bias + n, mask=n < n_size, other=0.0).to(tl.float32), 0.0
        )[:, None]
    places = y + split.to(tl.int64) * rows * n_size + m[None, :] * n_size + n[:, None]
    tl.store(
        places, result.to(y.dtype.element_ty), mask=(n < n_size)[:, None] & (m < rows)[None, :]
    )


@triton.jit
@no_type_check
def logistic(x):
    """1 / (1 + exp(-x)), by the exponential of a negative number."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, small) / (1 + small)


@triton.jit
@no_type_check
def activation(x, ACT: tl.constexpr):
    """act(x) of silu, gelu, gelu_tanh, relu or relu2."""
    if ACT == "silu":
        value = x * logistic(x)
    elif ACT == "gelu":
        value = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    elif ACT == "clamped_silu":  # of gpt-oss
        x = tl.minimum(x, 7.0)
        value = x * logistic(1.702 * x)
    elif ACT == "relu":
        value = tl.where(x > 0, x, x * 0)  # NaN stays
    elif ACT == "relu2":
        value = tl.where(x > 0, x * x, x * 0)
    else:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        value = x * logistic(2 * inner)
    return value


@triton.jit
@no_type_check
def activated(gate, up, ACT: tl.constexpr):
    """act(gate) · up."""
    if ACT == "clamped_silu":
        up = tl.clamp(up, -7.0, 7.0) + 1
    return activation(gate, ACT) * up


@triton.jit
@no_type_check
def _gate(
    y, out, part_size, size, PARTS: tl.constexpr, ACT: tl.constexpr, WIDTH: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    wait_for_inputs(PDL)
    gates = y + row * 2 * size
    gate, up = tl.zeros((WIDTH,), dtype=tl.float32), tl.zeros((WIDTH,), dtype=tl.float32)
    for part in tl.static_range(PARTS):
        at = gates + part * part_size + i
        gate += tl.load(at, mask=i < size, other=0.0).to(tl.float32)
        up += tl.load(at + size, mask=i < size, other=0.0).to(tl.float32)
    tl.store(out + row * size + i, activated(gate, up, ACT).to(out.dtype.element_ty), mask=i < size)


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def _gated(
    x, w, x_scale, w_scale, y, rows, n_size, k_size,
    SIZE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    EVEN: tl.constexpr,
    X_SCALED: tl.constexpr, W_SCALED: tl.constexpr, ACT: tl.constexpr, SUM: tl.constexpr,
    OPERAND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # A tile has the rows of BN / 2 gates, then those of as many ups.
    half: tl.constexpr = BN // 2
    row, m = tl.arange(0, BN), tl.arange(0, BM)
    n = tl.program_id(0) * half + row % half
    w_rows = w + (tl.minimum(n, n_size - 1) + row // half * n_size).to(tl.int64)[:, None] * k_size
    result = _product(
        x, x_scale, w_rows, rows, k_size, 0, SIZE, BM, BN, BK, STAGES, EVEN, X_SCALED, SUM, OPERAND,
        PDL,
    )  # fmt: skip
    if W_SCALED:
        result *= tl.load(w_scale + n + row // half * n_size, mask=n < n_size, other=0.0)[:, None]
    gate, up = tl.split(tl.permute(tl.reshape(result, (2, half, BM)), (1, 2, 0)))
    value = activated(gate, up, ACT)
    n = tl.program_id(0) * half + tl.arange(0, half)
    tl.store(
        y + m[None, :] * n_size + n[:, None],
        value.to(y.dtype.element_ty),
        mask=(n < n_size)[:, None] & (m < rows)[None, :],
    )


def linear(
    x: Num[Tensor, "rows in"],
    w: Num[Tensor, "out in"],
    bias: Float[Tensor, " out"] | None = None,
    x_scale: Float[Tensor, " rows"] | None = None,
    w_scale: Float[Tensor, " out"] | None = None,
    dtype: torch.dtype | None = None,
    tile: Tile | None = None,
) -> Float[Tensor, "splits rows out"]:
    """The partial sums of x wᵀ + b for up to MOST_ROWS rows.

    x: floats, or int8 / e4m3 with `x_scale`. w: of x's type, or int8 / e4m3 with `w_scale`;
    quantized weights with float x are supported. Partial sums are in float32; a single one is in
    `dtype`, by default x's.
    """
    x, (rows, k), n = x.contiguous(), x.shape, w.shape[0]
    tile = tile or tile_for(
        n, k, rows, x.element_size(), w.element_size(), False, shared_memory(x.device)
    )
    splits, size = _divided(k, tile)
    y = torch.empty(
        (splits, rows, n),
        device=x.device,
        dtype=(dtype or x.dtype) if splits == 1 else torch.float32,
    )
    launch: Any = _linear[(-(-n // tile.bn), splits)]
    with torch.cuda.device_of(x):
        launch(
            x, w, bias, x_scale, w_scale, y, rows, n, k,
            SIZE=size, BM=block_rows(rows), EVEN=splits * size == k,
            BIAS=bias is not None, X_SCALED=x_scale is not None, W_SCALED=w_scale is not None,
            SUM=_sum(x), OPERAND=operand(x.dtype), **tile.options, **dependent(x),
        )  # fmt: skip
    return y


def gated(
    x: Num[Tensor, "rows in"],
    w: Num[Tensor, "twice in"],
    act: str,
    x_scale: Float[Tensor, " rows"] | None = None,
    w_scale: Float[Tensor, " twice"] | None = None,
    dtype: torch.dtype | None = None,
    tile: Tile | None = None,
) -> Float[Tensor, "rows inner"]:
    """act(gate) · up of a product whose first half of rows are the gates', for up to MOST_ROWS
    rows. act: as for `activation`.
    """
    x, (rows, k), n = x.contiguous(), x.shape, w.shape[0] // 2
    tile = tile or tile_for(
        2 * n, k, rows, x.element_size(), w.element_size(), True, shared_memory(x.device)
    )
    y = torch.empty((rows, n), device=x.device, dtype=dtype or x.dtype)
    launch: Any = _gated[(-(-2 * n // tile.bn),)]
    with torch.cuda.device_of(x):
        launch(
            x, w, x_scale, w_scale, y, rows, n, k,
            SIZE=-(-k // tile.bk) * tile.bk, BM=block_rows(rows), EVEN=k % tile.bk == 0,
            X_SCALED=x_scale is not None, W_SCALED=w_scale is not None,
            ACT=act, SUM=_sum(x), OPERAND=operand(x.dtype), **tile.options, **dependent(x),
        )  # fmt: skip
    return y


def gate(
    y: Float[Tensor, "parts rows twice"], act: str, dtype: torch.dtype
) -> Float[Tensor, "rows inner"]:
    """act(gate) · up, as `gated` computes it, of partial sums of a product."""
    y, (parts, rows, size) = y.contiguous(), y.shape
    size //= 2
    out = y.new_empty(rows, size, dtype=dtype)
    launch: Any = _gate[(rows, -(-size // GATE_WIDTH))]
    with torch.cuda.device_of(y):
        launch(
            y, out, 2 * rows * size, size, PARTS=parts, ACT=act, WIDTH=GATE_WIDTH, num_warps=4,
            **dependent(y),
        )  # fmt: skip
    return out


def tile_for(
    n: int,
    k: int,
    rows: int,
    x_size: int,
    size: int,
    gated: bool,
    room: int = MOST_SHARED,
) -> Tile:
    """How to cut a product of `rows` rows of numbers of `x_size` bytes with a matrix of n rows of k
    numbers of `size` bytes.

    room: bytes of shared memory of a program; below an H100's, tiles are smaller and fewer are in
    flight.

    The rule comes from about 3,000 tiles timed on an H200 (docs/log): the same number of
    programs for all multiprocessors, one with deep queues or three with short ones.
    """
    bm, bk = block_rows(rows), 256 // size
    of_many = min(bk, 128) if bm == MOST_ROWS else bk  # more tiles in flight, of fewer inputs
    tiles, wide = -(-n // 64), -(-n // 128)

    def cut(bn: int, bk: int, queue_bytes: int, splits: int = 1) -> Tile:
        # for each k; widened: w as it enters the product
        stage, widened = bn * size + bm * x_size, bn * x_size if x_size != size else 0
        while (stage + widened) * bk > room:
            bk //= 2
        return Tile(
            bn, bk, max(2, min(8, (min(queue_bytes, room) // bk - widened) // stage)), 4, splits
        )

    if gated and wide <= MULTIPROCESSORS:
        # more than half of the shared memory: two programs on one multiprocessor would be unfair
        return cut(128, bk // 2, 150_000)
    if tiles > 3 * MULTIPROCESSORS:
        return cut(128, bk if bm < 32 else bk // 2, 112_000)
    if gated:
        return cut(64, of_many, 200_000 if bm == 16 else 76_000)
    even = {
        s: evenness(tiles * s)
        for s in (1, 2, 4, 8)
        if s == 1 or (k // s >= LEAST_K and tiles * s <= 3 * MULTIPROCESSORS)
    }
    splits = min(s for s in even if even[s] > max(even.values()) - 0.02)
    if tiles * splits <= MULTIPROCESSORS:
        return cut(64, of_many, 205_000, splits)
    return cut(64, bk if bm < 64 else bk // 2, 76_000, splits)


def evenness(programs: int) -> float:
    """The mean load of the multiprocessors, of the largest."""
    return programs / (MULTIPROCESSORS * -(-programs // MULTIPROCESSORS))


def block_rows(rows: int) -> int:
    """Rows of x of a program: a power of two, and at least 16, as `tl.dot` requires."""
    return max(16, 1 << (rows - 1).bit_length())


def _divided(k: int, tile: Tile) -> tuple[int, int]:
    """The number of splits that have something to do, and the share of K of each: whole blocks."""
    blocks = -(-k // tile.bk)
    share = -(-blocks // tile.splits)
    return -(-blocks // share), share * tile.bk


def _sum(x: Tensor) -> tl.dtype:
    return tl.int32 if x.dtype == torch.int8 else tl.float32
