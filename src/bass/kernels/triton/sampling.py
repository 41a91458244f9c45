"""Logits to probabilities without a sort of the vocabulary, and the log-probabilities of tokens.

    warp            p = e / Σ e over the kept tokens, else 0;  e = exp((x - max x) / T)
    token_logprobs  x[token] - max x - log Σ exp(x - max x)

Many programs share a row: each reads a chunk of it, and what the chunks say is put together by
every program of the next launch.

    tops     of a chunk: its largest logit, where it first stands, Σ exp((x - largest) / T)
    search   of a chunk: the tokens (top_k) or the mass (top_p) at or above each of 2^BITS
             thresholds, one launch for each digit
    probs    the row's floor from the digits, then p of a chunk

The floor of top_k is the largest logit with k tokens at or above it, that of top_p the largest with
top_p of the mass at or above it. A floor is found digit by digit, the highest first, in the bits of
the logits, read as integers that are ordered as the logits are: a radix select (Alabi et al.,
2012). For 16-bit logits these are 16 / BITS launches, whatever the logits. Sums over a chunk are in
float32; they are added up as integers, in units of 2^-40 of the largest token's mass, so that the
order of arrivals changes nothing.

How a row is cut depends on the vocabulary only, so that its result is the same in every batch.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from bass.kernels.triton.launch import dense, dependent, wait_for_inputs

CHUNK, WARPS = 4096, 8  # of tops and probs
SEARCH, SEARCH_WARPS = 2048, 4  # of a search
BITS = 4  # of a search's digit: 2^BITS comparisons for each token, against a launch for each digit
UNIT = tl.constexpr(2.0**40)


@triton.jit
@no_type_check  # Triton reads the source, not the function
def _ordered(x):
    """The bits of a number as an integer that is ordered as the numbers are, with one zero."""
    if x.dtype.primitive_bitwidth == 16:
        bits = x.to(tl.int16, bitcast=True).to(tl.int32)
        size = bits & 0x7FFF
    else:
        bits = x.to(tl.int32, bitcast=True)
        size = bits & 0x7FFFFFFF
    return tl.where(bits < 0, -size, size)


@triton.jit
@no_type_check
def _row_tops(tops, row, chunks, CHUNKS: tl.constexpr):
    """The largest logits of a row's chunks."""
    c = tl.arange(0, CHUNKS)
    return tl.load(tops + row * chunks + c, mask=c < chunks, other=float("-inf"))


@triton.jit
@no_type_check
def _row_total(totals, theirs, top, row, chunks, inverse, CHUNKS: tl.constexpr):
    """Σ exp((x - top) / T) of a row."""
    c = tl.arange(0, CHUNKS)
    total = tl.load(totals + row * chunks + c, mask=c < chunks, other=0.0)
    return tl.sum(tl.where(c < chunks, total * tl.exp((theirs - top) * inverse), 0.0), 0)


@triton.jit
@no_type_check
def _floors(
    sums, k, top_p,
    DONE: tl.constexpr, COUNTED: tl.constexpr, DEPTH: tl.constexpr, BITS: tl.constexpr,
    KEY_BITS: tl.constexpr,
):  # fmt: skip
    """The floor of top_k, the floor of what is being searched, both as far as `DONE` digits tell,
    and the last digit.

    The first COUNTED digits are those of top_k, the others those of top_p, which is a share of the
    first threshold's mass.
    """
    j = tl.arange(0, 1 << BITS)
    lowest = tl.full((), -(1 << (KEY_BITS - 1)), tl.int64)
    counted, floor = lowest, lowest
    need = k.to(tl.float64)
    last = tl.full((), 0, tl.int32)
    for digit in tl.static_range(DONE):
        found = tl.load(sums + digit * (1 << BITS) + j).to(tl.float64)
        if digit == COUNTED:
            counted, floor = floor, lowest
            need = top_p * tl.max(found, 0)
        last = tl.maximum(tl.sum((found >= need).to(tl.int32), 0) - 1, 0)
        floor += last.to(tl.int64) << (BITS * (DEPTH - 1 - digit % DEPTH))
    if DONE == COUNTED:
        counted, floor = floor, lowest
    return counted, floor, last


@triton.jit
@no_type_check
def _tops(
    x, tops, totals, places, sums, stride, vocab, chunks, inverse,
    SIZE: tl.constexpr, GREEDY: tl.constexpr, CLEAR: tl.constexpr, ROOM: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = chunk * SIZE + tl.arange(0, SIZE)
    wait_for_inputs(PDL)
    value = tl.load(x + row * stride + i, mask=i < vocab, other=float("-inf")).to(tl.float32)
    at = row * chunks + chunk
    if GREEDY:
        top, place = tl.max(value, 0, return_indices=True)
        tl.store(places + at, chunk * SIZE + place)
        tl.store(totals + at, tl.sum(tl.where(value < float("inf"), 0.0, float("nan")), 0))
    else:
        top = tl.max(value, 0)
        # a chunk may have no token; a row of none is not a number
        level = tl.where(top == float("-inf"), 0.0, top)
        tl.store(totals + at, tl.sum(tl.exp((value - level) * inverse), 0))
    tl.store(tops + at, top)
    if CLEAR > 0:
        j = tl.arange(0, ROOM)
        tl.store(
            sums + row * CLEAR + j,
            tl.zeros((ROOM,), dtype=tl.int64),
            mask=(j < CLEAR) & (chunk == 0),
        )


@triton.jit(do_not_specialize=["k"])
@no_type_check
def _search(
    x, tops, sums, stride, vocab, chunks, inverse, k, top_p, min_p,
    DIGIT: tl.constexpr, COUNTED: tl.constexpr, DIGITS: tl.constexpr, DEPTH: tl.constexpr,
    BITS: tl.constexpr, KEY_BITS: tl.constexpr,
    MIN_P: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr, CHUNKS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * SIZE
    count: tl.constexpr = 1 << BITS
    shift: tl.constexpr = BITS * (DEPTH - 1 - DIGIT % DEPTH)
    j = tl.arange(0, count)
    wait_for_inputs(PDL)
    sums += row * (DIGITS + 2) * count
    top = tl.max(_row_tops(tops, row, chunks, CHUNKS), 0)
    counted, floor, _ = _floors(sums, k, top_p, DIGIT, COUNTED, DEPTH, BITS, KEY_BITS)
    threshold = (floor + (j.to(tl.int64) << shift)).to(tl.int32)[:, None]
    # Every thread adds up its own tokens first: a comparison is three instructions, a reduction
    # over threads ten for each threshold.
    found, mass = (
        tl.zeros((count, TILE), dtype=tl.float32),
        tl.zeros((count, TILE), dtype=tl.float32),
    )
    likely = tl.zeros((TILE,), dtype=tl.float32)
    for begin in tl.static_range(0, SIZE, TILE):
        i = first + begin + tl.arange(0, TILE)
        value = tl.load(x + row * stride + i, mask=i < vocab, other=float("-inf"))
        key = _ordered(value)
        e = tl.exp((value.to(tl.float32) - top) * inverse)
        above = key[None, :] >= threshold
        weight = (
            tl.where(i < vocab, 1.0, 0.0)
            if DIGIT < COUNTED
            else tl.where(key >= counted.to(tl.int32), e, 0.0)
        )
        found += tl.where(above, weight[None, :], 0.0)
        if DIGIT + 1 == COUNTED and COUNTED == DIGITS:
            mass += tl.where(above, e[None, :], 0.0)
        if DIGIT == 0 and MIN_P:
            likely += tl.where(e >= min_p, e, 0.0)
    own = j < (1 << min(BITS, KEY_BITS - shift))  # the first digit may have fewer bits
    scale: tl.constexpr = 1.0 if DIGIT < COUNTED else UNIT
    tl.atomic_add(
        sums + DIGIT * count + j, (tl.sum(found, 1) * scale).to(tl.int64), mask=own, sem="relaxed"
    )
    if DIGIT + 1 == COUNTED and COUNTED == DIGITS:
        tl.atomic_add(
            sums + DIGITS * count + j,
            (tl.sum(mass, 1) * UNIT).to(tl.int64),
            mask=own,
            sem="relaxed",
        )
    if DIGIT == 0 and MIN_P:
        tl.atomic_add(
            sums + (DIGITS + 1) * count, (tl.sum(likely, 0) * UNIT).to(tl.int64), sem="relaxed"
        )


@triton.jit(do_not_specialize=["k"])
@no_type_check
def _probs(
    x, tops, totals, places, sums, out, stride, vocab, chunks, inverse, k, top_p, min_p,
    COUNTED: tl.constexpr, DIGITS: tl.constexpr, DEPTH: tl.constexpr, BITS: tl.constexpr,
    KEY_BITS: tl.constexpr,
    MIN_P: tl.constexpr, GREEDY: tl.constexpr, SIZE: tl.constexpr, CHUNKS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    live = i < vocab
    count: tl.constexpr = 1 << BITS
    wait_for_inputs(PDL)
    theirs = _row_tops(tops, row, chunks, CHUNKS)
    c = tl.arange(0, CHUNKS)
    total = tl.sum(tl.load(totals + row * chunks + c, mask=c < chunks, other=0.0), 0)
    # a sum with NaN in it is NaN
    finite = (total < float("inf")) & (tl.max(theirs, 0) > float("-inf"))
    if GREEDY:
        p = tl.where(i == tl.load(places + row * chunks + tl.argmax(theirs, 0)), 1.0, 0.0)
    else:
        value = tl.load(x + row * stride + i, mask=live, other=float("-inf"))
        top = tl.max(theirs, 0)
        e = tl.exp((value.to(tl.float32) - top) * inverse)
        if DIGITS > 0:
            sums += row * (DIGITS + 2) * count
            counted, floor, last = _floors(sums, k, top_p, DIGITS, COUNTED, DEPTH, BITS, KEY_BITS)
            kept = tl.load(sums + (DIGITS if COUNTED == DIGITS else DIGITS - 1) * count + last)
            keep = _ordered(value) >= tl.maximum(counted, floor).to(tl.int32)
            if MIN_P:
                # one of the two sets holds the other
                kept = tl.minimum(kept, tl.load(sums + (DIGITS + 1) * count))
                keep = keep & (e >= min_p)
            p = tl.where(keep, e, 0.0) / (kept.to(tl.float32) / UNIT)
        else:
            p = e / _row_total(totals, theirs, top, row, chunks, inverse, CHUNKS)
    p = tl.where(finite, p, float("nan"))
    tl.store(out + row * vocab + i, p, mask=live)


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
    theirs = _row_tops(tops, row, chunks, CHUNKS)
    top = tl.max(theirs, 0)
    tl.store(
        out + row, value - top - tl.log(_row_total(totals, theirs, top, row, chunks, 1.0, CHUNKS))
    )


def warp(
    logits: Float[Tensor, "*rows vocab"],
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Float[Tensor, "*rows vocab"]:
    """The distribution of `bass.sampling.Sampling` (its torch twin, without the penalty) in
    float32, for logits of up to 32 bits.

    Tokens of equal logits stay or go together. Where rounding made different logits equally
    probable, the twin keeps these together too. Launches: 2, and for 16-bit logits 16 / BITS more
    for each of top_k and top_p, or one more for min_p alone.
    """
    vocab, bits = logits.shape[-1], 8 * logits.element_size()
    if bits > 32:
        raise ValueError(
            f"`warp` was given {logits.dtype}, and knows logits of up to 32 bits: take "
            "`bass.sampling.Sampling` on float64."
        )
    flat = _rows(logits)
    greedy, by_count, by_mass = temperature == 0, 0 < top_k < vocab, top_p < 1
    cut = not greedy and (by_count or by_mass or min_p > 0)
    # min_p alone needs no floor: one threshold, below all tokens
    digit_bits = BITS if by_count or by_mass else 0
    depth = -(-bits // digit_bits) if digit_bits else 1
    counted = depth if cut and by_count else 0
    digits = counted + (depth if cut and (by_mass or not by_count) else 0)
    sums = torch.empty(
        (len(flat), digits + 2 if cut else 0, 1 << digit_bits),
        dtype=torch.int64,
        device=logits.device,
    )
    tops, totals, places = _parts(flat)
    out = torch.empty((len(flat), vocab), dtype=torch.float32, device=logits.device)
    sizes = flat.stride(0), vocab, tops.shape[1], 1.0 if greedy else 1 / temperature
    options = {
        "COUNTED": counted, "DIGITS": digits, "DEPTH": depth, "BITS": digit_bits, "KEY_BITS": bits,
        "MIN_P": min_p > 0,
        "CHUNKS": triton.next_power_of_2(tops.shape[1]), **dependent(logits),
    }  # fmt: skip
    _launch_tops(flat, tops, totals, places, sums, sizes, greedy)
    search: Any = _search[(len(flat), -(-vocab // SEARCH))]
    probs: Any = _probs[(len(flat), tops.shape[1])]
    with torch.cuda.device_of(logits):
        for digit in range(digits):
            search(
                flat, tops, sums, *sizes, top_k, top_p, min_p,
                DIGIT=digit, SIZE=SEARCH, TILE=min(SEARCH, 32 * SEARCH_WARPS),
                num_warps=SEARCH_WARPS, **options,
            )  # fmt: skip
        probs(
            flat, tops, totals, places, sums, out, *sizes, top_k, top_p, min_p, GREEDY=greedy,
            SIZE=CHUNK, num_warps=WARPS, **options,
        )  # fmt: skip
    return out.view(logits.shape)


def token_logprobs(
    logits: Float[Tensor, "*rows vocab"], tokens: Int[Tensor, "*rows"]
) -> Float[Tensor, "*rows"]:
    """log softmax(logits) at `tokens` in float32; not a number for a token that is none. Its torch
    twin: `bass.ops.sampling.token_logprobs`.

    One pass over the logits (Milakov and Gimelshein, 2018), in two launches.
    """
    flat, vocab = _rows(logits), logits.shape[-1]
    tops, totals, places = _parts(flat)
    sizes = flat.stride(0), vocab, tops.shape[1], 1.0
    _launch_tops(flat, tops, totals, places, None, sizes, greedy=False)
    out = torch.empty(len(flat), dtype=torch.float32, device=logits.device)
    launch: Any = _logprobs[(len(flat),)]
    chunks = triton.next_power_of_2(tops.shape[1])
    with torch.cuda.device_of(logits):
        launch(
            flat,
            tokens.reshape(-1).contiguous(),
            tops,
            totals,
            out,
            *sizes[:3],
            CHUNKS=chunks,
            num_warps=1,
            **dependent(logits),
        )
    return out.view(tokens.shape)


def _rows(logits: Float[Tensor, "*rows vocab"]) -> Float[Tensor, "flat vocab"]:
    """The rows one after the other, each of them without gaps."""
    return dense(logits.reshape(-1, logits.shape[-1]))


def _parts(flat: Float[Tensor, "flat vocab"]) -> tuple[Tensor, Tensor, Tensor]:
    shape = len(flat), -(-flat.shape[1] // CHUNK)
    tops = torch.empty(shape, dtype=torch.float32, device=flat.device)
    return tops, torch.empty_like(tops), torch.empty_like(tops, dtype=torch.int32)


def _launch_tops(
    flat: Tensor,
    tops: Tensor,
    totals: Tensor,
    places: Tensor,
    sums: Tensor | None,
    sizes: tuple[int, int, int, float],
    greedy: bool,
) -> None:
    clear = 0 if sums is None else sums.shape[1] * sums.shape[2]
    launch: Any = _tops[tuple(tops.shape)]
    with torch.cuda.device_of(flat):
        launch(
            flat, tops, totals, places, sums, *sizes,
            SIZE=CHUNK, GREEDY=greedy, CLEAR=clear, ROOM=triton.next_power_of_2(max(clear, 1)),
            num_warps=WARPS, **dependent(flat),
        )  # fmt: skip
