"""The draw of a token, and the verdict of speculative rejection sampling, in two launches each.

    draw      the token at which the running sum of p exceeds u Σ p (inverse transform)
    emit      a draft's accepted tokens, then a draw
    verdict   m = the number of drafted tokens before the first with u_i draft_i >= target_i
              (Leviathan et al., 2023), or the length; then a draw from max(0, target_m - draft_m)
              after a rejection, from target_m at the row's own length

    sums      per chunk of the row: Σ of the values to draw from, in float64
    pick      the chunk in which the running sum of these exceeds the threshold, then the place in
              this chunk

A draw is a verdict on an empty draft. Every program of a row counts the accepted tokens again: that
takes two numbers per drafted token.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from bass.kernels.triton.launch import dense, dependent, wait_for_inputs

CHUNK, WARPS = 2048, 4  # of a row, in tokens
PLACES = 32  # least places of a draft: one compiled kernel serves every usual length


@triton.jit
@no_type_check  # Triton reads the source, not the function
def _accepted(
    tokens, lengths, accept, target, draft, row, k, vocab, token_row, accept_row, accept_slot,
    target_row, target_slot,
    draft_row, draft_slot, WIDTH: tl.constexpr, SURE: tl.constexpr,
):  # fmt: skip
    """The number of accepted tokens of a row, whether the next one was rejected, and its id."""
    i = tl.arange(0, WIDTH)
    length = tl.minimum(tl.load(lengths + row).to(tl.int32), k)
    live = i < length
    token = tl.load(tokens + row * token_row + i, mask=live, other=-1)
    known = (token >= 0) & (token < vocab)
    own = tl.load(target + row * target_row + i * target_slot + token, mask=known, other=0.0).to(
        tl.float64
    )
    uniform = tl.load(accept + row * accept_row + i * accept_slot, mask=live, other=1.0).to(
        tl.float64
    )
    if not SURE:
        uniform = uniform * tl.load(
            draft + row * draft_row + i * draft_slot + token, mask=known, other=0.0
        ).to(tl.float64)
    accepted = tl.min(tl.where(live & (uniform < own), WIDTH, i), 0)
    return accepted, accepted < length, tl.sum(tl.where(i == accepted, token, 0), 0)


@triton.jit
@no_type_check
def _residual(target, draft, at, i, live, rejected, token, SURE: tl.constexpr):
    """The target's and the residual's probabilities of the tokens i; the same without a rejection.

    at: the draft's slot.
    """
    own = tl.load(target + i, mask=live, other=0.0)
    less = (
        tl.where((i == token) & rejected, 1.0, 0.0).to(own.dtype)
        if SURE
        else tl.load(draft + at + i, mask=live & rejected, other=0.0)
    )
    return own, tl.maximum(own - less, 0.0)


@triton.jit(do_not_specialize=["k", "token_row", "accept_row", "accept_slot"])
@no_type_check
def _sums(
    tokens, lengths, accept, target, draft, sums, k, vocab, chunks, token_row, accept_row,
    accept_slot, target_row, target_slot,
    draft_row, draft_slot, WIDTH: tl.constexpr, SURE: tl.constexpr, SIZE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = chunk * SIZE + tl.arange(0, SIZE)
    wait_for_inputs(PDL)
    place = sums + row * 2 * chunks + chunk
    if WIDTH > 0:
        accepted, rejected, token = _accepted(
            tokens, lengths, accept, target, draft, row, k, vocab, token_row, accept_row,
            accept_slot, target_row, target_slot,
            draft_row, draft_slot, WIDTH, SURE,
        )  # fmt: skip
        begin = target + row * target_row + accepted * target_slot
        own, rest = _residual(
            begin,
            draft,
            row * draft_row + accepted * draft_slot,
            i,
            i < vocab,
            rejected,
            token,
            SURE,
        )
        tl.store(place + chunks, tl.sum(rest.to(tl.float64), 0))
    else:
        own = tl.load(target + row * target_row + i, mask=i < vocab, other=0.0)
    tl.store(place, tl.sum(own.to(tl.float64), 0))


@triton.jit
@no_type_check
def _pass(values, threshold):
    """The first place of a positive value at which the running sum exceeds the threshold, and the
    sum before it.

    Rounding may leave the threshold above the whole sum: then it is the last place of a positive
    value. -1 where none is positive.
    """
    i = tl.arange(0, values.shape[0])
    passed = (tl.cumsum(values, 0) > threshold) & (values > 0)
    first = tl.min(tl.where(passed, i, values.shape[0]), 0)
    place = tl.where(first < values.shape[0], first, tl.max(tl.where(values > 0, i, -1), 0))
    return place, tl.sum(tl.where(i < place, values, 0.0), 0)


@triton.jit(
    do_not_specialize=["k", "token_row", "accept_row", "accept_slot", "uniform_row", "uniform_slot"]
)
@no_type_check
def _pick(
    tokens, lengths, accept, target, draft, sums, uniforms, out, counts, k, vocab, chunks,
    token_row, accept_row, accept_slot,
    target_row, target_slot, draft_row, draft_slot, uniform_row, uniform_slot,
    WIDTH: tl.constexpr, WINDOW: tl.constexpr, SURE: tl.constexpr, SIZE: tl.constexpr,
    CHUNKS: tl.constexpr, JUDGED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, CHUNKS)
    wait_for_inputs(PDL)
    sums += row * 2 * chunks
    parts = tl.load(sums + c, mask=c < chunks, other=0.0)
    begin, slot = target + row * target_row, 0
    if WIDTH > 0:
        accepted, rejected, token = _accepted(
            tokens, lengths, accept, target, draft, row, k, vocab, token_row, accept_row,
            accept_slot, target_row, target_slot,
            draft_row, draft_slot, WIDTH, SURE,
        )  # fmt: skip
        slot = accepted
        begin += accepted * target_slot
        rest_parts = tl.load(sums + chunks + c, mask=c < chunks, other=0.0)
        # Rounding can make a residual 0 everywhere, where target and draft agree.
        rejected = rejected & (tl.sum(rest_parts, 0) > 0)
        parts = tl.where(rejected, rest_parts, parts)
    if JUDGED:
        accepted = tl.load(counts + row).to(tl.int32)
        slot = accepted
    uniform = tl.load(uniforms + row * uniform_row + slot * uniform_slot).to(tl.float64)
    threshold = uniform * tl.sum(parts, 0)
    chunk, before = _pass(parts, threshold)
    i = tl.maximum(chunk, 0) * SIZE + tl.arange(0, SIZE)
    if WIDTH > 0:
        _, values = _residual(
            begin,
            draft,
            row * draft_row + accepted * draft_slot,
            i,
            i < vocab,
            rejected,
            token,
            SURE,
        )
    else:
        values = tl.load(begin + i, mask=i < vocab, other=0.0)
    place, _ = _pass(values.to(tl.float64), threshold - before)
    drawn = tl.where(place < 0, vocab - 1, tl.maximum(chunk, 0) * SIZE + place).to(tl.int64)
    if WIDTH > 0 or JUDGED:
        w = tl.arange(0, WINDOW)
        emitted = tl.load(tokens + row * token_row + w, mask=w < k, other=0)
        tl.store(out + row * (k + 1) + w, tl.where(w == accepted, drawn, emitted), mask=w <= k)
        if WIDTH > 0:
            tl.store(counts + row, accepted.to(tl.int64))
    else:
        tl.store(out + row, drawn)


def draw(
    probs: Float[Tensor, "*rows vocab"], uniform: Float[Tensor, "*rows"]
) -> Int[Tensor, "*rows"]:
    """Draw a token from each row, which need not be normalised.

    It equals its torch twin `bass.ops.sampling.draw`, except where the rounding of sums decides.
    """
    flat, uniforms = probs.reshape(-1, probs.shape[-1]), uniform.reshape(-1)
    out = torch.empty(len(flat), dtype=torch.int64, device=probs.device)
    _launch(None, None, None, None, flat[:, None], uniforms[:, None], out, None)
    return out.view(uniform.shape)


def emit(
    tokens: Tensor, accepted: Tensor, probs: Tensor, residual: Tensor
) -> Int[Tensor, "batch window"]:
    """The tokens of `bass.ops.verification.emit`, its torch twin: the draft's, and at place
    `accepted` one drawn from `probs`.
    """
    out = torch.empty((len(tokens), tokens.shape[1] + 1), dtype=torch.int64, device=tokens.device)
    counts = accepted.contiguous()
    _launch(tokens, None, None, None, probs[:, None], residual, out, counts, judged=True)
    return out


def verdict(
    tokens: Int[Tensor, "batch k"],
    draft_probs: Float[Tensor, "batch k vocab"] | None,
    lengths: Int[Tensor, " batch"],
    target_probs: Float[Tensor, "batch window vocab"],
    accept: Float[Tensor, "batch k"],
    residual: Float[Tensor, "batch slots"],
) -> tuple[Int[Tensor, "batch window"], Int[Tensor, " batch"]]:
    """The emitted tokens and the numbers of accepted ones: its torch twin is
    `bass.ops.verification.rejection`.

    accept, residual: the uniforms of these streams. draft_probs: None for a deterministic draft.
    """
    batch, k = tokens.shape
    out, counts = (
        torch.empty(shape, dtype=torch.int64, device=tokens.device)
        for shape in ((batch, k + 1), (batch,))
    )
    if k == 0:
        return draw(target_probs[:, 0], residual[:, 0])[:, None], counts.zero_()
    _launch(tokens, draft_probs, lengths.contiguous(), accept, target_probs, residual, out, counts)
    return out, counts


def _launch(
    tokens: Tensor | None,
    draft_probs: Tensor | None,
    lengths: Tensor | None,
    accept: Tensor | None,
    target_probs: Tensor,
    uniforms: Tensor,
    out: Tensor,
    counts: Tensor | None,
    judged: bool = False,
) -> None:
    """Launch both kernels; without tokens, or with `judged` counts of accepted ones, they only
    draw.
    """
    tokens, target_probs = None if tokens is None else dense(tokens), dense(target_probs)
    draft_probs = None if draft_probs is None else dense(draft_probs)
    k = 0 if tokens is None else tokens.shape[1]
    rows, vocab = len(target_probs), target_probs.shape[2]
    chunks = -(-vocab // CHUNK)
    sums = torch.empty((rows, 2, chunks), dtype=torch.float64, device=target_probs.device)
    strides = _strides(tokens, 1)
    for x in (accept, target_probs, draft_probs):
        strides += _strides(x, 2)
    width = max(PLACES, triton.next_power_of_2(k)) if k and not judged else 0
    options = {"SURE": draft_probs is None, "SIZE": CHUNK, "WIDTH": width, "num_warps": WARPS}
    options |= dependent(target_probs)
    add: Any = _sums[(rows, chunks)]
    pick: Any = _pick[(rows,)]
    inputs = tokens, lengths, accept, target_probs, draft_probs, sums
    with torch.cuda.device_of(target_probs):
        add(*inputs, k, vocab, chunks, *strides, **options)
        pick(
            *inputs, uniforms, out, counts, k, vocab, chunks, *strides, *_strides(uniforms, 2),
            WINDOW=max(PLACES, triton.next_power_of_2(k + 1)),
            CHUNKS=triton.next_power_of_2(chunks), JUDGED=judged, **options,
        )  # fmt: skip


def _strides(x: Tensor | None, count: int) -> tuple[int, ...]:
    return (0,) * count if x is None else x.stride()[:count]
