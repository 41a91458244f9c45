"""Logits to probabilities, and log-probabilities, in float32; a thread takes whole rows.

    warp            p = e / Σ e over the tokens that stay, else 0;  e = exp((x - max x) / T)
    token_logprobs  x[token] - max x - log Σ exp(x - max x)

The floor of top-k and that of top-p come from a heap of the tokens that may be above them, as many
of which are taken out as the floor needs. `bass.ops.sampling` has the formulas.
"""

import math
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from numba import njit
from torch import Tensor

from bass.kernels.cpu.exponential import exp
from bass.kernels.cpu.runtime import (
    compiled,
    doubles,
    empty,
    floats,
    integers,
    own_share,
    thread_number,
)

LARGEST = np.float32(3.4028235e38)
ONE, ZERO = np.float32(1), np.float32(0)
MAY_REORDER = {"reassoc", "contract", "nsz"}  # sums in several lanes


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
        e = exp((x[i] - top) / temperature)
        p[i] = e
        total += e
    return total


@njit(cache=True, error_model="numpy", fastmath=MAY_REORDER)
@no_type_check
def _total(x, first, last, top):
    total = ZERO
    for i in range(first, last):
        total += exp(x[i] - top)
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


@njit(cache=True, error_model="numpy")
@no_type_check
def _sink(heap, size, i):
    value = heap[i]
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and heap[child + 1] > heap[child]:
            child += 1
        if heap[child] <= value:
            break
        heap[i] = heap[child]
        i = child
    heap[i] = value


@njit(cache=True, error_model="numpy")
@no_type_check
def _floor(p, first, last, heap, least, count, mass):
    """The smallest of the largest numbers, as many as `count`, or as reach `mass` in their sum;
    none of them is below `least`.
    """
    size = 0
    for i in range(first, last):
        heap[size] = p[i]
        size += p[i] >= least
    for i in range(size // 2 - 1, -1, -1):
        _sink(heap, size, i)
    floor, total = ZERO, ZERO
    while size > 0:
        floor = heap[0]
        total += floor
        count -= 1
        if count == 0 or total >= mass:
            break
        size -= 1
        heap[0] = heap[size]
        _sink(heap, size, 0)
    return floor


@njit(cache=True, error_model="numpy")
@no_type_check
def _distribution(x, p, first, last, options, at, heap):
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
        _keep(p, first, last, _floor(p, first, last, heap, ZERO, int(top_k), np.float32(2)))
    if top_p < 1:
        # all smaller numbers together do not reach what top_p leaves out
        least = np.float32(0.999) * (ONE - top_p) / np.float32(vocab)
        _keep(p, first, last, _floor(p, first, last, heap, least, vocab, top_p))
    if min_p > 0:
        most = ZERO
        for i in range(first, last):
            most = max(most, p[i])
        _keep(p, first, last, min_p * most)


@compiled
@no_type_check
def _warp(argument):
    a = integers(argument)
    x, p, options, heaps = floats(a[0]), floats(a[1]), doubles(a[2]), a[3]
    rows, vocab, window, columns, threads = a[4], a[5], a[6], a[7], a[8]
    me = thread_number()
    heap = floats(heaps + 4 * me * (vocab + 1))
    for row in own_share(rows, threads):
        first = row * vocab
        _distribution(x, p, first, first + vocab, options, row // window * columns, heap)


@compiled
@no_type_check
def _token_logprobs(argument):
    a = integers(argument)
    x, tokens, out = floats(a[0]), integers(a[1]), floats(a[2])
    rows, vocab, threads = a[3], a[4], a[5]
    for row in own_share(rows, threads):
        first, token = row * vocab, tokens[row]
        top = _largest(x, first, first + vocab)
        if top != top or not 0 <= token < vocab:
            out[row] = math.nan
        else:
            total = _total(x, first, first + vocab, top)
            out[row] = (x[first + token] - top) - np.float32(math.log(total))


def warp(
    logits: Float[Tensor, "batch window vocab"], sampling: Float64[Tensor, "batch options"]
) -> Float[Tensor, "batch window vocab"]:
    """The distributions of rows without penalties."""
    logits, sampling = logits.contiguous(), sampling.contiguous()
    batch, window, vocab = logits.shape
    out = empty(batch, window, vocab)
    heaps = empty(torch.get_num_threads() * (vocab + 1))
    _warp(
        16 * logits.numel(), logits, out, sampling, heaps, batch * window, vocab, window,
        sampling.shape[1],
    )  # fmt: skip
    return out


def token_logprobs(
    logits: Float[Tensor, "batch window vocab"], tokens: Int[Tensor, "batch window"]
) -> Float[Tensor, "batch window"]:
    """log softmax(logits) at `tokens`; NaN for an id outside the vocabulary."""
    logits, tokens = logits.contiguous(), tokens.contiguous()
    out = empty(*tokens.shape)
    _token_logprobs(8 * logits.numel(), logits, tokens, out, tokens.numel(), logits.shape[2])
    return out
