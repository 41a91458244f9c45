"""What programs of one row of logits find out together: its largest logit, its mass, and the floors
of top_k and top_p, digit by digit: see `bass.kernels.triton.sampling`.
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
def tops_of(tops, row, chunks, CHUNKS: tl.constexpr):
    """The largest logits of a row's chunks."""
    c = tl.arange(0, CHUNKS)
    return tl.load(tops + row * chunks + c, mask=c < chunks, other=float("-inf"))


@triton.jit
@no_type_check
def total_of(totals, theirs, top, row, chunks, inverse, CHUNKS: tl.constexpr):
    """Σ exp((x - top) / T) of a row."""
    c = tl.arange(0, CHUNKS)
    total = tl.load(totals + row * chunks + c, mask=c < chunks, other=0.0)
    return tl.sum(tl.where(c < chunks, total * tl.exp((theirs - top) * inverse), 0.0), 0)


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
    firsts, sums, floors, theirs, top, row, chunks, inverse, top_k, top_p,
    DONE: tl.constexpr, DEPTH: tl.constexpr, BITS: tl.constexpr, KEY_BITS: tl.constexpr,
    CHUNKS: tl.constexpr,
):  # fmt: skip
    """The floor of top_k, or else of top_p, as far as `DONE` digits tell; the last digit; and what
    must be at or above the floor.

    firsts: what each chunk of a row has found at the first digit, relative to its own largest
    logit; sums: what all have found at the others; floors: of fewer digits, with what they need.
    """
    j = tl.arange(0, 1 << BITS)
    if DONE == 1:
        c = tl.arange(0, CHUNKS)
        place = ((row * chunks + c) << BITS)[:, None] + j[None, :]
        found = tl.load(firsts + place, mask=(c < chunks)[:, None], other=0.0)
        counted = (top_k > 0) | (theirs == float("-inf"))
        scale = tl.where(counted, 1.0, tl.exp((theirs - top) * inverse))
        found = tl.sum(found * scale[:, None], 0).to(tl.float64) * tl.where(top_k > 0, 1.0, UNIT)
        # top_p is a share of the first threshold's mass
        need = tl.where(top_k > 0, top_k.to(tl.float64), top_p * tl.max(found, 0))
        floor = tl.full((), -(1 << (KEY_BITS - 1)), tl.int64)
    else:
        floor = tl.load(floors + (row * DEPTH + DONE - 1) * 2).to(tl.int64)
        need = tl.load(floors + (row * DEPTH + DONE - 1) * 2 + 1)
        found = tl.load(sums + (DONE - 1) * (1 << BITS) + j).to(tl.float64)
    last = tl.maximum(tl.sum((found >= need).to(tl.int32), 0) - 1, 0)
    return floor + (last.to(tl.int64) << (BITS * (DEPTH - DONE))), last, need


@triton.jit
@no_type_check
def floor_of_listed(
    listed, counted, top, inverse, top_p, size,
    DEPTH: tl.constexpr, BITS: tl.constexpr, KEY_BITS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The floor of top_p among the `size` listed tokens that top_k keeps, and the mass at or above
    it.
    """
    j = tl.arange(0, 1 << BITS)
    floor = tl.full((), -(1 << (KEY_BITS - 1)), tl.int64)
    need, kept = tl.full((), 0.0, tl.float64), tl.full((), 0, tl.int64)
    for digit in range(DEPTH):
        shift = BITS * (DEPTH - 1 - digit)
        threshold = (floor + (j.to(tl.int64) << shift))[:, None]
        mass = tl.zeros((1 << BITS,), dtype=tl.int64)
        for begin in range(0, size, TILE):
            i = begin + tl.arange(0, TILE)
            value = tl.load(listed + i, mask=i < size, other=float("-inf"))
            key = ordered(value).to(tl.int64)
            e = (tl.exp((value.to(tl.float32) - top) * inverse) * UNIT).to(tl.int64)
            counts = (key >= counted) & (i < size)
            mass += tl.sum(
                tl.where(counts[None, :] & (key[None, :] >= threshold), e[None, :], 0), 1
            )
        # the first digit may have fewer bits: a threshold that no key reaches has no mass
        need = tl.where(digit == 0, top_p * tl.max(mass, 0).to(tl.float64), need)
        last = tl.maximum(tl.sum((mass.to(tl.float64) >= need).to(tl.int32), 0) - 1, 0)
        kept = tl.sum(tl.where(j == last, mass, 0), 0)
        floor += last.to(tl.int64) << shift
    return floor, kept
