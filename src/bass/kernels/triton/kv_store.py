"""Completes a window's queries, keys and values, and stores keys and values.

    y = Σ_i partial_sums_i ;  the heads of q and k normalised: y / sqrt(mean(y²) + eps) · weight,
    and rotated: y cos + (y with its halves swapped) · signed sin; k and v to their slots

Sums are in float32; the partial sums come from products with a divided K.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from bass.kernels.triton.launch import dependent, wait_for_inputs
from bass.kernels.values import Norm

HEADS = 4  # of one program


@triton.jit(
    do_not_specialize=["queries", "place_row", "position_row"],
    do_not_specialize_on_alignment=["place"],  # of the rows from any first one
)
@no_type_check
def _rotate_and_store(
    y, q, cos, sin, norm, k, v, place, positions, queries, heads, part_size, eps,
    k_row, k_key, k_head, v_row, v_key, v_head, place_row, position_row, position_query,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, PARTS: tl.constexpr, LAYOUT: tl.constexpr,
    PAGE: tl.constexpr, HEADS: tl.constexpr, NORM: tl.constexpr, ROTARY: tl.constexpr,
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
    # the number of a key head; that of a value head is KV_HEADS less
    key = head - (heads - 2 * KV_HEADS)
    rotates = (key < KV_HEADS)[:, None]
    first, second = low, high
    if NORM != "":
        weights = norm + head[:, None] * DIM + i[None, :]
        known = live & rotates
        low_by = tl.load(weights, mask=known, other=0.0).to(tl.float32)
        high_by = tl.load(weights + half, mask=known, other=0.0).to(tl.float32)
        if NORM == "offset_rms":
            low_by, high_by = low_by + 1.0, high_by + 1.0
        unit = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / DIM + eps)[:, None]
        first = tl.where(rotates, low * unit * low_by, low)
        second = tl.where(rotates, high * unit * high_by, high)
    if ROTARY:
        low, high = first, second
        angle = tl.maximum(position, 0) * DIM + i
        low_cos = tl.load(cos + angle, mask=i < half, other=0.0).to(tl.float32)
        high_cos = tl.load(cos + angle + half, mask=i < half, other=0.0).to(tl.float32)
        low_sin = tl.load(sin + angle, mask=i < half, other=0.0).to(tl.float32)
        high_sin = tl.load(sin + angle + half, mask=i < half, other=0.0).to(tl.float32)
        first = tl.where(rotates, low * low_cos[None, :] + high * low_sin[None, :], low)
        second = tl.where(rotates, high * high_cos[None, :] + low * high_sin[None, :], high)
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


def rotate_and_store(
    parts: Float[Tensor, "parts batch window every dim"],
    angles: tuple[Float[Tensor, "context dim"], Float[Tensor, "context dim"]] | None,
    norm: Norm | None,
    positions: Int[Tensor, "batch window"],
    k: Float[Tensor, "*slots kv_heads dim"],
    v: Float[Tensor, "*slots kv_heads dim"],
    place: Int[Tensor, "batch ..."] | None = None,
    page: int | None = None,
) -> Float[Tensor, "batch window heads dim"]:
    """Add a window's partial sums, normalise and rotate its queries and keys, write keys and
    values, and return the queries. Nothing is written for position -1.

    The heads of `parts` are those of q, k and v, in this order. `angles`: cosines and signed sines
    of all positions; None: no rotary embedding.

    Position p of row b goes to k[b, p]; with `place` to k[place[b] + p] of a pool; with `page` to
    k[place[b, p // page] + p % page]. The last axis of k and v is contiguous.
    """
    parts = parts.contiguous()
    cos, sin = (None, None) if angles is None else (x.contiguous() for x in angles)
    splits, batch, queries, heads, dim = parts.shape
    kv_heads = k.shape[-2]
    q = k.new_empty(batch, queries, heads - 2 * kv_heads, dim)
    layout = "padded" if place is None else "ragged" if page is None else "paged"
    row = () if layout == "padded" else (0,)
    launch: Any = _rotate_and_store[(batch * queries, -(-heads // HEADS))]
    with torch.cuda.device_of(k):
        launch(
            parts, q, cos, sin, None if norm is None else norm.weight, k, v, place, positions,
            queries, heads, parts[0].numel(), 0.0 if norm is None else norm.eps,
            *row, *k.stride()[:-1], *row, *v.stride()[:-1], 0 if place is None else place.stride(0),
            *positions.stride(),
            KV_HEADS=kv_heads, DIM=dim, PARTS=splits, LAYOUT=layout, PAGE=page or 1, HEADS=HEADS,
            NORM="" if norm is None else norm.kind,
            ROTARY=angles is not None, WIDTH=1 << (dim // 2 - 1).bit_length(),
            num_warps=2, **dependent(k),
        )  # fmt: skip
    return q
