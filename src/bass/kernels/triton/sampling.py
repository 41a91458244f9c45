"""Logits to probabilities without a sort of the vocabulary, and the log-probabilities of tokens.

    warp            p = e / Σ e over the kept tokens, else 0;  e = exp((x - max x) / T), where x are
                    the logits or, in rows that have any, those with penalties
    token_logprobs  x[token] - max x - log Σ exp(x - max x)

Many programs share a row: each reads a chunk of it, and what the chunks say is put together by
every program of the next launch.

    tops     of a chunk: penalties; its largest logit, where it first stands,
             Σ exp((x - largest) / T); and what `search` finds for the first digit
    search   of a chunk: the tokens (top_k) or the mass (top_p) at or above each of 2^BITS
             thresholds, one launch for each other digit; in a row with both, the last one lists
             the tokens that top_k may keep, of which `probs` finds the floor of top_p
    probs    the row's floor from the digits, then p of a chunk

Options are read on the device, row by row: programs of a row that needs no search end at once.

The floor of top_k is the largest logit with k tokens at or above it, that of top_p the largest with
top_p of the mass at or above it. A floor is found digit by digit, the highest first, in the bits of
the logits, read as integers that are ordered as the logits are: a radix select (Alabi et al.,
2012). Sums over a chunk are in
float32; they are added up as integers, in units of 2^-40 of the largest token's mass, so that the
order of arrivals changes nothing.

How a row is cut depends on the vocabulary only, so that its result is the same in every batch.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float64, Int
from torch import Tensor

from bass.kernels.triton.floors import (
    UNIT,
    floor_of,
    floor_of_listed,
    options_of,
    ordered,
    tops_of,
    total_of,
)
from bass.kernels.triton.launch import dense, dependent, wait_for_inputs
from bass.kernels.triton.penalties import edit, is_edited

CHUNK, WARPS = 4096, 8  # of tops and probs
SEARCH, SEARCH_WARPS = 2048, 4  # of a search
LISTED = 64  # tokens at a time, of those that top_k keeps
BITS = 4  # of a search's digit: 2^BITS comparisons for each token, against a launch for each digit


@triton.jit(do_not_specialize=["columns", "ends", "slots", "drafted_row"])
@no_type_check
def _tops(
    x, sampling, tokens, lens, prompt_lens, end_tokens, drafted,
    edits, tops, totals, places, firsts, sums, scratch,
    stride, vocab, chunks, window, columns, ends, slots, drafted_row,
    BITS: tl.constexpr, KEY_BITS: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr,
    CLEAR: tl.constexpr, ROOM: tl.constexpr, DRAFTED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, before = row // window, columns - window + 1 + row % window
    first = chunk * SIZE
    i, at = first + tl.arange(0, SIZE), row * chunks + chunk
    # older than any kernel that may still run
    edited = is_edited(sampling, lens, prompt_lens, sequence, before)
    inverse, top_k, top_p, min_p = options_of(sampling, sequence, vocab)
    wait_for_inputs(PDL)
    own = x + row * stride
    if edited:
        edit(
            own, edits + row * vocab, scratch + row * vocab, sampling, tokens, lens, prompt_lens,
            end_tokens, drafted, sequence, before, first, vocab, ends, slots, drafted_row,
            SIZE, TILE, DRAFTED,
        )  # fmt: skip
    own = tl.where(edited, edits + row * vocab, own)
    value = tl.load(own + i, mask=i < vocab, other=float("-inf")).to(tl.float32)
    top, place = tl.max(value, 0, return_indices=True)
    # a chunk may have no token; a row of none is not a number
    level = tl.where(top == float("-inf"), 0.0, top)
    tl.store(places + at, first + place)
    tl.store(tops + at, top)
    tl.store(totals + at, tl.sum(tl.exp((value - level) * inverse), 0))
    room = tl.arange(0, ROOM)
    nothing = tl.zeros((ROOM,), dtype=tl.int64)
    tl.store(sums + row * CLEAR + room, nothing, mask=(room < CLEAR) & (chunk == 0))
    if (top_k > 0) | (top_p < 1) | (min_p > 0):
        j = tl.arange(0, 1 << BITS)
        depth: tl.constexpr = (KEY_BITS + BITS - 1) // BITS
        threshold = (j.to(tl.int64) << (BITS * (depth - 1))) - (1 << (KEY_BITS - 1))
        threshold = threshold.to(tl.int32)
        real: tl.constexpr = 1 << (KEY_BITS - BITS * (depth - 1))
        found = tl.zeros((1 << BITS, TILE), dtype=tl.float32)
        for begin in range(0, SIZE, TILE):
            k = first + begin + tl.arange(0, TILE)
            each = tl.load(own + k, mask=k < vocab, other=float("-inf"))
            e = tl.exp((each.to(tl.float32) - level) * inverse)
            weight = tl.where(top_k > 0, tl.where(k < vocab, 1.0, 0.0), e)
            # the first digit may have fewer bits
            above = (ordered(each)[None, :] >= threshold[:, None]) & (j < real)[:, None]
            found += tl.where(above, weight[None, :], 0.0)
        tl.store(firsts + (at << BITS) + j, tl.sum(found, 1))


@triton.jit
@no_type_check
def _list(own, listed, size, floor, first, vocab, SIZE: tl.constexpr, TILE: tl.constexpr):
    """Append the tokens of a chunk from `floor` on, in any order."""
    for begin in range(0, SIZE, TILE):
        i = first + begin + tl.arange(0, TILE)
        value = tl.load(own + i, mask=i < vocab, other=float("-inf"))
        kept = (ordered(value) >= floor.to(tl.int32)) & (i < vocab)
        place = tl.cumsum(kept.to(tl.int32), 0)
        count = tl.max(place, 0)
        if count > 0:
            start = tl.atomic_add(size, count.to(tl.int64), sem="relaxed")
            tl.store(listed + start + place - 1, value, mask=kept)


@triton.jit
@no_type_check
def _search(
    x, sampling, lens, prompt_lens, edits, tops, firsts, sums, floors, listed,
    stride, vocab, chunks, window, columns,
    DIGIT: tl.constexpr, DEPTH: tl.constexpr, BITS: tl.constexpr, KEY_BITS: tl.constexpr,
    SIZE: tl.constexpr, TILE: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    sequence, before = row // window, columns - window + 1 + row % window
    edited = is_edited(sampling, lens, prompt_lens, sequence, before)
    inverse, top_k, top_p, min_p = options_of(sampling, sequence, vocab)
    by_count, by_mass = top_k > 0, top_p < 1
    wait_for_inputs(PDL)
    if by_count | by_mass | ((min_p > 0) & (DIGIT == 1)):
        count: tl.constexpr = 1 << BITS
        shift: tl.constexpr = BITS * (DEPTH - 1 - DIGIT)
        first, j = tl.program_id(1) * SIZE, tl.arange(0, count)
        sums += row * (DEPTH + 2) * count
        theirs = tops_of(tops, row, chunks, CHUNKS)
        top = tl.max(theirs, 0)
        floor, _, need = floor_of(
            firsts, sums, floors, theirs, top, row, chunks, inverse, top_k, top_p,
            DIGIT, DEPTH, BITS, KEY_BITS, CHUNKS,
        )  # fmt: skip
        if first == 0:
            tl.store(floors + (row * DEPTH + DIGIT) * 2, floor.to(tl.float64))
            tl.store(floors + (row * DEPTH + DIGIT) * 2 + 1, need)
        threshold = (floor + (j.to(tl.int64) << shift)).to(tl.int32)[:, None]
        own = tl.where(edited, edits + row * vocab, x + row * stride)
        # Every thread adds up its own tokens first: a comparison is three instructions, a reduction
        # over threads ten for each threshold.
        found = tl.zeros((count, TILE), dtype=tl.float32)
        mass = tl.zeros((count, TILE), dtype=tl.float32)
        likely = tl.zeros((TILE,), dtype=tl.float32)
        for begin in tl.static_range(0, SIZE, TILE):
            i = first + begin + tl.arange(0, TILE)
            value = tl.load(own + i, mask=i < vocab, other=float("-inf"))
            key = ordered(value)
            e = tl.exp((value.to(tl.float32) - top) * inverse)
            above = key[None, :] >= threshold
            weight = tl.where(by_count, tl.where(i < vocab, 1.0, 0.0), e)
            found += tl.where(above, weight[None, :], 0.0)
            if DIGIT + 1 == DEPTH:
                mass += tl.where(above, e[None, :], 0.0)
            if DIGIT == 1:
                likely += tl.where(e >= min_p, e, 0.0)
        unit = tl.where(by_count, 1.0, UNIT)
        whole = (tl.sum(found, 1) * unit).to(tl.int64)
        tl.atomic_add(sums + DIGIT * count + j, whole, sem="relaxed")
        if DIGIT + 1 == DEPTH:
            whole = (tl.sum(mass, 1) * UNIT).to(tl.int64)
            tl.atomic_add(sums + DEPTH * count + j, whole, sem="relaxed")
            if by_count & by_mass:
                # top_p has to look at few tokens then
                _list(
                    own, listed + row * vocab, sums + (DEPTH + 1) * count + 1, floor, first, vocab,
                    SIZE, TILE,
                )  # fmt: skip
        if DIGIT == 1:
            whole = (tl.sum(likely, 0) * UNIT).to(tl.int64)
            tl.atomic_add(sums + (DEPTH + 1) * count, whole, sem="relaxed")


@triton.jit
@no_type_check
def _probs(
    x, sampling, lens, prompt_lens, edits, tops, totals, places, firsts, sums, floors,
    listed, out,
    stride, vocab, chunks, window, columns,
    DEPTH: tl.constexpr, BITS: tl.constexpr, KEY_BITS: tl.constexpr,
    SIZE: tl.constexpr, TILE: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    sequence, before = row // window, columns - window + 1 + row % window
    edited = is_edited(sampling, lens, prompt_lens, sequence, before)
    inverse, top_k, top_p, min_p = options_of(sampling, sequence, vocab)
    greedy = tl.load(sampling + sequence * 8) == 0
    i = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    own = tl.where(edited, edits + row * vocab, x + row * stride)
    count: tl.constexpr = 1 << BITS
    wait_for_inputs(PDL)
    theirs = tops_of(tops, row, chunks, CHUNKS)
    top = tl.max(theirs, 0)
    c = tl.arange(0, CHUNKS)
    total = tl.sum(tl.load(totals + row * chunks + c, mask=c < chunks, other=0.0), 0)
    # a sum with NaN in it is NaN
    finite = (total < float("inf")) & (top > float("-inf"))
    if greedy:
        p = tl.where(i == tl.load(places + row * chunks + tl.argmax(theirs, 0)), 1.0, 0.0)
    else:
        value = tl.load(own + i, mask=i < vocab, other=float("-inf"))
        e = tl.exp((value.to(tl.float32) - top) * inverse)
        if (top_k > 0) | (top_p < 1) | (min_p > 0):
            sums += row * (DEPTH + 2) * count
            kept = tl.load(sums + (DEPTH + 1) * count)  # of min_p; all, where that is off
            keep = e >= min_p
            if (top_k > 0) | (top_p < 1):
                floor, last, _ = floor_of(
                    firsts, sums, floors, theirs, top, row, chunks, inverse, top_k, top_p,
                    DEPTH, DEPTH, BITS, KEY_BITS, CHUNKS,
                )  # fmt: skip
                mass = tl.load(sums + DEPTH * count + last)
                if (top_k > 0) & (top_p < 1):
                    size = tl.load(sums + (DEPTH + 1) * count + 1)
                    higher, mass = floor_of_listed(
                        listed + row * vocab, floor, top, inverse, top_p, size,
                        DEPTH, BITS, KEY_BITS, TILE,
                    )  # fmt: skip
                    floor = tl.maximum(floor, higher)
                keep = keep & (ordered(value) >= floor.to(tl.int32))
                kept = tl.minimum(kept, mass)  # one of the two sets holds the other
            p = tl.where(keep, e, 0.0) / (kept.to(tl.float32) / UNIT)
        else:
            p = e / total_of(totals, theirs, top, row, chunks, inverse, CHUNKS)
    p = tl.where(finite, p, float("nan"))
    tl.store(out + row * vocab + i, p, mask=i < vocab)


@triton.jit
@no_type_check
def _level(x, tops, totals, stride, vocab, chunks, SIZE: tl.constexpr, PDL: tl.constexpr):
    """Of a chunk: its largest logit, and Σ exp(x - largest)."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = chunk * SIZE + tl.arange(0, SIZE)
    wait_for_inputs(PDL)
    value = tl.load(x + row * stride + i, mask=i < vocab, other=float("-inf")).to(tl.float32)
    top = tl.max(value, 0)
    level = tl.where(top == float("-inf"), 0.0, top)  # a chunk may have no token
    tl.store(totals + row * chunks + chunk, tl.sum(tl.exp(value - level), 0))
    tl.store(tops + row * chunks + chunk, top)


@triton.jit
@no_type_check
def _logprobs(
    x, tokens, tops, totals, out, stride, vocab, chunks, CHUNKS: tl.constexpr, PDL: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    wait_for_inputs(PDL)
    token = tl.load(tokens + row)
    known = (token >= 0) & (token < vocab)
    value = tl.load(x + row * stride + token, mask=known, other=float("nan")).to(tl.float32)
    theirs = tops_of(tops, row, chunks, CHUNKS)
    top = tl.max(theirs, 0)
    tl.store(
        out + row, value - top - tl.log(total_of(totals, theirs, top, row, chunks, 1.0, CHUNKS))
    )


def warp(
    logits: Float[Tensor, "batch window vocab"],
    sampling: Float64[Tensor, "batch options"],
    tokens: Int[Tensor, "batch slots"],
    lens: Int[Tensor, " batch"],
    prompt_lens: Int[Tensor, " batch"],
    end_tokens: Int[Tensor, "batch ends"],
    drafted: Int[Tensor, "batch drafted"],
) -> Float[Tensor, "batch window vocab"]:
    """`bass.ops.sampling.warp` in float32, for logits of up to 32 bits.

    Tokens of equal logits stay or go together. Where rounding made different logits equally
    probable, the torch version keeps these together too. Launches: 1 + 16 / BITS for 16-bit
    logits, whatever the options, which are read on the device.
    """
    (batch, window, vocab), bits = logits.shape, 8 * logits.element_size()
    if bits > 32:
        raise ValueError(
            f"`warp` was given {logits.dtype}, and supports logits of up to 32 bits: call "
            "`bass.sampling.Sampling` on float64."
        )
    flat = _rows(logits)
    depth, columns, device = -(-bits // BITS), drafted.shape[1], logits.device
    tops, totals = _parts(flat)
    chunks = tops.shape[1]
    places = torch.empty_like(tops, dtype=torch.int32)
    firsts = torch.empty((*tops.shape, 1 << BITS), dtype=torch.float32, device=device)
    sums = torch.empty((len(flat), depth + 2, 1 << BITS), dtype=torch.int64, device=device)
    floors = torch.empty((len(flat), depth, 2), dtype=torch.float64, device=device)
    edits, listed = (torch.empty(flat.shape, dtype=flat.dtype, device=device) for _ in range(2))
    out = torch.empty((len(flat), vocab), dtype=torch.float32, device=device)
    tokens, end_tokens, drafted = map(dense, (tokens, end_tokens, drafted))
    rows = sampling, lens, prompt_lens
    sizes = flat.stride(0), vocab, chunks, window, columns
    digits = {"BITS": BITS, "KEY_BITS": bits, **dependent(logits)}
    whole = digits | {"DEPTH": depth, "CHUNKS": triton.next_power_of_2(chunks)}
    clear = sums.shape[1] * sums.shape[2]
    tops_: Any = _tops[(len(flat), chunks)]
    search: Any = _search[(len(flat), -(-vocab // SEARCH))]
    probs: Any = _probs[(len(flat), chunks)]
    with torch.cuda.device_of(logits):
        tops_(
            flat, sampling, tokens, lens, prompt_lens, end_tokens, drafted,
            edits, tops, totals, places, firsts, sums, out.view(torch.int32), *sizes,
            end_tokens.shape[1], tokens.stride(0), drafted.stride(0), SIZE=CHUNK,
            TILE=min(CHUNK, 32 * WARPS), CLEAR=clear, ROOM=triton.next_power_of_2(clear),
            DRAFTED=triton.next_power_of_2(max(columns, 1)), num_warps=WARPS, **digits,
        )  # fmt: skip
        for digit in range(1, depth):
            search(
                flat, *rows, edits, tops, firsts, sums, floors, listed, *sizes, DIGIT=digit,
                SIZE=SEARCH, TILE=min(SEARCH, 32 * SEARCH_WARPS), num_warps=SEARCH_WARPS, **whole,
            )  # fmt: skip
        probs(
            flat, *rows, edits, tops, totals, places, firsts, sums, floors, listed, out, *sizes,
            SIZE=CHUNK, TILE=LISTED, num_warps=WARPS, maxnreg=64, **whole,
        )  # fmt: skip
    return out.view(batch, window, vocab)


def token_logprobs(
    logits: Float[Tensor, "*rows vocab"], tokens: Int[Tensor, "*rows"]
) -> Float[Tensor, "*rows"]:
    """log softmax(logits) at `tokens` in float32; not a number for a token that is none. Its torch
    twin: `bass.ops.sampling.token_logprobs`.

    One pass over the logits (Milakov and Gimelshein, 2018), in two launches.
    """
    flat, vocab = _rows(logits), logits.shape[-1]
    tops, totals = _parts(flat)
    sizes = flat.stride(0), vocab, tops.shape[1]
    out = torch.empty(len(flat), dtype=torch.float32, device=logits.device)
    level: Any = _level[tuple(tops.shape)]
    launch: Any = _logprobs[(len(flat),)]
    chunks = triton.next_power_of_2(tops.shape[1])
    with torch.cuda.device_of(logits):
        level(flat, tops, totals, *sizes, SIZE=CHUNK, num_warps=WARPS, **dependent(logits))
        launch(
            flat, tokens.reshape(-1).contiguous(), tops, totals, out, *sizes, CHUNKS=chunks,
            num_warps=1, **dependent(logits),
        )  # fmt: skip
    return out.view(tokens.shape)


def _rows(logits: Float[Tensor, "*rows vocab"]) -> Float[Tensor, "flat vocab"]:
    """The rows one after the other, each of them without gaps."""
    return dense(logits.reshape(-1, logits.shape[-1]))


def _parts(flat: Float[Tensor, "flat vocab"]) -> tuple[Tensor, Tensor]:
    """Of each chunk of a row: its largest logit, and its mass."""
    shape = len(flat), -(-flat.shape[1] // CHUNK)
    tops = torch.empty(shape, dtype=torch.float32, device=flat.device)
    return tops, torch.empty_like(tops)
