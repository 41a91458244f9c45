"""The work of a step between its passes, on its rows; a thread takes whole rows.

    uniforms   Philox4x32-10 of counters (Salmon et al., 2011)
    warp       p = e / Σ e over the tokens that stay, else 0;  e = exp((x - max x) / T)
    draw       the first token at which the running sum of p, in float64, passes u Σ p
    finish     appends the verdict to a row, up to an end token or its limit, and reports the step

`bass.ops` has the formulas and the shapes.
"""

import math
from typing import no_type_check

import numpy as np
import torch
from numba import njit
from torch import Tensor

from bass.kernels import values
from bass.kernels.cpu.runtime import compiled, empty, floats, own_share, unpacked

MASK, SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)
FIRST, SECOND = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL_FIRST, WEYL_SECOND = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
LARGEST = np.float32(3.4028235e38)
ONE, ZERO, BITS_OF_ONE = np.float32(1), np.float32(0), np.int32(0x3F800000)
MAY_REORDER = {"reassoc", "contract", "nsz"}  # sums in several lanes
# of `_exp`: log 2 in two parts, and the polynomial (Cephes)
LOG2E = np.float32(1.44269504088896341)
HIGH, LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
P0, P1, P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
P3, P4, P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
HALF, LEAST = np.float32(0.5), np.float32(-87)


@compiled
@no_type_check
def _uniforms(argument):
    keys, steps, out, rows, slots, domain, threads = unpacked(argument, "IIDiiii")
    for row in own_share(rows, threads):
        key = np.uint64(keys[row])
        for slot in range(slots):
            low, high = key & MASK, key >> SHIFT
            zero, one = np.uint64(steps[row]), np.uint64(slot)
            two, three = np.uint64(domain), np.uint64(0)
            for _ in range(10):
                first, second = zero * FIRST, two * SECOND
                zero, one, two, three = (
                    ((second >> SHIFT) ^ one ^ low) & MASK,
                    second & MASK,
                    ((first >> SHIFT) ^ three ^ high) & MASK,
                    first & MASK,
                )
                low, high = (low + WEYL_FIRST) & MASK, (high + WEYL_SECOND) & MASK
            at = (row * slots + slot) * 4
            for i, word in enumerate((zero, one, two, three)):
                out[at + i] = (np.float64(word) + 0.5) / 4294967296.0


def uniforms(keys: Tensor, steps: Tensor, slots: int, domain: int) -> Tensor:
    """float64 uniforms in (0, 1), four streams per slot of each row's step."""
    keys, steps, rows = keys.contiguous(), steps.contiguous(), keys.shape[0]
    out = empty(rows, slots, 4, dtype=torch.float64)
    _uniforms(0, keys, steps, out, rows, slots, domain)
    return out


@njit(cache=True, error_model="numpy", inline="always")
@no_type_check
def _exp(x):
    """exp(x) of x <= 0, without branches, so that a loop over it has vector instructions.

    x = n log 2 + r with |r| <= log(2) / 2, and exp(x) = 2^n p(r); within 2 units in the last place,
    and 0 below -87.
    """
    y = max(x, LEAST)
    n = np.floor(y * LOG2E + HALF)
    r = y - n * HIGH
    r = r - n * LOW
    p = ((((P0 * r + P1) * r + P2) * r + P3) * r + P4) * r + P5
    p = p * r * r + r + ONE
    scale = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)  # 2^n
    return p * scale if x >= LEAST else ZERO


@njit(cache=True, error_model="numpy", fastmath=MAY_REORDER)
@no_type_check
def _largest(x, first, last):
    """The largest number; NaN if there is a NaN or +infinity, or nothing finite."""
    top, wrong = -LARGEST, 0
    some = 0
    for i in range(first, last):
        value = x[i]
        wrong += not value <= LARGEST
        some += value >= -LARGEST
        top = max(top, value)
    return np.float32(math.nan) if wrong or not some else top


@njit(cache=True, error_model="numpy", fastmath=MAY_REORDER)
@no_type_check
def _exponentials(x, p, first, last, top, temperature):
    total = ZERO
    for i in range(first, last):
        e = _exp((x[i] - top) / temperature)
        p[i] = e
        total += e
    return total


@njit(cache=True, error_model="numpy", fastmath=MAY_REORDER)
@no_type_check
def _keep(p, first, last, floor):
    """Keep what is at least `floor`, and normalise it."""
    total = ZERO
    for i in range(first, last):
        value = p[i] if p[i] >= floor else ZERO
        p[i] = value
        total += value
    for i in range(first, last):
        p[i] /= total


@njit(cache=True, error_model="numpy", fastmath=MAY_REORDER)
@no_type_check
def _floor(p, first, last, count, mass):
    """The smallest of the largest numbers, as many as `count`, or as reach `mass` in their sum.

    A bisection of bits: those of positive floats have the order of the numbers.
    """
    low, high = np.int32(0), BITS_OF_ONE
    while low < high:
        middle = np.int32(low + (high - low + 1) // 2)
        floor, number, total = middle.view(np.float32), np.int32(0), ZERO
        for i in range(first, last):
            number += np.int32(p[i] >= floor)
            total += p[i] if p[i] >= floor else ZERO
        if number >= count or total >= mass:
            low = middle
        else:
            high = np.int32(middle - 1)
    found = np.int32(low)
    return found.view(np.float32)


@njit(cache=True, error_model="numpy")
@no_type_check
def _distribution(x, p, first, last, options, at):
    vocab = last - first
    temperature, top_k, top_p, min_p = (
        np.float32(options[at]), options[at + 1], np.float32(options[at + 2]),
        np.float32(options[at + 3]),
    )  # fmt: skip
    top = _largest(x, first, last)
    if temperature == 0 or top != top:
        for i in range(first, last):
            p[i] = top - top  # 0 or NaN
        if top == top:
            i = first
            while x[i] != top:
                i += 1
            p[i] = 1
        return
    total = _exponentials(x, p, first, last, top, temperature)
    for i in range(first, last):
        p[i] /= total
    if 0 < top_k < vocab:
        _keep(p, first, last, _floor(p, first, last, int(top_k), np.float32(2)))
    if top_p < 1:
        _keep(p, first, last, _floor(p, first, last, vocab + 1, top_p))
    if min_p > 0:
        _keep(p, first, last, min_p * _largest(p, first, last))


@compiled
@no_type_check
def _warp(argument):
    x, p, options, rows, vocab, window, columns, threads = unpacked(argument, "FFDiiiii")
    for row in own_share(rows, threads):
        first = row * vocab
        _distribution(x, p, first, first + vocab, options, row // window * columns)


def warp(logits: Tensor, sampling: Tensor) -> Tensor:
    """The distributions of rows without penalties."""
    logits, sampling = logits.contiguous(), sampling.contiguous()
    batch, window, vocab = logits.shape
    out = empty(batch, window, vocab)
    _warp(
        16 * logits.numel(), logits, out, sampling, batch * window, vocab, window,
        sampling.shape[1],
    )  # fmt: skip
    return out


@compiled
@no_type_check
def _draw(argument):
    p, uniform, out, rows, vocab, step, threads = unpacked(argument, "FDIiiii")
    for row in own_share(rows, threads):
        first, total, running = row * vocab, 0.0, 0.0
        for i in range(first, first + vocab):
            total += p[i]
        threshold = uniform[row * step] * total
        out[row] = vocab - 1  # NaN alone
        for i in range(vocab):
            running += p[first + i]
            if running > threshold:
                out[row] = i
                break


def draw(probs: Tensor, uniform: Tensor) -> Tensor:
    """One token per row, by inverse transform."""
    probs, vocab = probs.contiguous(), probs.shape[-1]
    out = empty(*probs.shape[:-1], dtype=torch.int64)
    uniform = uniform if uniform.ndim == 1 else uniform.flatten()
    _draw(2 * probs.numel(), probs, uniform, out, out.numel(), vocab, uniform.stride(0))
    return out


@njit(cache=True, error_model="numpy", fastmath=MAY_REORDER)
@no_type_check
def _log_total(x, first, last, top):
    total = ZERO
    for i in range(first, last):
        total += _exp(x[i] - top)
    return np.float32(math.log(total))


@njit(cache=True, error_model="numpy", fastmath=MAY_REORDER)
@no_type_check
def _flag(p, first, last):
    total, least = ZERO, LARGEST
    for i in range(first, last):
        total += p[i]
        least = min(least, p[i])
    if not abs(total) <= LARGEST:
        return values.NOT_FINITE
    if least < 0:
        return values.NEGATIVE
    return values.NOT_ONE if abs(total - 1) > values.TOLERANCE else 0


@compiled
@no_type_check
def finish(argument):
    """Commit a verdict and report the step: see `bass.ops.batch_state.commit_and_report`."""
    (
        tokens, lens, limits, active, steps, ends, verdict, accepted, drafts, lengths, draft_probs,
        raised, logits, probs, emitted, report, floats_, rows, step, k, count, vocab, jointly,
        threads,
    ) = unpacked(argument, "IIIBIIIIIIiIFFIIDiiiiiii")  # fmt: skip
    for row in own_share(rows, threads):
        first, at = row * (k + 1), row * (8 + 4 * k)
        for i in range(k + 1):
            start, token = (first + i) * vocab, verdict[first + i]
            top = _largest(logits, start, start + vocab)
            report[at + 6 + i], floats_[at + 7 + 2 * k + i] = token, math.nan
            if top == top and 0 <= token < vocab:
                log_total = _log_total(logits, start, start + vocab, top)
                floats_[at + 7 + 2 * k + i] = (logits[start + token] - top) - log_total
        for i in range(k):
            token, place = drafts[row * k + i], at + 8 + 3 * k + i
            report[at + 7 + k + i], floats_[place] = token, math.nan
            if draft_probs:
                floats_[place] = floats(draft_probs)[(row * k + i) * vocab + token]
        size = min(accepted[row], k) + 1 if active[row] else 0
        size, own, ended = min(size, limits[row] - lens[row]), 0, False
        while own < size and not ended:
            token = min(max(verdict[first + own], 0), vocab - 1)
            tokens[row * step + lens[row]] = token
            lens[row] += 1
            own += 1
            for end in range(count):
                ended |= token == ends[row * count + end]
        steps[row] += active[row]
        active[row] = active[row] and not ended and lens[row] < limits[row]
        found, emitted[row] = 0, own
        for i in range(lengths[row] + 1 if jointly and own > 0 else own):
            found |= _flag(probs, (first + i) * vocab, (first + i + 1) * vocab)
        report[at], report[at + 1], report[at + 2] = lens[row], active[row], lengths[row]
        report[at + 3], report[at + 4] = accepted[row], own
        report[at + 5] = raised[row] + values.TARGET * found
