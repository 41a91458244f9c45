"""Products of rows with the experts that each row chose, which read only the experts that some row
chose.

    route     the chosen experts of each row, and their weights
    gated     h[row, choice] = act(x[row] W₁ᵀ) · (x[row] W₂ᵀ)       with W of the chosen expert
    down      y[choice, row] = weight[row, choice] · h[row, choice] Wᵀ

Nothing is read by the host. A program multiplies a tile of one expert with all rows that chose it.
For the rows of a step (up to `FEW`), it finds them itself, and takes BM of them at a time: there is
a program for each choice, of which only the first of an expert continues, or, if fewer, for each
expert. For more rows `align` sorts the choices by expert first, into blocks of BM pairs (row,
choice), as many as any choice can need; programs of the others end at once.

    chosen   row 0: 3 7   row 1: 7 3   row 2: 3 5       continues: pairs 0 (rows 0 1 2), 1, 5
    align    experts 3 5 7 -   blocks [0 3 4 -] [5 - - -] [1 2 - -] [- - - -]       BM = 4

A row's results do not depend on the other rows: each is a sum over K in one order. The choices of a
row stay apart as partial sums, which the next kernel adds as it reads them. As vLLM's fused mixture
of experts (Kwon et al., 2023), without its padding of rows.

The norm of x may be unfinished (`hopper.gemm.PendingNorm`): `route` computes the factor of each
row, and `gated` multiplies its result with it.
"""

from dataclasses import dataclass
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, Int32, Num, UInt8
from torch import Tensor

from bass.kernels.triton import mxfp4
from bass.kernels.triton.launch import (
    INTERPRETED,
    dependent,
    interpreted_range,
    operand,
    wait_for_inputs,
)
from bass.kernels.triton.small_m_gemm import Tile, activated, evenness

FEW = 64  # rows among which a program finds its own
FEWEST = 16  # rows of x in a program, bound by bytes
EVEN = 0.8  # of the multiprocessors busy, else tiles are narrower


@dataclass(frozen=True)
class Choice:
    """The experts of each row, and their weights. scale: what finishes the norm of each row of x;
    None: it is finished.
    """

    experts: Int32[Tensor, "rows chosen"]
    weights: Float32[Tensor, "rows chosen"]
    scale: Float32[Tensor, " rows"] | None = None


@dataclass(frozen=True)
class Blocks:
    """Pairs row · chosen + choice by block, -1 for none; the expert of each block, -1 for none."""

    pairs: Int32[Tensor, "blocks size"]
    experts: Int32[Tensor, " blocks"]


@triton.jit
@no_type_check
def _route(
    logits, squares, experts, weights, scale, part_size, count, size, eps, square_tiles,
    PARTS: tl.constexpr, CHOSEN: tl.constexpr, NORMALISED: tl.constexpr, WIDTH: tl.constexpr,
    ROUND: tl.constexpr, SQUARES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    wait_for_inputs(PDL)
    if SQUARES > 0:
        tile = tl.arange(0, SQUARES)
        at = tile * tl.num_programs(0) + row
        spread = tl.sum(tl.load(squares + at, mask=tile < square_tiles, other=0.0), 0) / size
        tl.store(scale + row, tl.rsqrt(spread + eps))
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
    squares: Float32[Tensor, "tiles rows"] | None = None,
    size: int = 1,
    eps: float = 0.0,
) -> Choice:
    """The `chosen` experts of each row with the largest logits, largest first; of equal ones the
    first. weights: exp(logit) over its sum for the chosen ones (normalised) or for all.

    logits: partial sums, rounded to `dtype` when added. squares: of rows of `size` numbers whose
    norm is unfinished, as in `hopper.gemm.PendingNorm`.
    """
    logits = logits.contiguous()
    parts, rows, count = logits.shape
    experts = torch.empty((rows, chosen), device=logits.device, dtype=torch.int32)
    weights = torch.empty((rows, chosen), device=logits.device, dtype=torch.float32)
    scale = None if squares is None else weights.new_empty(rows)
    tiles = 0 if squares is None else len(squares)
    launch: Any = _route[(rows,)]
    with torch.cuda.device_of(logits):
        launch(
            logits, squares, experts, weights, scale, rows * count, count, size, eps, tiles,
            PARTS=parts, CHOSEN=chosen, NORMALISED=normalised, WIDTH=triton.next_power_of_2(count),
            ROUND=operand(dtype), SQUARES=0 if tiles == 0 else triton.next_power_of_2(tiles),
            num_warps=1, **dependent(logits),
        )  # fmt: skip
    return Choice(experts, weights, scale)


def align(experts: Int32[Tensor, "rows chosen"], count: int, size: int) -> Blocks:
    """Blocks of `size` pairs of one expert each, for any of `count` experts."""
    experts = experts.reshape(-1)
    blocks = (
        min(count, len(experts)) + len(experts) // size
    )  # each has at most one that is not full
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
def _owner(
    chosen, experts, rows,
    CHOSEN: tl.constexpr, PLACES: tl.constexpr, ROWS: tl.constexpr, BM: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    """The expert of this program; which of its choices the expert is for each row, PLACES for none;
    ranks among the rows that chose it; and in how many parts of up to BM rows they come, 0 if
    another program has them.
    """
    block = tl.program_id(1)
    if BLOCKS == "sorted":
        expert = tl.load(experts + block)
        which = tl.zeros((1,), dtype=tl.int32)
        rank = which
        parts = (expert >= 0).to(tl.int32)
    else:
        m, choice = tl.arange(0, ROWS), tl.arange(0, PLACES)[None, :]
        expert = block
        if BLOCKS == "chosen":
            expert = tl.load(chosen + block)
        there = (m < rows)[:, None] & (choice < CHOSEN)
        of = tl.load(chosen + m[:, None] * CHOSEN + choice, mask=there, other=-1)
        which = tl.min(tl.where(of == expert, choice, PLACES), 1)
        member = (which < PLACES).to(tl.int32)
        rank = tl.cumsum(member, 0) - 1
        parts = (tl.sum(member, 0) + BM - 1) // BM
        if BLOCKS == "chosen":  # the first row that chose it
            parts = tl.where(tl.sum(tl.where(m == block // CHOSEN, rank, 0), 0) == 0, parts, 0)
    return expert, which, rank, parts


@triton.jit
@no_type_check
def _members(
    pairs, which, rank, part,
    CHOSEN: tl.constexpr, PLACES: tl.constexpr, ROWS: tl.constexpr, BM: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    """Up to BM rows of an expert, as which of their choices they have it, and which are there."""
    i = tl.arange(0, BM)
    if BLOCKS == "sorted":
        pair = tl.load(pairs + tl.program_id(1) * BM + i)
        live = pair >= 0
        pair = tl.maximum(pair, 0)
        row, place = pair // CHOSEN, pair % CHOSEN
    else:
        m = tl.arange(0, ROWS)[:, None]
        taken = (rank[:, None] == (part * BM + i)[None, :]) & (which < PLACES)[:, None]
        live = tl.sum(taken.to(tl.int32), 0) > 0
        row = tl.sum(tl.where(taken, m, 0), 0)
        place = tl.sum(tl.where(taken, which[:, None], 0), 0)
    return row, place, live


@triton.jit
@no_type_check
def _gathered(
    x, w, w_scale, row, live, w_row, lines, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    OPERAND: tl.constexpr,
):  # fmt: skip
    """Σ_k w[w_row, k] x[row, k] in float32 [BN, BM], of w with or without scales; `lines`: all rows
    of w.
    """
    if w_scale is not None:
        return mxfp4.gathered(
            x, w, w_scale, row, live, w_row, lines, K, BM, BN, BK, STAGES, OPERAND
        )
    EVEN: tl.constexpr = K % BK == 0
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


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def _gated_experts(
    x, w, w_scale, bias, chosen, pairs, experts, scale, h, rows, inner, lines, K: tl.constexpr,
    CHOSEN: tl.constexpr, PLACES: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    ACT: tl.constexpr, OPERAND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_inputs(PDL)
    expert, which, rank, parts = _owner(chosen, experts, rows, CHOSEN, PLACES, ROWS, BM, BLOCKS)
    for part in range(parts):
        row, place, live = _members(pairs, which, rank, part, CHOSEN, PLACES, ROWS, BM, BLOCKS)
        # a tile has the rows of BN / 2 gates, then those of as many ups
        half: tl.constexpr = BN // 2
        line = tl.arange(0, BN)
        n = tl.minimum(tl.program_id(0) * half + line % half, inner - 1)
        w_row = (2 * expert + line // half) * inner + n
        result = _gathered(x, w, w_scale, row, live, w_row, lines, K, BM, BN, BK, STAGES, OPERAND)
        if scale is not None:
            result *= tl.load(scale + row, mask=live, other=0.0)[None, :]
        if bias is not None:
            result += tl.load(bias + w_row).to(tl.float32)[:, None]
        gate, up = tl.split(tl.permute(tl.reshape(result, (2, half, BM)), (1, 2, 0)))
        n = tl.program_id(0) * half + tl.arange(0, half)
        tl.store(
            h + (row * CHOSEN + place).to(tl.int64)[None, :] * inner + n[:, None],
            activated(gate, up, ACT).to(h.dtype.element_ty),
            mask=(n < inner)[:, None] & live[None, :],
        )


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def _down_experts(
    h, w, w_scale, bias, chosen, pairs, experts, weights, y, rows, n_size, lines, K: tl.constexpr,
    CHOSEN: tl.constexpr, PLACES: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    OPERAND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_inputs(PDL)
    expert, which, rank, parts = _owner(chosen, experts, rows, CHOSEN, PLACES, ROWS, BM, BLOCKS)
    for part in range(parts):
        row, place, live = _members(pairs, which, rank, part, CHOSEN, PLACES, ROWS, BM, BLOCKS)
        n = tl.program_id(0) * BN + tl.arange(0, BN)
        w_row = expert * n_size + tl.minimum(n, n_size - 1)
        pair = row * CHOSEN + place
        result = _gathered(h, w, w_scale, pair, live, w_row, lines, K, BM, BN, BK, STAGES, OPERAND)
        if bias is not None:
            result += tl.load(bias + w_row).to(tl.float32)[:, None]
        result *= tl.load(weights + pair, mask=live, other=0.0)[None, :]
        tl.store(
            y + (place.to(tl.int64) * rows + row)[None, :] * n_size + n[:, None],
            result,
            mask=(n < n_size)[:, None] & live[None, :],
        )


def tiles_for(
    block_rows: int, inner: int, size: int, blocks: int, packed: tuple[bool, bool]
) -> tuple[Tile, Tile]:
    """How the products of gates and ups, and those of outputs, are cut: for few rows of each
    expert, bound by bytes, or for many. packed: in MXFP4, whose BK are bytes.
    """

    def tile(n: int, packed: bool) -> Tile:
        if block_rows > FEWEST:
            return Tile(64, 64, 4, 2) if packed else Tile(128, 64, 3, 8)
        even = evenness(blocks * -(-n // 64)) > EVEN
        if packed:  # two warps: four have instructions whose operands take longer to arrange
            return Tile(64 if even else 32, 64, 4, 2)
        return Tile(64, 128, 4, 4) if even else Tile(32, 128, 6, 2)

    return tile(2 * inner, packed[0]), tile(size, packed[1])


def experts(
    x: Float[Tensor, "rows size"],
    choice: Choice,
    gate_up: Num[Tensor, "experts_twice_inner width"],
    down: Num[Tensor, "experts_size inner_width"],
    count: int,
    act: str,
    gate_up_bias: Float[Tensor, " experts_twice_inner"] | None = None,
    down_bias: Float[Tensor, " experts_size"] | None = None,
    gate_up_scale: UInt8[Tensor, "groups experts_twice_inner"] | None = None,
    down_scale: UInt8[Tensor, "inner_groups experts_size"] | None = None,
) -> Float32[Tensor, "chosen rows size"]:
    """The weighted outputs of each row's experts, as partial sums.

    gate_up: for each of `count` experts the rows of its gates, then those of its ups. down: for
    each expert the rows of its outputs. With scales, a matrix holds codes, as in `mxfp4`.
    """
    x, (rows, size), chosen = x.contiguous(), x.shape, choice.experts.shape[1]
    inner, pairs = len(gate_up) // (2 * count), rows * chosen
    bm = FEWEST if rows <= FEW or pairs <= FEWEST * count else 64
    most: Any = max(bm, triton.next_power_of_2(rows))
    h = x.new_empty(pairs, inner)
    y = torch.empty((chosen, rows, size), device=x.device, dtype=torch.float32)
    members, blocks = (choice.experts, None, None), min(pairs, count)
    if rows > FEW:
        found = align(choice.experts, count, bm)
        members, blocks = (choice.experts, found.pairs, found.experts), len(found.experts)
    kind = "sorted" if rows > FEW else "chosen" if blocks == pairs else "all"
    common = {
        "CHOSEN": chosen, "PLACES": triton.next_power_of_2(chosen), "ROWS": most, "BLOCKS": kind,
        "BM": bm, "OPERAND": operand(x.dtype), **dependent(x),
    }  # fmt: skip
    packed = gate_up_scale is not None, down_scale is not None
    one, other = tiles_for(bm, inner, size, min(blocks, pairs), packed)
    gated: Any = _gated_experts[(-(-2 * inner // one.bn), blocks)]
    finished: Any = _down_experts[(-(-size // other.bn), blocks)]
    with torch.cuda.device_of(x):
        gated(
            x, gate_up, gate_up_scale, gate_up_bias, *members, choice.scale, h, rows, inner,
            len(gate_up), size, ACT=act, **one.options, **common,
        )  # fmt: skip
        finished(
            h, down, down_scale, down_bias, *members, choice.weights, y, rows, size,
            len(down), inner, **other.options, **common,
        )  # fmt: skip
    return y
