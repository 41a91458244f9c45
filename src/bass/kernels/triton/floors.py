"""Device functions over a row of logits: the largest one, the mass, the floors of top_k and top_p,
for `bass.kernels.triton.sampling`.
"""

from typing import no_type_check

import triton
import triton.language as tl

from bass.kernels.triton.launch import INTERPRETED, interpreted_range

UNIT = tl.constexpr(2.0**40)  # of sums that are integers
if INTERPRETED:
    range = interpreted_range


@triton.jit
@no_type_check  # Triton reads the source, not the function
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
