"""What stands between a decoder's products: residual sum and norm, rotary turn.

    add_norm   s' = s + Σ_i parts_i ;  n = s' / sqrt(mean(s'²) + eps) · weight, in 8 bits with a
               scale if the next product wants that
    embedded   rows of a table
    gate       act(gate) · up, from a product whose first half of columns are the gates
    turn       y = Σ_i parts_i ;  the heads of q and k rotated: y cos + (y with its halves
               swapped) · signed sin; k and v to their slots

Sums are made in float32; the summands come from products whose K was divided.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int, Num
from torch import Tensor

from bass.kernels.triton.launch import dependent, wait_for_all, wait_for_inputs
from bass.kernels.triton.quantize import in_8_bits, options
from bass.kernels.triton.small_m_gemm import activated

GATES, HEADS = 1024, 4  # columns, heads of one program


@triton.jit(do_not_specialize=["rows"])
@no_type_check  # Triton reads the source, not the function
def _add_norm(
    stream, parts, weight, summed, normed, scales, rows, size, eps,
    SPLITS: tl.constexpr, WIDTH: tl.constexpr, IN_8_BITS: tl.constexpr, LARGEST: tl.constexpr,
    SMALLEST: tl.constexpr,
    INTEGER: tl.constexpr, BY_HAND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    live = i < size
    scale = tl.load(weight + i, mask=live, other=0.0).to(tl.float32)
    wait_for_inputs(PDL)
    x = tl.load(stream + row * size + i, mask=live, other=0.0).to(tl.float32)
    for split in tl.static_range(SPLITS):
        x += tl.load(parts + (split * rows + row) * size + i, mask=live, other=0.0).to(tl.float32)
    rounded = x.to(summed.dtype.element_ty)
    if SPLITS > 0:
        tl.store(summed + row * size + i, rounded, mask=live)
    x = rounded.to(tl.float32)
    unit = x * tl.rsqrt(tl.sum(x * x, 0) / size + eps)
    value = unit * scale
    if IN_8_BITS:
        value, own_scale = in_8_bits(value, LARGEST, SMALLEST, INTEGER, BY_HAND)
        tl.store(scales + row, own_scale)
    tl.store(normed + row * size + i, value.to(normed.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["token_stride"])
@no_type_check
def _embedded(
    table, tokens, out, vocab, size, stride, token_stride, WIDTH: tl.constexpr, PDL: tl.constexpr
):
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    wait_for_all(PDL)  # a pass begins here, and its kernels ask for old keys before they wait
    token = tl.load(tokens + row * token_stride).to(tl.int64)
    value = tl.load(
        table + token * stride + i,
        mask=(i < size) & (token >= 0) & (token < vocab),
        other=float("nan"),
    )
    tl.store(out + row * size + i, value, mask=i < size)


@triton.jit
@no_type_check
def _gate(y, out, size, ACT: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr):
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    wait_for_inputs(PDL)
    gates = y + row * 2 * size
    gate = tl.load(gates + i, mask=i < size, other=0.0).to(tl.float32)
    up = tl.load(gates + size + i, mask=i < size, other=0.0).to(tl.float32)
    tl.store(out + row * size + i, activated(gate, up, ACT).to(out.dtype.element_ty), mask=i < size)


@triton.jit(do_not_specialize=["queries", "part_size", "place_row", "position_row"])
@no_type_check
def _turn(
    y, q, cos, sin, k, v, place, positions, queries, heads, part_size,
    k_row, k_key, k_head, v_row, v_key, v_head, place_row, position_row, position_query,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, PARTS: tl.constexpr, LAYOUT: tl.constexpr,
    PAGE: tl.constexpr, HEADS: tl.constexpr,
    WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    token, head = tl.program_id(0), tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    row, query = (token // queries).to(tl.int64), token % queries
    i = tl.arange(0, WIDTH)
    # a head's first half; its second goes along with it
    live = (head < heads)[:, None] & (i < DIM // 2)[None, :]
    wait_for_inputs(PDL)
    position = tl.load(positions + row * position_row + query * position_query)
    if LAYOUT == "padded":
        slot = position.to(tl.int64)
    elif LAYOUT == "ragged":
        slot = tl.load(place + row) + position
    else:
        slot = tl.load(place + row * place_row + tl.maximum(position, 0) // PAGE) + position % PAGE
    half: tl.constexpr = DIM // 2
    begin = y + (token.to(tl.int64) * heads + head)[:, None] * DIM + i[None, :]
    low, high = (
        tl.zeros((HEADS, WIDTH), dtype=tl.float32),
        tl.zeros((HEADS, WIDTH), dtype=tl.float32),
    )
    for part in tl.static_range(PARTS):
        low += tl.load(begin + part * part_size, mask=live, other=0.0).to(tl.float32)
        high += tl.load(begin + part * part_size + half, mask=live, other=0.0).to(tl.float32)
    angle = tl.maximum(position, 0) * DIM + i
    low_cos = tl.load(cos + angle, mask=i < half, other=0.0).to(tl.float32)
    high_cos = tl.load(cos + angle + half, mask=i < half, other=0.0).to(tl.float32)
    low_sin = tl.load(sin + angle, mask=i < half, other=0.0).to(tl.float32)
    high_sin = tl.load(sin + angle + half, mask=i < half, other=0.0).to(tl.float32)
    # the number of a key head; that of a value head is KV_HEADS less
    key = head - (heads - 2 * KV_HEADS)
    turns = (key < KV_HEADS)[:, None]
    first = tl.where(turns, low * low_cos[None, :] + high * low_sin[None, :], low)
    second = tl.where(turns, high * high_cos[None, :] + low * high_sin[None, :], high)
    q_at = q + (token.to(tl.int64) * (heads - 2 * KV_HEADS) + head)[:, None] * DIM + i[None, :]
    k_at = k + row * k_row + slot * k_key + key[:, None] * k_head + i[None, :]
    v_at = v + row * v_row + slot * v_key + (key - KV_HEADS)[:, None] * v_head + i[None, :]
    is_query, written = live & (key < 0)[:, None], live & (position >= 0)
    is_key, is_value = (
        written & ((key >= 0) & (key < KV_HEADS))[:, None],
        written & (key >= KV_HEADS)[:, None],
    )
    tl.store(q_at, first.to(q.dtype.element_ty), mask=is_query)
    tl.store(q_at + half, second.to(q.dtype.element_ty), mask=is_query)
    tl.store(k_at, first.to(k.dtype.element_ty), mask=is_key)
    tl.store(k_at + half, second.to(k.dtype.element_ty), mask=is_key)
    tl.store(v_at, first.to(v.dtype.element_ty), mask=is_value)
    tl.store(v_at + half, second.to(v.dtype.element_ty), mask=is_value)


def add_norm(
    stream: Float[Tensor, "rows size"],
    parts: Float[Tensor, "splits rows size"] | None,
    weight: Float[Tensor, " size"],
    eps: float,
    kind: torch.dtype | None = None,
) -> tuple[Float[Tensor, "rows size"], Num[Tensor, "rows size"], Float[Tensor, " rows"] | None]:
    """The stream with `parts` added, and its norm times weight, in `kind` (int8 or e4m3) with a
    scale for each row if that is given.

    Without parts the stream is given back as it is.
    """
    stream, (rows, size) = stream.contiguous(), stream.shape
    normed = torch.empty_like(stream, dtype=kind)
    scales = None if kind is None else stream.new_empty(rows, dtype=torch.float32)
    summed = stream if parts is None else torch.empty_like(stream)
    width, splits = 1 << (size - 1).bit_length(), 0 if parts is None else len(parts)
    launch: Any = _add_norm[(rows,)]
    with torch.cuda.device_of(stream):
        launch(
            stream, stream if parts is None else parts, weight, summed, normed, scales, rows, size,
            eps,
            SPLITS=splits, WIDTH=width, IN_8_BITS=kind is not None,
            num_warps=8 if width > 2048 else 4,
            **options(kind or torch.int8), **dependent(stream),
        )  # fmt: skip
    return summed, normed, scales


def embedded(
    table: Float[Tensor, "vocab size"], tokens: Int[Tensor, "*rows"]
) -> Float[Tensor, "*rows size"]:
    """The rows of the table that the tokens name; not a number for a token that is none."""
    out, flat, size = (
        table.new_empty(*tokens.shape, table.shape[1]),
        tokens.reshape(-1),
        table.shape[1],
    )
    launch: Any = _embedded[(len(flat), -(-size // GATES))]
    with torch.cuda.device_of(table):
        launch(
            table, flat, out, *table.shape, table.stride(0), flat.stride(0), WIDTH=GATES,
            num_warps=4, **dependent(table),
        )  # fmt: skip
    return out


def gate(y: Float[Tensor, "rows twice"], act: str) -> Float[Tensor, "rows inner"]:
    """act(gate) · up: what `dense.gated` makes in one. act: silu, gelu or gelu_tanh."""
    y, rows, size = y.contiguous(), y.shape[0], y.shape[1] // 2
    out = y.new_empty(rows, size)
    launch: Any = _gate[(rows, -(-size // GATES))]
    with torch.cuda.device_of(y):
        launch(y, out, size, ACT=act, WIDTH=GATES, num_warps=4, **dependent(y))
    return out


def turn(
    parts: Float[Tensor, "parts batch window every dim"],
    cos: Float[Tensor, "context dim"],
    sin: Float[Tensor, "context dim"],
    positions: Int[Tensor, "batch window"],
    k: Float[Tensor, "*slots kv_heads dim"],
    v: Float[Tensor, "*slots kv_heads dim"],
    place: Int[Tensor, "batch *entries"] | None = None,
    page: int | None = None,
) -> Float[Tensor, "batch window heads dim"]:
    """Add up a window's summands, turn its queries and keys, write keys and values, and return the
    queries. -1 is written nowhere.

    The heads of `parts` are those of q, of k and of v. `cos`, `sin`: of all positions, with the
    sign that the half it meets wants.

    Position p of row b goes to k[b, p]; with `place` to k[place[b] + p] of a pool; with `page` to
    k[place[b, p // page] + p % page]. The last axis of k and v is contiguous.
    """
    parts, cos, sin = (x.contiguous() for x in (parts, cos, sin))
    splits, batch, queries, heads, dim = parts.shape
    kv_heads = k.shape[-2]
    q = k.new_empty(batch, queries, heads - 2 * kv_heads, dim)
    layout = "padded" if place is None else "ragged" if page is None else "paged"
    row = () if layout == "padded" else (0,)
    launch: Any = _turn[(batch * queries, -(-heads // HEADS))]
    with torch.cuda.device_of(k):
        launch(
            parts, q, cos, sin, k, v, place, positions, queries, heads, parts[0].numel(),
            *row, *k.stride()[:-1], *row, *v.stride()[:-1], 0 if place is None else place.stride(0),
            *positions.stride(),
            KV_HEADS=kv_heads, DIM=dim, PARTS=splits, LAYOUT=layout, PAGE=page or 1, HEADS=HEADS,
            WIDTH=1 << (dim // 2 - 1).bit_length(),
            num_warps=2, **dependent(k),
        )  # fmt: skip
    return q
