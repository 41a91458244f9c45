"""Edits of logits by the tokens before them: penalties, and exclusion of early end tokens.

    y = x / r where x > 0, else x r, for tokens of the row (repetition penalty r)
    y - f n - p [n > 0] for n occurrences among the generated tokens (frequency and presence)
    -inf for end tokens, before `min_new_tokens`

Each program counts the tokens in its own part of the vocabulary.
"""

from typing import no_type_check

import triton
import triton.language as tl

from bass.kernels.triton.launch import INTERPRETED, interpreted_range

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
