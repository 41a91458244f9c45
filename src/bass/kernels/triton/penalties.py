"""Logits that the tokens before them change: penalties, and end tokens that come too early.

    y = x / r where x > 0, else x r, for tokens of the row (repetition penalty r)
    y - f n - p [n > 0] for n occurrences among the generated tokens (frequency and presence)
    -inf for end tokens, before `min_new_tokens`

The programs of a row each count the tokens in their own part of the vocabulary.
"""

from typing import no_type_check

import triton
import triton.language as tl

from bass.kernels.triton.launch import INTERPRETED, interpreted_range

TOKENS = tl.constexpr(1024)  # of a row, that are counted at a time
if INTERPRETED:
    range = interpreted_range


@triton.jit
@no_type_check
def edit_of(sampling, lens, prompt_lens, sequence, before):
    """Whether penalties change a row's logits after `before` drafted tokens, and whether it may not
    end yet: what `Sequences.sampling` says in its last columns.
    """
    repetition = tl.load(sampling + sequence * 8 + 4)
    presence = tl.load(sampling + sequence * 8 + 5)
    frequency = tl.load(sampling + sequence * 8 + 6)
    least = tl.load(sampling + sequence * 8 + 7)
    generated = tl.load(lens + sequence) - tl.load(prompt_lens + sequence) + before
    penalties = (repetition != 1) | (presence != 0) | (frequency != 0)
    return penalties, generated < least


@triton.jit
@no_type_check
def _counts(
    scratch, tokens, drafted, begin, end, before, first, inside, i,
    SIZE: tl.constexpr, DRAFTED: tl.constexpr,
):  # fmt: skip
    """How often each of the tokens `first` + `i` stands at the positions from `begin` to `end`, or
    among the first `before` drafted tokens. `scratch` is this program's own.
    """
    tl.store(scratch + i, tl.zeros((SIZE,), dtype=tl.int32), mask=inside)
    tl.debug_barrier()
    for at in range(begin, end, TOKENS):
        place = at + tl.arange(0, TOKENS)
        token = tl.load(tokens + place, mask=place < end, other=-1) - first
        tl.atomic_add(scratch + token, 1, mask=(token >= 0) & (token < SIZE), sem="relaxed")
    j = tl.arange(0, DRAFTED)
    token = tl.load(drafted + j, mask=j < before, other=-1) - first
    tl.atomic_add(scratch + token, 1, mask=(token >= 0) & (token < SIZE), sem="relaxed")
    tl.debug_barrier()
    found = tl.load(scratch + i, mask=inside, other=0, cache_modifier=".cg")
    tl.debug_barrier()
    return found


@triton.jit
@no_type_check
def edited_logits(
    value, scratch, sampling, tokens, lens, prompt_lens, end_tokens, drafted,
    sequence, before, first, inside, ends, slots, drafted_row, penalties, early,
    SIZE: tl.constexpr, DRAFTED: tl.constexpr,
):  # fmt: skip
    """The logits `value` of the tokens `first` to `first` + SIZE, of which those `inside` exist."""
    i = tl.arange(0, SIZE)
    if penalties:
        repetition = tl.load(sampling + sequence * 8 + 4).to(tl.float32)
        presence = tl.load(sampling + sequence * 8 + 5).to(tl.float32)
        frequency = tl.load(sampling + sequence * 8 + 6).to(tl.float32)
        length, prompt = tl.load(lens + sequence), tl.load(prompt_lens + sequence)
        tokens += sequence * slots
        drafted += sequence * drafted_row
        prompted = _counts(scratch, tokens, drafted, 0, prompt, 0, first, inside, i, SIZE, DRAFTED)
        generated = _counts(
            scratch, tokens, drafted, prompt, length, before, first, inside, i, SIZE, DRAFTED
        )
        penalized = tl.where(value > 0, value / repetition, value * repetition)
        value = tl.where(prompted + generated > 0, penalized, value)
        less = frequency * generated.to(tl.float32) + presence
        value = tl.where(generated > 0, value - less, value)
    if early:
        for e in range(ends):
            end = tl.load(end_tokens + sequence * ends + e)
            value = tl.where(first + i == end, float("-inf"), value)
    return value
