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

from bass.kernels.triton.floors import (
    floor_of,
    mass_of,
    options_of,
    ordered,
    tops_of,
    total_of,
)
from bass.kernels.triton.launch import (
    dense,
    dependent,
    kept_zeros,
    wait_for_all,
    wait_for_inputs,
)
from bass.kernels.triton.penalties import edit, is_edited

CHUNK, WARPS = 4096, 8  # of tops and probs, in tokens
PART = 256  # of a chunk
TILE = 256  # of a list that is searched
UNROLL = 2  # tiles of a list that are loaded together
BITS = 3  # of a search's digit: 2^BITS comparisons for each token, against a pass for each digit


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
    if bits > 32:
        raise ValueError(
            f"`warp` was given {logits.dtype}, and supports logits of up to 32 bits: call "
            "`bass.sampling.Sampling` on float64."
        )
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
