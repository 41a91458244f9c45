"""Products of a few rows with a large matrix, bound by the matrix's bytes.

    linear   y[m, n] = Σ_k x[m, k] w[n, k] + b[n]
    gated    y[m, i] = act(Σ_k x[m, k] w[i, k]) · Σ_k x[m, k] w[I + i, k]

w is read once, in tiles of BN rows, and K is divided among `splits` programs where there are too few tiles to fill the chip. So the
result of `linear` is a stack of `splits` summands, [splits, M, N], which the next kernel adds up as it reads them.

Kernels are launched with programmatic dependent launch: the next one may begin while this one ends, and waits before it reads what this
one writes (Hopper and later; elsewhere they follow each other).
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from bass.kernels.launch import dependent, operand, wait_for_inputs

BN = 64  # rows of w in a tile
FULL = 128  # programs that fill the chip, about one for each multiprocessor
LEAST_K = 512  # of a split
MOST_SPLITS = 8
MOST_ROWS = 64  # of x; beyond, cuBLAS is as fast or faster (measured on an H200, docs/log.md)


@triton.jit(do_not_specialize=["rows"])
@no_type_check  # Triton reads the source, not the function
def _linear(
    x, w, bias, y, rows, n_size, k_size,
    SIZE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    BIAS: tl.constexpr, OPERAND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    split = tl.program_id(1)
    first = split * SIZE
    last = tl.minimum(first + SIZE, k_size)
    m, k = tl.arange(0, BM), tl.arange(0, BK)
    live = (n < n_size)[:, None]
    w_rows = w + n.to(tl.int64)[:, None] * k_size
    wait_for_inputs(PDL)
    total = tl.zeros((BN, BM), dtype=tl.float32)
    for step in tl.range(0, SIZE, BK, num_stages=STAGES):
        at = first + step
        inside = (at + k) < last
        part = tl.load(w_rows + (at + k)[None, :], mask=live & inside[None, :], other=0.0)
        value = tl.load(x + m[None, :] * k_size + (at + k)[:, None], mask=(m < rows)[None, :] & inside[:, None], other=0.0)
        total = tl.dot(part.to(OPERAND), value.to(OPERAND), total, input_precision="ieee")
    if BIAS:
        total += tl.where(split == 0, tl.load(bias + n, mask=n < n_size, other=0.0).to(tl.float32), 0.0)[:, None]
    places = y + split.to(tl.int64) * rows * n_size + m[None, :] * n_size + n[:, None]
    tl.store(places, total.to(y.dtype.element_ty), mask=live & (m < rows)[None, :])


@triton.jit
@no_type_check
def logistic(x):
    """1 / (1 + exp(-x)), by the exponential of a negative number."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, small) / (1 + small)


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def _gated(
    x, w, y, rows, n_size, k_size,
    SIZE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    ACT: tl.constexpr, OPERAND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m, k = tl.arange(0, BM), tl.arange(0, BK)
    live = (n < n_size)[:, None]
    gates = w + n.to(tl.int64)[:, None] * k_size
    ups = gates + tl.cast(n_size, tl.int64) * k_size
    wait_for_inputs(PDL)
    gate, up = tl.zeros((BN, BM), dtype=tl.float32), tl.zeros((BN, BM), dtype=tl.float32)
    for at in tl.range(0, SIZE, BK, num_stages=STAGES):
        inside = (at + k) < k_size
        mask = live & inside[None, :]
        read = tl.load(x + m[None, :] * k_size + (at + k)[:, None], mask=(m < rows)[None, :] & inside[:, None], other=0.0).to(OPERAND)
        gate = tl.dot(tl.load(gates + (at + k)[None, :], mask=mask, other=0.0).to(OPERAND), read, gate, input_precision="ieee")
        up = tl.dot(tl.load(ups + (at + k)[None, :], mask=mask, other=0.0).to(OPERAND), read, up, input_precision="ieee")
    if ACT == "silu":
        value = gate * logistic(gate) * up
    elif ACT == "gelu":
        value = 0.5 * gate * (1 + tl.erf(gate * 0.7071067811865476)) * up
    else:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        value = gate * logistic(2 * inner) * up
    tl.store(y + m[None, :] * n_size + n[:, None], value.to(y.dtype.element_ty), mask=live & (m < rows)[None, :])


def splits_for(n: int, k: int) -> int:
    """Among how many programs to divide K: a power of two, so that the tiles times the splits fill the chip."""
    splits = 1
    while -(-n // BN) * splits < FULL and splits < MOST_SPLITS and k // (2 * splits) >= LEAST_K:
        splits *= 2
    return splits


def linear(
    x: Float[Tensor, "rows in"], w: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None = None, splits: int | None = None
) -> Float[Tensor, "splits rows out"]:
    """The summands of x wᵀ + b for up to MOST_ROWS rows, `splits` of them (by `splits_for`, unless given).

    They are in float32; a single one is in x's type.
    """
    (rows, k), n = x.shape, w.shape[0]
    splits = splits_for(n, k) if splits is None else splits
    tiles, block = -(-n // BN), 128 if k % 128 == 0 else 64
    stages = 6
    if splits == 1 and FULL < tiles < 2 * FULL:
        block = 64  # small enough for two or three programs on a multiprocessor, so that their number need not divide evenly
    y = x.new_empty((splits, rows, n), dtype=x.dtype if splits == 1 else torch.float32)
    launch: Any = _linear[(tiles, splits)]
    blocks = -(-k // block)
    size = -(-blocks // splits) * block
    with torch.cuda.device_of(x):
        launch(
            x, w, bias, y, rows, n, k,
            SIZE=size, BM=_rows(rows), BN=BN, BK=block, STAGES=_stages(stages, (BN + _rows(rows)) * block * x.element_size()),
            BIAS=bias is not None, OPERAND=operand(x.dtype), num_warps=4, **dependent(x),
        )  # fmt: skip
    return y


def gated(x: Float[Tensor, "rows in"], w: Float[Tensor, "twice in"], act: str) -> Float[Tensor, "rows inner"]:
    """act(gate) · up of a product whose first half of rows are the gates', for up to MOST_ROWS rows. act: silu, gelu or gelu_tanh."""
    (rows, k), n = x.shape, w.shape[0] // 2
    tile = 32 if -(-n // BN) < 2 * FULL else BN
    block, y = 128 if k % 128 == 0 else 64, x.new_empty((x.shape[0], n))
    stages = _stages(4, (2 * tile + _rows(rows)) * block * x.element_size())
    launch: Any = _gated[(-(-n // tile),)]
    with torch.cuda.device_of(x):
        launch(
            x, w, y, rows, n, k,
            SIZE=-(-k // block) * block, BM=_rows(rows), BN=tile, BK=block, STAGES=stages,
            ACT=act, OPERAND=operand(x.dtype), num_warps=4, **dependent(x),
        )  # fmt: skip
    return y


def _rows(rows: int) -> int:
    return max(16, 1 << (rows - 1).bit_length())


def _stages(most: int, tile_bytes: int) -> int:
    return max(1, min(most, 200_000 // tile_bytes))  # of shared memory
