"""The draw of a token, the verdict of rejection sampling, and the flags of distributions.

    draw     the first token at which the running sum of p, in float64, passes u Σ p
    verdict  accepts token i if u < min(1, target / draft); after a rejection draws from
             max(0, target - draft), else from the target

A thread takes whole rows.
"""

import math
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int
from numba import njit
from torch import Tensor

from bass.kernels import flags
from bass.kernels.cpu.runtime import (
    compiled,
    doubles,
    empty,
    floats,
    integers,
    own_share,
    thread_number,
)

NOT_FINITE, NEGATIVE, NOT_ONE = flags.NOT_FINITE, flags.NEGATIVE, flags.NOT_ONE
TOLERANCE = flags.TOLERANCE
ZERO = np.float32(0)


@njit(cache=True, error_model="numpy")
@no_type_check
def _drawn(p, first, vocab, uniform):
    total = 0.0
    for i in range(first, first + vocab):
        total += p[i]
    threshold, running = uniform * total, 0.0
    for i in range(vocab):
        running += p[first + i]
        if running > threshold:
            return i
    return vocab - 1  # NaN alone


@compiled
@no_type_check
def _draw(argument):
    a = integers(argument)
    p, uniform, out, rows, vocab, step, threads = (
        floats(a[0]), doubles(a[1]), integers(a[2]), a[3], a[4], a[5], a[6],
    )  # fmt: skip
    for row in own_share(rows, threads):
        out[row] = _drawn(p, row * vocab, vocab, uniform[row * step])


@njit(cache=True, error_model="numpy")
@no_type_check
def _accepted(tokens, draft, target, uniforms, row, length, k, vocab, streams, has_probs):
    """The number of leading accepted tokens of a row."""
    for i in range(length):
        token = tokens[row * k + i]
        if not 0 <= token < vocab:
            return i
        ratio = target[(row * (k + 1) + i) * vocab + token]
        if has_probs:
            ratio = min(ratio / draft[(row * k + i) * vocab + token], np.float32(1))
        if not uniforms[(row * (k + 1) + i) * streams + 1] < ratio:
            return i
    return length


@compiled
@no_type_check
def _verdict(argument):
    a = integers(argument)
    tokens, draft, lengths, target = integers(a[0]), floats(a[1]), integers(a[2]), floats(a[3])
    uniforms, out, accepted, rests = doubles(a[4]), integers(a[5]), integers(a[6]), a[7]
    rows, k, vocab, streams, threads = a[8], a[9], a[10], a[11], a[12]
    me = thread_number()
    rest = floats(rests + 4 * me * vocab)
    for row in own_share(rows, threads):
        length = min(max(lengths[row], 0), k)
        count = _accepted(
            tokens, draft, target, uniforms, row, length, k, vocab, streams, a[1] != 0
        )
        at, used, some = (row * (k + 1) + count) * vocab, False, False
        if count < length:
            wrong, own = (row * k + count) * vocab, tokens[row * k + count]
            for i in range(vocab):
                rejected = draft[wrong + i] if a[1] else np.float32(i == own)
                rest[i] = max(target[at + i] - rejected, ZERO)
                some |= rest[i] > 0
            used = some
        uniform = uniforms[(row * (k + 1) + count) * streams + 2]
        for i in range(k):
            out[row * (k + 1) + i] = tokens[row * k + i]
        out[row * (k + 1) + k] = 0
        out[row * (k + 1) + count] = (
            _drawn(rest, 0, vocab, uniform) if used else _drawn(target, at, vocab, uniform)
        )
        accepted[row] = count


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _flag(p, first, last):
    total, least = ZERO, np.float32(math.inf)
    for i in range(first, last):
        total += p[i]
        least = min(least, p[i])
    if not abs(total) < math.inf:
        return NOT_FINITE
    if least < 0:
        return NEGATIVE
    return NOT_ONE if abs(total - 1) > TOLERANCE else 0


@compiled
@no_type_check
def _flags(argument):
    a = integers(argument)
    p, counted, out = floats(a[0]), integers(a[1]), integers(a[2])
    rows, window, vocab, step, threads = a[3], a[4], a[5], a[6], a[7]
    for row in own_share(rows, threads):
        found = 0
        for i in range(min(counted[row], window)):
            first = row * step + i * vocab
            found |= _flag(p, first, first + vocab)
        out[row] = found


def draw(
    probs: Float[Tensor, "*rows vocab"], uniform: Float[Tensor, "*rows"]
) -> Int[Tensor, "*rows"]:
    """One token per row, by inverse transform."""
    probs, vocab = probs.contiguous(), probs.shape[-1]
    out = empty(*probs.shape[:-1], dtype=torch.int64)
    step = uniform.stride(0) if uniform.ndim == 1 else 1
    if uniform.ndim != 1:
        uniform = uniform.contiguous()
    _draw(2 * probs.numel(), probs, uniform, out, out.numel(), vocab, step)
    return out


def verdict(
    tokens: Int[Tensor, "batch k"],
    draft_probs: Float[Tensor, "batch k vocab"] | None,
    lengths: Int[Tensor, " batch"],
    target_probs: Float[Tensor, "batch window vocab"],
    uniforms: Float[Tensor, "batch slots streams"],
) -> tuple[Int[Tensor, "batch window"], Int[Tensor, " batch"]]:
    """The tokens of the verdict and how many of the draft it accepts. `uniforms`: of a step's
    slots, as many as the window has.
    """
    (rows, k), (_, window, vocab) = tokens.shape, target_probs.shape
    probs = None if draft_probs is None else draft_probs.contiguous()
    uniforms = uniforms[:, :window].contiguous()
    out, accepted = tokens.new_empty(rows, window), tokens.new_empty(rows)
    rests = empty(torch.get_num_threads() * vocab)
    _verdict(
        4 * rows * vocab, tokens.contiguous(), probs, lengths.contiguous(),
        target_probs.contiguous(), uniforms, out, accepted, rests, rows, k, vocab,
        uniforms.shape[2],
    )  # fmt: skip
    return out, accepted


def distribution_flags(
    probs: Float[Tensor, "batch window vocab"], counted: Int[Tensor, " batch"]
) -> Int[Tensor, " batch"]:
    """The flags of the first `counted[b]` distributions of each row."""
    if probs.stride()[1:] != (probs.shape[2], 1):
        probs = probs.contiguous()
    rows, window, vocab = probs.shape
    out = counted.new_empty(rows)
    _flags(probs.numel(), probs, counted.contiguous(), out, rows, window, vocab, probs.stride(0))
    return out
