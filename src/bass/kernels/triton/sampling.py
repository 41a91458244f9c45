"""Logits to probabilities without a sort of the vocabulary, and the log-probabilities of tokens.

    warp            p = e / Σ e over the tokens that stay, else 0;  e = exp((x - max x) / T), where
                    x are the logits, with penalties in rows that have any
    token_logprobs  x[token] - max x - log Σ exp(x - max x)

    tops     per chunk of a row: penalties; its largest logit and, if greedy, the index of that;
             Σ exp((x - largest) / T); and, for top_k, the largest logits of its parts
    search   of a chunk: the logits that may be kept, in a list of the row; the program that ends
             last finds the floors in it
    probs    of a chunk: p

Options are read on the device for each row; `search` returns at once in rows that nothing cuts.

The floor of top_k is the largest logit with k tokens at or above it, that of top_p the largest with
top_p of the mass at or above it. A radix select (Alabi et al., 2012) finds a floor digit by digit,
the highest first, in the bits of the logits, mapped to integers of the same order. Two bounds keep
the lists short unless the distribution is flat. The floor of top_k is at least the k-th largest of
the parts' largest logits. All terms below 1 / V of the mass that top_p leaves out sum to less than
that mass.

How a row is divided depends on the vocabulary only, so that its result is the same in every batch.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float64, Int
from torch import Tensor

from bass.kernels.triton.launch import (
    INTERPRETED,
    dense,
    dependent,
    interpreted_range,
    kept_zeros,
    wait_for_all,
    wait_for_inputs,
)

CHUNK, WARPS = 4096, 8  # of tops and probs, in tokens
PART = 256  # of a chunk
TILE = 256  # of a list that is searched
UNROLL = 2  # tiles of a list that are loaded together
BITS = 3  # of a search's digit: 2^BITS comparisons for each token, against a pass for each digit
UNIT = tl.constexpr(2.0**40)  # of sums that are integers
if INTERPRETED:
    range = interpreted_range


@triton.jit
@no_type_check
def is_edited(sampling, lens, prompt_lens, sequence, before):
    """Whether penalties or `min_new_tokens` change a row's logits after `before` drafted tokens.

    It reads the last columns of `Sequences.sampling`.
    """
    repetition = tl.load(sampling + sequence * 8 + 4)
    presence = tl.load(sampling + sequence * 8 + 5)
    frequency = tl.load(sampling + sequence * 8 + 6)
    least = tl.load(sampling + sequence * 8 + 7)
    generated = tl.load(lens + sequence) - tl.load(prompt_lens + sequence) + before
    return (repetition != 1) | (presence != 0) | (frequency != 0) | (generated < least)


@triton.jit
@no_type_check
def edit(
    x, edits, scratch, sampling, tokens, lens, prompt_lens, end_tokens, drafted,
    sequence, before, first, vocab, ends, slots, drafted_row,
    SIZE: tl.constexpr, TILE: tl.constexpr, DRAFTED: tl.constexpr,
):  # fmt: skip
    """Write the edited logits of the tokens from `first` to `first` + SIZE of a row to `edits`.

    scratch: per token of the row, bit 0: the prompt contains it; the other bits: how often it was
    generated.
    """
    for begin in range(0, SIZE, TILE):
        i = first + begin + tl.arange(0, TILE)
        tl.store(scratch + i, tl.zeros((TILE,), dtype=tl.int32), mask=i < vocab)
    tl.debug_barrier()
    length, prompt = tl.load(lens + sequence), tl.load(prompt_lens + sequence)
    for begin in range(0, length, TILE):
        place = begin + tl.arange(0, TILE)
        token = tl.load(tokens + sequence * slots + place, mask=place < length, other=-1)
        inside = (token >= first) & (token < first + SIZE)
        tl.atomic_or(scratch + token, 1, mask=inside & (place < prompt), sem="relaxed")
        tl.atomic_add(scratch + token, 2, mask=inside & (place >= prompt), sem="relaxed")
    j = tl.arange(0, DRAFTED)
    token = tl.load(drafted + sequence * drafted_row + j, mask=j < before, other=-1)
    inside = (token >= first) & (token < first + SIZE)
    tl.atomic_add(scratch + token, 2, mask=inside, sem="relaxed")
    tl.debug_barrier()
    repetition = tl.load(sampling + sequence * 8 + 4).to(tl.float32)
    presence = tl.load(sampling + sequence * 8 + 5).to(tl.float32)
    frequency = tl.load(sampling + sequence * 8 + 6).to(tl.float32)
    early = length - prompt + before < tl.load(sampling + sequence * 8 + 7)
    for begin in range(0, SIZE, TILE):
        i = first + begin + tl.arange(0, TILE)
        found = tl.load(scratch + i, mask=i < vocab, other=0, cache_modifier=".cg")
        value = tl.load(x + i, mask=i < vocab, other=0.0).to(tl.float32)
        penalized = tl.where(value > 0, value / repetition, value * repetition)
        value = tl.where(found > 0, penalized, value)
        less = frequency * (found // 2).to(tl.float32) + presence
        value = tl.where(found > 1, value - less, value)
        if early:
            for e in range(ends):
                end = tl.load(end_tokens + sequence * ends + e)
                value = tl.where(i == end, float("-inf"), value)
        tl.store(edits + i, value.to(edits.dtype.element_ty), mask=i < vocab)
    tl.debug_barrier()


@triton.jit
@no_type_check
def ordered(x):
    """The bits of a number as an integer of the same order, with one zero."""
    if x.dtype.primitive_bitwidth == 16:
        bits = x.to(tl.int16, bitcast=True).to(tl.int32)
        size = bits & 0x7FFF
    else:
        bits = x.to(tl.int32, bitcast=True)
        size = bits & 0x7FFFFFFF
    return tl.where(bits < 0, -size, size)


@triton.jit
@no_type_check
def tops_of(tops, row, chunks, CHUNKS: tl.constexpr):
    """The largest logits of a row's chunks."""
    c = tl.arange(0, CHUNKS)
    return tl.load(tops + row * chunks + c, mask=c < chunks, other=float("-inf"))


@triton.jit
@no_type_check
def total_of(totals, chunk_tops, top, row, chunks, inverse, CHUNKS: tl.constexpr):
    """Σ exp((x - top) / T) of a row."""
    c = tl.arange(0, CHUNKS)
    total = tl.load(totals + row * chunks + c, mask=c < chunks, other=0.0)
    return tl.sum(tl.where(c < chunks, total * tl.exp((chunk_tops - top) * inverse), 0.0), 0)


@triton.jit
@no_type_check
def options_of(sampling, sequence, vocab):
    """1 / temperature (1 for greedy), top_k (0 where it cuts nothing), top_p, min_p of a row, which
    are the first columns of `Sequences.sampling`.
    """
    temperature = tl.load(sampling + sequence * 8).to(tl.float32)
    greedy = temperature == 0
    inverse = 1 / tl.where(greedy, 1.0, temperature)
    top_k = tl.load(sampling + sequence * 8 + 1).to(tl.int64)
    top_k = tl.where((top_k < vocab) & ~greedy, top_k, 0)
    top_p = tl.where(greedy, 1.0, tl.load(sampling + sequence * 8 + 2))
    min_p = tl.where(greedy, 0.0, tl.load(sampling + sequence * 8 + 3)).to(tl.float32)
    return inverse, top_k, top_p, min_p


@triton.jit
@no_type_check
def floor_of(
    values, size, above, highest, top, inverse, need, BY_COUNT: tl.constexpr,
    DEPTH: tl.constexpr, BITS: tl.constexpr, TILE: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The largest key with `need` tokens (BY_COUNT), or a mass of `need`, at or above it among
    `size` logits in any order, of which those with keys from `above` to `highest` count.

    The search takes as many digits as that range has, at most DEPTH, each with 2^BITS thresholds.
    """
    j = tl.arange(0, 1 << BITS)
    floor = above.to(tl.int64)
    digits = tl.full((), 0, tl.int32)
    for digit in tl.static_range(DEPTH):
        digits += ((highest.to(tl.int64) - floor) >> (BITS * digit) > 0).to(tl.int32)
    need *= tl.where(BY_COUNT, 1.0, UNIT)
    for digit in range(0, digits):
        shift = BITS * (digits - 1 - digit)
        # Every thread sums its own tokens first: a comparison takes three instructions, a reduction
        # over threads ten for each threshold.
        found = tl.zeros((1 << BITS, TILE), dtype=tl.int64)
        for begin in range(0, size, TILE * UNROLL):
            for part in tl.static_range(UNROLL):
                i = begin + part * TILE + tl.arange(0, TILE)
                value = tl.load(values + i, mask=i < size, other=float("-inf"))
                key = ordered(value)
                weight = tl.full((TILE,), 1, tl.int64)
                if not BY_COUNT:
                    weight = _mass(value, top, inverse)
                weight = tl.where((i < size) & (key >= above), weight, 0)
                # the last threshold, floor + (j << shift), at or below the key
                place = tl.maximum(tl.minimum((key - floor) >> shift, 1 << BITS), -1).to(tl.int32)
                found += tl.where(j[:, None] <= place[None, :], weight[None, :], 0)
        # a threshold beyond the largest key has none
        enough = tl.sum(found, 1).to(tl.float64) >= need
        last = tl.maximum(tl.sum(enough.to(tl.int32), 0) - 1, 0)
        floor += last.to(tl.int64) << shift
    return floor.to(tl.int32)


@triton.jit
@no_type_check
def _mass(value, top, inverse):
    """exp((x - top) / T), in units of which a sum does not depend on its order."""
    return (tl.exp((value.to(tl.float32) - top) * inverse) * UNIT).to(tl.int64)


@triton.jit
@no_type_check
def mass_of(
    values, size, above, least, top, inverse, TILE: tl.constexpr, UNROLL: tl.constexpr
):  # fmt: skip
    """Σ exp((x - top) / T) of those among `size` logits with a key of `above` or more and a term of
    `least` or more.
    """
    found = tl.zeros((TILE,), dtype=tl.int64)
    for begin in range(0, size, TILE * UNROLL):
        for part in tl.static_range(UNROLL):
            i = begin + part * TILE + tl.arange(0, TILE)
            value = tl.load(values + i, mask=i < size, other=float("-inf"))
            e = tl.exp((value.to(tl.float32) - top) * inverse)
            kept = (i < size) & (ordered(value) >= above) & (e >= least)
            found += tl.where(kept, _mass(value, top, inverse), 0)
    return tl.sum(found, 0).to(tl.float64) / UNIT


@triton.jit(do_not_specialize=["columns", "ends", "slots", "drafted_row"])
@no_type_check
def _tops(
    x, sampling, tokens, lens, prompt_lens, end_tokens, drafted,
    edits, tops, totals, places, heads, scratch,
    stride, vocab, chunks, window, columns, ends, slots, drafted_row,
    SIZE: tl.constexpr, PART: tl.constexpr, TILE: tl.constexpr, DRAFTED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, before = row // window, columns - window + 1 + row % window
    first = chunk * SIZE
    i, at = first + tl.arange(0, SIZE), row * chunks + chunk
    # written before the previous kernel began: may be read before the wait
    edited = is_edited(sampling, lens, prompt_lens, sequence, before)
    inverse, top_k, _, _ = options_of(sampling, sequence, vocab)
    greedy = tl.load(sampling + sequence * 8) == 0
    wait_for_all(PDL)  # the next two kernels read the logits before they wait
    own = x + row * stride
    if edited:
        edit(
            own, edits + row * vocab, scratch + row * vocab, sampling, tokens, lens, prompt_lens,
            end_tokens, drafted, sequence, before, first, vocab, ends, slots, drafted_row,
            SIZE, TILE, DRAFTED,
        )  # fmt: skip
    own = tl.where(edited, edits + row * vocab, own)
    value = tl.load(own + i, mask=i < vocab, other=float("-inf")).to(tl.float32)
    top = tl.max(value, 0)
    # a chunk may have no finite logit; a row without any gives NaN
    level = tl.where(top == float("-inf"), 0.0, top)
    if greedy:
        tl.store(places + at, tl.min(tl.where(value == top, i, vocab), 0))
    tl.store(tops + at, top)
    tl.store(totals + at, tl.sum(tl.exp((value - level) * inverse), 0))
    if top_k > 0:
        parts: tl.constexpr = SIZE // PART
        best = tl.max(tl.reshape(value, (parts, PART)), 1)
        tl.store(heads + at * parts + tl.arange(0, parts), best.to(heads.dtype.element_ty))


@triton.jit
@no_type_check
def _search(
    x, sampling, lens, prompt_lens, edits, tops, totals, heads, listed, floors, masses, counts,
    stride, vocab, chunks, window, columns,
    DEPTH: tl.constexpr, BITS: tl.constexpr, KEY_BITS: tl.constexpr, PARTS: tl.constexpr,
    SIZE: tl.constexpr, TILE: tl.constexpr, UNROLL: tl.constexpr, CHUNKS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, before = row // window, columns - window + 1 + row % window
    edited = is_edited(sampling, lens, prompt_lens, sequence, before)
    inverse, top_k, top_p, min_p = options_of(sampling, sequence, vocab)
    cut = (top_k > 0) | (top_p < 1) | (min_p > 0)
    i = chunk * SIZE + tl.arange(0, SIZE)
    own = x + row * stride + i
    value = tl.load(own, mask=(i < vocab) & cut & (edited == 0), other=float("-inf"))
    wait_for_inputs(PDL)
    if cut:
        chunk_tops = tops_of(tops, row, chunks, CHUNKS)
        top = tl.max(chunk_tops, 0)
        highest = ordered(top.to(x.dtype.element_ty))
        need = top_p * total_of(totals, chunk_tops, top, row, chunks, inverse, CHUNKS)
        # A bound below the floor: the largest logits of `top_k` parts of the row; or a term of
        # which all smaller ones together are less than what top_p leaves out.
        above = tl.full((), -(1 << (KEY_BITS - 1)), tl.int32)
        least = min_p
        if top_k > 0:
            least = 0.0
            parts = chunks * PARTS
            if top_k <= parts:
                above = floor_of(
                    heads + row * parts, parts, above, highest, 0.0, 1.0, top_k.to(tl.float64),
                    True, DEPTH, BITS, TILE, UNROLL,
                )  # fmt: skip
        elif top_p < 1:
            least = (0.999 * need * (1 - top_p) / top_p / vocab).to(tl.float32)
            lowest = top + (tl.log(least) - 0.01) / inverse
            above = ordered(lowest.to(x.dtype.element_ty)) - 1
        if edited:
            value = tl.load(edits + row * vocab + i, mask=i < vocab, other=float("-inf"))
        listed += row * vocab
        e = tl.exp((value.to(tl.float32) - top) * inverse)
        kept = (i < vocab) & (ordered(value) >= above) & (e >= least)
        place = tl.cumsum(kept.to(tl.int32), 0)
        start = tl.atomic_add(counts + row * 2, tl.max(place, 0), sem="relaxed")
        tl.store(listed + start + place - 1, value, mask=kept)
        tl.debug_barrier()
        if tl.atomic_add(counts + row * 2 + 1, 1, sem="acq_rel") == chunks - 1:  # all have come
            size = tl.atomic_xchg(counts + row * 2, 0, sem="acq_rel")
            tl.store(counts + row * 2 + 1, 0)
            if top_k > 0:
                above = floor_of(
                    listed, size, above, highest, 0.0, 1.0, top_k.to(tl.float64), True,
                    DEPTH, BITS, TILE, UNROLL,
                )  # fmt: skip
                need = top_p * mass_of(listed, size, above, 0.0, top, inverse, TILE, UNROLL)
            if top_p < 1:
                above = floor_of(
                    listed, size, above, highest, top, inverse, need, False,
                    DEPTH, BITS, TILE, UNROLL,
                )  # fmt: skip
            tl.store(floors + row, above)
            mass = mass_of(listed, size, above, min_p, top, inverse, TILE, UNROLL)
            tl.store(masses + row, mass.to(tl.float32))


@triton.jit
@no_type_check
def _probs(
    x, sampling, lens, prompt_lens, edits, tops, totals, places, floors, masses, out,
    stride, vocab, chunks, window, columns,
    SIZE: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    sequence, before = row // window, columns - window + 1 + row % window
    edited = is_edited(sampling, lens, prompt_lens, sequence, before)
    inverse, top_k, top_p, min_p = options_of(sampling, sequence, vocab)
    greedy = tl.load(sampling + sequence * 8) == 0
    i = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    own = x + row * stride + i
    value = tl.load(own, mask=(i < vocab) & (edited == 0), other=float("-inf"))
    wait_for_inputs(PDL)
    if edited:
        value = tl.load(edits + row * vocab + i, mask=i < vocab, other=float("-inf"))
    chunk_tops = tops_of(tops, row, chunks, CHUNKS)
    top = tl.max(chunk_tops, 0)
    c = tl.arange(0, CHUNKS)
    total = tl.sum(tl.load(totals + row * chunks + c, mask=c < chunks, other=0.0), 0)
    # a sum that contains NaN is NaN
    finite = (total < float("inf")) & (top > float("-inf"))
    if greedy:
        p = tl.where(i == tl.load(places + row * chunks + tl.argmax(chunk_tops, 0)), 1.0, 0.0)
    else:
        p = tl.exp((value.to(tl.float32) - top) * inverse)
        if (top_k > 0) | (top_p < 1) | (min_p > 0):
            kept = (p >= min_p) & (ordered(value) >= tl.load(floors + row))
            p = tl.where(kept, p, 0.0) / tl.load(masses + row)
        else:
            p = p / total_of(totals, chunk_tops, top, row, chunks, inverse, CHUNKS)
    p = tl.where(finite, p, float("nan"))
    tl.store(out + row * vocab + i, p, mask=i < vocab)


@triton.jit
@no_type_check
def _level(x, tops, totals, stride, vocab, chunks, SIZE: tl.constexpr, PDL: tl.constexpr):
    """Per chunk: its largest logit, and Σ exp(x - largest)."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = chunk * SIZE + tl.arange(0, SIZE)
    wait_for_inputs(PDL)
    value = tl.load(x + row * stride + i, mask=i < vocab, other=float("-inf")).to(tl.float32)
    top = tl.max(value, 0)
    level = tl.where(top == float("-inf"), 0.0, top)  # a chunk may have no finite logit
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
    chunk_tops = tops_of(tops, row, chunks, CHUNKS)
    top = tl.max(chunk_tops, 0)
    tl.store(
        out + row, value - top - tl.log(total_of(totals, chunk_tops, top, row, chunks, 1.0, CHUNKS))
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
    """`bass.ops.sampling.warp`, its torch twin, in float32, for logits of up to 32 bits.

    Tokens with equal logits are treated alike. The torch version also treats alike different logits
    whose probabilities are equal after rounding. Three launches for any options, which are
    read on the device.
    """
    (batch, window, vocab), bits = logits.shape, 8 * logits.element_size()
    flat = _rows(logits)
    columns, device = drafted.shape[1], logits.device
    tops, totals = _parts(flat)
    chunks = tops.shape[1]
    places = torch.empty_like(tops, dtype=torch.int32)
    edits, listed = (torch.empty(flat.shape, dtype=flat.dtype, device=device) for _ in range(2))
    heads = torch.empty((len(flat), chunks * (CHUNK // PART)), dtype=flat.dtype, device=device)
    floors = torch.empty(len(flat), dtype=torch.int32, device=device)
    masses = torch.empty(len(flat), dtype=torch.float32, device=device)
    out = torch.empty((len(flat), vocab), dtype=torch.float32, device=device)
    tokens, end_tokens, drafted = map(dense, (tokens, end_tokens, drafted))
    rows = sampling, lens, prompt_lens
    sizes = flat.stride(0), vocab, chunks, window, columns
    options = {"CHUNKS": triton.next_power_of_2(chunks), **dependent(logits)}
    tops_: Any = _tops[(len(flat), chunks)]
    search: Any = _search[(len(flat), chunks)]
    probs: Any = _probs[(len(flat), chunks)]
    with torch.cuda.device_of(logits):
        tops_(
            flat, sampling, tokens, lens, prompt_lens, end_tokens, drafted,
            edits, tops, totals, places, heads, out.view(torch.int32), *sizes,
            end_tokens.shape[1], tokens.stride(0), drafted.stride(0), SIZE=CHUNK, PART=PART,
            TILE=min(CHUNK, 32 * WARPS), DRAFTED=triton.next_power_of_2(max(columns, 1)),
            num_warps=WARPS, **dependent(logits),
        )  # fmt: skip
        search(
            flat, *rows, edits, tops, totals, heads, listed, floors, masses,
            kept_zeros("search", 2 << (len(flat) - 1).bit_length(), device), *sizes,
            DEPTH=-(-bits // BITS), BITS=BITS, KEY_BITS=bits, PARTS=CHUNK // PART, SIZE=CHUNK,
            TILE=TILE, UNROLL=UNROLL, num_warps=WARPS, maxnreg=64, **options,
        )  # fmt: skip
        probs(
            flat, *rows, edits, tops, totals, places, floors, masses, out, *sizes,
            SIZE=CHUNK, num_warps=WARPS, **options,
        )  # fmt: skip
    return out.view(batch, window, vocab)


def token_logprobs(
    logits: Float[Tensor, "*rows vocab"], tokens: Int[Tensor, "*rows"]
) -> Float[Tensor, "*rows"]:
    """log softmax(logits) at `tokens` in float32; NaN for an id outside the vocabulary.

    Its torch twin is `bass.ops.sampling.token_logprobs`. One pass over the logits (Milakov and
    Gimelshein, 2018), in two launches.
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
    """The rows as a matrix, each row contiguous."""
    return dense(logits.reshape(-1, logits.shape[-1]))


def _parts(flat: Float[Tensor, "flat vocab"]) -> tuple[Tensor, Tensor]:
    """Allocate the largest logit and the mass of each chunk of a row."""
    shape = len(flat), -(-flat.shape[1] // CHUNK)
    tops = torch.empty(shape, dtype=torch.float32, device=flat.device)
    return tops, torch.empty_like(tops)
