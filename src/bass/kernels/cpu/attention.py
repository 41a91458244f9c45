"""Rotary embedding, storage of keys and values, and attention of a window, in float32.

    k[b, p], v[b, p] <- rotated key, value       with a norm of the heads of q and k before, if any
    out[b, w, h] = Σ_p softmax_p(cap(scale q[b, w, h] · k[b, p, h // G])) v[b, p, h // G]

A thread takes a row's key head: its queries see no other head's keys.
"""

import math
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int
from numba import njit
from torch import Tensor

from bass.kernels.cpu.runtime import compiled, empty, floats, own_share, unpacked
from bass.kernels.values import Norm


@njit(cache=True, error_model="numpy")
@no_type_check
def _completed(y, at, norm, weight, offset, eps, angles, cos, sin, out, to, dim):
    """Write a head with its norm (weight -1: none) and its rotary embedding (angles -1: none)."""
    scale = 1.0
    if weight >= 0:
        squares = 0.0
        for i in range(dim):
            squares += y[at + i] ** 2
        scale = 1 / math.sqrt(squares / dim + eps)
    half = dim // 2
    for i in range(dim):
        j = i + half if i < half else i - half
        value, other = y[at + i], y[at + j]
        if weight >= 0:
            value = np.float32(value * scale) * (norm[weight + i] + offset)
            other = np.float32(other * scale) * (norm[weight + j] + offset)
        if angles >= 0:
            value = value * cos[angles + i] + other * sin[angles + i]
        out[to + i] = value


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _attended(q, at, k, v, base, step, first, last, scale, softcap, out, to, dim):
    """One query over the positions [first, last); its scores are stored behind it."""
    largest, scores = -math.inf, at + dim
    for p in range(first, last):
        dot, key = np.float32(0), base + p * step
        for i in range(dim):
            dot += q[at + i] * k[key + i]
        dot *= scale
        if softcap > 0:
            dot = softcap * math.tanh(dot / softcap)
        q[scores + p] = dot
        largest = max(largest, dot)
    total = 0.0
    for i in range(dim):
        out[to + i] = 0
    for p in range(first, last):
        weight, value = math.exp(q[scores + p] - largest), base + p * step
        total += weight
        q[scores + p] = weight
        for i in range(dim):
            out[to + i] += q[scores + p] * v[value + i]
    inverse = 1 / total
    for i in range(dim):
        out[to + i] *= inverse


@compiled
@no_type_check
def _store_and_attend(argument):
    (
        y, cos, sin, positions, offsets, k, v, out, scratch, batch, window, heads, kv_heads, dim,
        row_step, extent, seen, scale, softcap, norm, offset, eps, threads,
    ) = unpacked(argument, "FiiIIFFFFiiiiiiiiddiidi")  # fmt: skip
    rotates, normed, cos, sin, norm = cos != 0, norm != 0, floats(cos), floats(sin), floats(norm)
    scale, softcap, offset = np.float32(scale), np.float32(softcap), np.float32(offset)
    group, all_heads, items = heads // kv_heads, heads + 2 * kv_heads, batch * kv_heads
    for item in own_share(items, threads):
        b, head = item // kv_heads, item % kv_heads
        base, step = b * row_step + head * dim, kv_heads * dim
        query = item * (dim + extent)  # in scratch: a query, then its scores
        weight = (heads + head) * dim if normed else -1
        begin = b * window if window > 0 else offsets[b]
        end = begin + window if window > 0 else offsets[b + 1]
        for token in range(begin, end):
            own, place = positions[token], token * all_heads
            if own >= 0:
                angles, to = own * dim if rotates else -1, base + own * step
                key = (place + heads + head) * dim
                _completed(y, key, norm, weight, offset, eps, angles, cos, sin, k, to, dim)
                for i in range(dim):
                    v[to + i] = y[key + kv_heads * dim + i]
        for token in range(begin, end):
            own, place = positions[token], token * all_heads
            angles = own * dim if rotates else -1
            for h in range(head * group, (head + 1) * group):
                to = (token * heads + h) * dim
                if own < 0:
                    for i in range(dim):
                        out[to + i] = 0
                    continue
                weight = h * dim if normed else -1
                _completed(
                    y, (place + h) * dim, norm, weight, offset, eps, angles, cos, sin, scratch,
                    query, dim,
                )  # fmt: skip
                first = max(own + 1 - seen, 0)
                _attended(
                    scratch, query, k, v, base, step, first, own + 1, scale, softcap, out, to, dim
                )  # fmt: skip


def supports(y: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernel supports the projection and the cache's view: see `store_and_attend`."""
    return (
        y.dtype == k.dtype == v.dtype == torch.float32
        and y.shape[-1] % 2 == 0
        and k.stride() == v.stride()
        and k.stride()[1:] == (k.shape[2] * k.shape[3], k.shape[3], 1)
    )


def store_and_attend(
    y: Float[Tensor, "batch window all_heads dim"],
    norm: Norm | None,
    tables: tuple[Tensor, Tensor] | None,
    positions: Int[Tensor, "batch window"],
    offsets: Int[Tensor, " rows_and_one"] | None,
    k: Float[Tensor, "rows extent kv_heads dim"],
    v: Float[Tensor, "rows extent kv_heads dim"],
    span: int,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Float[Tensor, "batch window heads dim"]:
    """Complete a projection, store its keys and values, and attend; zero for position -1.

    tables: cosines and signed sines of every position [context, dim]. offsets: of a packed window
    [1, tokens], where the tokens of each row of the cache begin, and their number. No position is
    at or beyond `span`.
    """
    y, positions = y.contiguous(), positions.contiguous()
    (batch, width, count, dim), (extent, kv_heads) = y.shape, k.shape[1:3]
    out = y.new_empty(batch, width, count - 2 * kv_heads, dim)
    if offsets is not None:
        batch, width = len(offsets) - 1, 0
    # not of `span`, which differs between the passes of a program
    scratch = empty(batch * kv_heads * (dim + extent))
    _store_and_attend(
        2 * out.numel() * span,
        y, *(tables or (None, None)), positions, offsets, k, v, out, scratch, batch, width,
        count - 2 * kv_heads, kv_heads, dim, k.stride(0), extent,
        extent if window is None else window, float(scale), float(softcap or 0),
        None if norm is None else norm.weight, norm is not None and norm.kind == "offset_rms",
        0.0 if norm is None else float(norm.eps),
    )  # fmt: skip
    return out
