"""Products of rows with the experts that each row chose, which read only the experts that some row
chose.

    route     the chosen experts of each row, and their weights
    align     pairs (row, choice), sorted by expert, each expert's padded to blocks of BM pairs
    gated     h[p] = act(x[row of p] W₁ᵀ) · (x[row of p] W₂ᵀ)    with W of the expert of p's block
    down      y[choice of p, row of p] = weight[p] · h[p] Wᵀ

Nothing is read by the host: there are as many blocks as any choice can need, and programs of the
others end at once. A row's results do not depend on the other rows: each is a sum over K in one
order. The choices of a row stay apart as partial sums, which the next kernel adds as it reads them.

    experts    3           7       7       -
    blocks   [2 0 - -]  [1 3 4 5] [6 - - -] [- - - -]      pairs, BM = 4

As vLLM's fused mixture of experts (Kwon et al., 2023), without its padding of rows.
"""

from dataclasses import dataclass
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, Int32
from torch import Tensor

from bass.kernels.triton.launch import (
    INTERPRETED,
    dependent,
    interpreted_range,
    operand,
    wait_for_inputs,
)
from bass.kernels.triton.small_m_gemm import activated

CHUNK = 32  # pairs that `align` looks at, at a time
MOST_PAIRS = 1024  # that one program aligns


@dataclass(frozen=True)
class Choice:
    """The experts of each row, and their weights."""

    experts: Int32[Tensor, "rows chosen"]
    weights: Float32[Tensor, "rows chosen"]


@dataclass(frozen=True)
class Blocks:
    """Pairs row · chosen + choice by block, -1 for none; the expert of each block, -1 for none."""

    pairs: Int32[Tensor, "blocks size"]
    experts: Int32[Tensor, " blocks"]


@triton.jit
@no_type_check
def _route(
    logits, experts, weights, part_size, count,
    PARTS: tl.constexpr, CHOSEN: tl.constexpr, NORMALISED: tl.constexpr, WIDTH: tl.constexpr,
    ROUND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    wait_for_inputs(PDL)
    value = tl.zeros((WIDTH,), dtype=tl.float32)
    for part in tl.static_range(PARTS):
        at = part * part_size + row * count + i
        value += tl.load(logits + at, mask=i < count, other=0.0).to(tl.float32)
    value = tl.where(i < count, value.to(ROUND).to(tl.float32), float("-inf"))
    top = tl.max(value, 0)
    every, left, total = tl.sum(tl.exp(value - top), 0), value, 0.0
    for choice in tl.static_range(CHOSEN):
        best = tl.max(left, 0)
        # of equals the first; NaN is equal to nothing
        expert = tl.minimum(tl.min(tl.where(left == best, i, WIDTH), 0), count - 1)
        tl.store(experts + row * CHOSEN + choice, expert)
        total += tl.exp(best - top)
        left = tl.where(i == expert, float("-inf"), left)
    left, total = value, total if NORMALISED else every
    for choice in tl.static_range(CHOSEN):
        best = tl.max(left, 0)
        expert = tl.minimum(tl.min(tl.where(left == best, i, WIDTH), 0), count - 1)
        tl.store(weights + row * CHOSEN + choice, tl.exp(best - top) / total)
        left = tl.where(i == expert, float("-inf"), left)


if INTERPRETED:
    range = interpreted_range


def route(
    logits: Float[Tensor, "splits rows experts"],
    chosen: int,
    normalised: bool,
    dtype: torch.dtype,
) -> Choice:
    """The `chosen` experts of each row with the largest logits, largest first; of equal ones the
    first. weights: exp(logit) over its sum for the chosen ones (normalised) or for all.

    logits: partial sums, rounded to `dtype` when added.
    """
    logits = logits.contiguous()
    parts, rows, count = logits.shape
    experts = torch.empty((rows, chosen), device=logits.device, dtype=torch.int32)
    weights = torch.empty((rows, chosen), device=logits.device, dtype=torch.float32)
    launch: Any = _route[(rows,)]
    with torch.cuda.device_of(logits):
        launch(
            logits, experts, weights, rows * count, count, PARTS=parts, CHOSEN=chosen,
            NORMALISED=normalised, WIDTH=triton.next_power_of_2(count),
            ROUND=operand(dtype), num_warps=1, **dependent(logits),
        )  # fmt: skip
    return Choice(experts, weights)


@triton.jit(do_not_specialize=["pairs"])
@no_type_check
def _align(
    chosen, sorted_pairs, block_experts, ranks, pairs, blocks,
    BM: tl.constexpr, EXPERTS: tl.constexpr, MOST: tl.constexpr, CHUNK: tl.constexpr,
    BLOCKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program."""
    wait_for_inputs(PDL)
    expert, offset = tl.arange(0, EXPERTS), tl.arange(0, CHUNK)
    before = tl.zeros((EXPERTS,), dtype=tl.int32)  # pairs of each expert so far
    for first in range(0, MOST, CHUNK):
        pair = first + offset
        of = tl.load(chosen + pair, mask=pair < pairs, other=-1)
        here = (of[None, :] == expert[:, None]).to(tl.int32)
        rank = tl.sum(here * (before[:, None] + tl.cumsum(here, 1) - 1), 0)
        tl.store(ranks + pair, rank, mask=pair < pairs)
        before += tl.sum(here, 1)
    needed = (before + BM - 1) // BM
    ends = tl.cumsum(needed, 0)
    starts = ends - needed
    block = tl.arange(0, BLOCKS)
    # the expert whose blocks include this one
    owner = tl.sum((ends[:, None] <= block[None, :]).to(tl.int32), 0)
    tl.store(block_experts + block, tl.where(owner < EXPERTS, owner, -1), mask=block < blocks)
    for first in range(0, blocks * BM, CHUNK):
        tl.store(sorted_pairs + first + offset, -1, mask=first + offset < blocks * BM)
    tl.debug_barrier()
    for first in range(0, MOST, CHUNK):
        pair = first + offset
        of = tl.load(chosen + pair, mask=pair < pairs, other=-1)
        here = (of[None, :] == expert[:, None]).to(tl.int32)
        at = tl.sum(here * starts[:, None], 0) * BM + tl.load(
            ranks + pair, mask=pair < pairs, other=0
        )
        tl.store(sorted_pairs + at, pair, mask=pair < pairs)


def align(experts: Int32[Tensor, "rows chosen"], count: int, size: int) -> Blocks:
    """Blocks of `size` pairs of one expert each, for any of `count` experts."""
    pairs, device = experts.numel(), experts.device
    blocks = min(count, pairs) + pairs // size  # each expert has at most one that is not full
    if pairs > MOST_PAIRS:
        return _aligned_by_torch(experts.reshape(-1), count, size, blocks)
    found = torch.empty((blocks, size), device=device, dtype=torch.int32)
    of_block = torch.empty(blocks, device=device, dtype=torch.int32)
    ranks = torch.empty(pairs, device=device, dtype=torch.int32)
    launch: Any = _align[(1,)]
    with torch.cuda.device_of(experts):
        launch(
            experts, found, of_block, ranks, pairs, blocks, BM=size,
            EXPERTS=triton.next_power_of_2(count),
            MOST=max(CHUNK, triton.next_power_of_2(pairs)), CHUNK=CHUNK,
            BLOCKS=triton.next_power_of_2(blocks), num_warps=4, **dependent(experts),
        )  # fmt: skip
    return Blocks(found, of_block)


def _aligned_by_torch(
    experts: Int32[Tensor, " pairs"], count: int, size: int, blocks: int
) -> Blocks:
    """As `align`, for the many pairs of a prefill."""
    order = experts.argsort(stable=True)
    sorted_experts = experts[order].long()
    ones = torch.ones_like(sorted_experts)
    counts = sorted_experts.new_zeros(count).scatter_add_(0, sorted_experts, ones)
    needed = (counts + size - 1) // size
    ends, before = needed.cumsum(0), counts.cumsum(0) - counts
    rank = torch.arange(len(order), device=order.device) - before[sorted_experts]
    found = torch.full((blocks * size,), -1, device=order.device, dtype=torch.int32)
    found[(ends - needed)[sorted_experts] * size + rank] = order.int()
    block = torch.arange(blocks, device=order.device)
    owner = torch.searchsorted(ends, block, right=True)
    return Blocks(found.view(blocks, size), torch.where(owner < count, owner, -1).int())


@triton.jit
@no_type_check
def _gathered(
    x, w, row, live, w_row, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr,
    OPERAND: tl.constexpr,
):  # fmt: skip
    """Σ_k w[w_row, k] x[row, k] in float32 [BN, BM]."""
    k = tl.arange(0, BK)
    w_rows = w + w_row.to(tl.int64)[:, None] * K
    x_rows = x + row.to(tl.int64)[None, :] * K
    total = tl.zeros((BN, BM), dtype=tl.float32)
    for first in tl.range(0, K, BK, num_stages=STAGES):
        at = first + k
        part = tl.load(
            w_rows + at[None, :],
            mask=None if EVEN else (at < K)[None, :],
            other=None if EVEN else 0.0,
        )
        value = tl.load(
            x_rows + at[:, None],
            mask=live[None, :] if EVEN else live[None, :] & (at < K)[:, None],
            other=0.0,
        )
        total = tl.dot(part.to(OPERAND), value.to(OPERAND), total, input_precision="ieee")
    return total


@triton.jit
@no_type_check
def _gated_experts(
    x, w, bias, pairs, experts, h, inner, K: tl.constexpr,
    CHOSEN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    STAGES: tl.constexpr, EVEN: tl.constexpr, ACT: tl.constexpr, OPERAND: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    wait_for_inputs(PDL)
    expert = tl.load(experts + tl.program_id(1))
    if expert >= 0:
        pair = tl.load(pairs + tl.program_id(1) * BM + tl.arange(0, BM))
        live = pair >= 0
        pair = tl.maximum(pair, 0)
        # a tile has the rows of BN / 2 gates, then those of as many ups
        half: tl.constexpr = BN // 2
        line = tl.arange(0, BN)
        n = tl.minimum(tl.program_id(0) * half + line % half, inner - 1)
        w_row = (2 * expert + line // half) * inner + n
        result = _gathered(x, w, pair // CHOSEN, live, w_row, K, BM, BN, BK, STAGES, EVEN, OPERAND)
        if bias is not None:
            result += tl.load(bias + w_row).to(tl.float32)[:, None]
        gate, up = tl.split(tl.permute(tl.reshape(result, (2, half, BM)), (1, 2, 0)))
        n = tl.program_id(0) * half + tl.arange(0, half)
        tl.store(
            h + pair.to(tl.int64)[None, :] * inner + n[:, None],
            activated(gate, up, ACT).to(h.dtype.element_ty),
            mask=(n < inner)[:, None] & live[None, :],
        )


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def _down_experts(
    h, w, bias, pairs, experts, weights, y, rows, n_size, K: tl.constexpr,
    CHOSEN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    STAGES: tl.constexpr, EVEN: tl.constexpr, OPERAND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_inputs(PDL)
    expert = tl.load(experts + tl.program_id(1))
    if expert >= 0:
        pair = tl.load(pairs + tl.program_id(1) * BM + tl.arange(0, BM))
        live = pair >= 0
        pair = tl.maximum(pair, 0)
        n = tl.program_id(0) * BN + tl.arange(0, BN)
        w_row = expert * n_size + tl.minimum(n, n_size - 1)
        result = _gathered(h, w, pair, live, w_row, K, BM, BN, BK, STAGES, EVEN, OPERAND)
        if bias is not None:
            result += tl.load(bias + w_row).to(tl.float32)[:, None]
        result *= tl.load(weights + pair, mask=live, other=0.0)[None, :]
        place = (pair % CHOSEN).to(tl.int64) * rows + pair // CHOSEN
        tl.store(
            y + place[None, :] * n_size + n[:, None],
            result,
            mask=(n < n_size)[:, None] & live[None, :],
        )


@dataclass(frozen=True)
class Tile:
    """BN rows of w by BM pairs, BK numbers at a time, `stages` of them in flight."""

    bm: int
    bn: int
    bk: int
    stages: int
    warps: int


def tile_for(pairs: int, experts: int) -> Tile:
    """How products are cut: for few pairs of each expert, bound by bytes, or for many."""
    if pairs <= 16 * experts:
        return Tile(16, 64, 128, 4, 4)
    return Tile(64, 128, 64, 3, 8)


def experts(
    x: Float[Tensor, "rows size"],
    choice: Choice,
    gate_up: Float[Tensor, "experts_twice_inner size"],
    down: Float[Tensor, "experts_size inner"],
    count: int,
    act: str,
    gate_up_bias: Float[Tensor, " experts_twice_inner"] | None = None,
    down_bias: Float[Tensor, " experts_size"] | None = None,
) -> Float32[Tensor, "chosen rows size"]:
    """The weighted outputs of each row's experts, as partial sums.

    gate_up: for each of `count` experts the rows of its gates, then those of its ups. down: for
    each expert the rows of its outputs.
    """
    x, (rows, size), chosen = x.contiguous(), x.shape, choice.experts.shape[1]
    inner = len(gate_up) // (2 * count)
    tile = tile_for(rows * chosen, count)
    blocks = align(choice.experts, count, tile.bm)
    h = x.new_empty(rows * chosen, inner)
    y = torch.empty((chosen, rows, size), device=x.device, dtype=torch.float32)
    common = {
        "CHOSEN": chosen, "BM": tile.bm, "BN": tile.bn, "BK": tile.bk, "STAGES": tile.stages,
        "OPERAND": operand(x.dtype), "num_warps": tile.warps, **dependent(x),
    }  # fmt: skip
    gated: Any = _gated_experts[(-(-2 * inner // tile.bn), len(blocks.experts))]
    finished: Any = _down_experts[(-(-size // tile.bn), len(blocks.experts))]
    with torch.cuda.device_of(x):
        gated(
            x, gate_up, gate_up_bias, blocks.pairs, blocks.experts, h, inner, size,
            EVEN=size % tile.bk == 0, ACT=act, **common,
        )  # fmt: skip
        finished(
            h, down, down_bias, blocks.pairs, blocks.experts, choice.weights, y, rows, size, inner,
            EVEN=inner % tile.bk == 0, **common,
        )  # fmt: skip
    return y
