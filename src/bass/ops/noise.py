"""Counter-based noise: Philox4x32-10 (Salmon et al., 2011) in integer tensor operations, the same
bits everywhere.

A row's key comes from its request's seed, its prompt and its sample index; the counter holds the
row's own step, the slot in the window, and a domain. So a row's noise does not depend on its batch
mates, its slot, its layout or backend. In the domain of positions, the counter holds a position and
four neighbouring tokens instead: see `exponential_race`.
"""

import hashlib
import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.kernels import triton as kernels
from bass.ops import dispatch
from bass.records import Noise

# integer tensors, or NumPy arrays: the generator is written in the operations that both have
Words = Any
_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_POSITIONS = 1  # the domain of noise that belongs to a position; that of a step's noise is 0
_LOG_TERMS = 11


def philox(counter: Words, key: Words, rounds: int = 10) -> Words:
    """Four 32-bit words (in int64) [..., 4] for each 128-bit counter [..., 4] and 64-bit key [...,
    2], both as 32-bit words.

    Agrees with the known-answer vectors of Random123.
    """
    even, odd = counter[..., 0::2], counter[..., 1::2]
    # Constants come from arithmetic: on a GPU, a copy from the host could not be part of a CUDA
    # graph.
    lane = even * 0 + (_arange(2, counter) if isinstance(counter, Tensor) else np.arange(2))
    multiplier, weyl = (first + lane * (second - first) for first, second in (_MULTIPLIERS, _WEYL))
    for i in range(rounds):
        product = even * multiplier  # wraps modulo 2^64, which leaves both halves right
        swapped = product.flip(-1) if isinstance(product, Tensor) else product[..., ::-1]
        even = ((swapped >> 32) ^ odd ^ (key + i * weyl)) & _MASK
        odd = swapped & _MASK
    return _stack((even[..., 0], odd[..., 0], even[..., 1], odd[..., 1]))


def uniforms(
    keys: Int[Tensor, " batch"], steps: Int[Tensor, " batch"], slots: int, domain: int = 0
) -> Float[Tensor, "batch slots 4"]:
    """float64 uniforms in (0, 1) on a grid of 2^-32, four streams per slot of the row's step."""
    if dispatch.use_kernels(keys):
        return kernels.noise.uniforms(keys, steps, slots, domain)
    if keys.device.type == "cpu":
        # On arrays this small NumPy does the same operations in less than half of torch's time.
        words = torch.from_numpy(_words(keys.numpy(), steps.numpy(), np.arange(slots), domain))
    else:
        words = _words(keys, steps, _arange(slots, keys), domain)
    return (words.to(torch.float64) + 0.5) / 2.0**32


def _words(keys: Words, steps: Words, slot: Words, domain: int) -> Words:
    zero = steps[:, None] * 0 + slot * 0
    counter = _stack((steps[:, None] + zero, slot + zero, zero + domain, zero))
    return philox(counter, _stack((keys & _MASK, (keys >> 32) & _MASK))[:, None])


def _arange(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, device=like.device)


def _stack(words: tuple[Words, ...]) -> Words:
    return torch.stack(words, -1) if isinstance(words[0], Tensor) else np.stack(words, -1)


def step_noise(
    keys: Int[Tensor, " batch"], steps: Int[Tensor, " batch"], lens: Int[Tensor, " batch"], k: int
) -> Noise:
    """The noise of one speculative step of up to k drafted tokens: k+1 slots, the first of them for
    position `lens`.
    """
    return Noise(keys, lens, uniforms(keys, steps, k + 1))


def exponential_race(
    probs: Float[Tensor, "batch window vocab"],
    keys: Int[Tensor, " batch"],
    first: Int[Tensor, " batch"],
) -> Int[Tensor, "batch window"]:
    """One token per row and position, `first` being that of slot 0: a draw from `probs`, the same
    whatever step it is made in.

    The least of exponential noise / probability wins, which is the largest of log-probability +
    Gumbel noise. `probs` need not be normalised, and a token of probability zero never wins. Where
    two distributions race with the same key and position, they choose the same token as often as
    they are alike.
    """
    return (exponentials(keys, first, probs.shape[1], probs.shape[2]) / probs).argmin(2)


def exponentials(
    keys: Int[Tensor, " batch"], first: Int[Tensor, " batch"], slots: int, vocab: int
) -> Float[Tensor, "batch slots vocab"]:
    """Standard exponential noise in float64, of a row's positions from `first` on and of every
    token; the same bits everywhere.

    Each call of the generator serves four neighbouring tokens.
    """
    positions = first[:, None] + _arange(slots, first)
    words = uniforms(
        keys[:, None].expand(-1, slots).flatten(), positions.flatten(), -(-vocab // 4), _POSITIONS
    )
    return minus_log(words.reshape(len(keys), slots, -1)[..., :vocab])


def minus_log(x: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """-log(x) of float64 in (0, 1), within a relative 1e-11, by operations that IEEE rounds in one
    way on every device.

    x = m 2^e with m in [1/2, 1), and -log m = 2 (z + z^3 / 3 + z^5 / 5 ...) with z = (1 - m) / (1 +
    m).
    """
    mantissa, exponent = torch.frexp(x)
    z = (1 - mantissa) / (1 + mantissa)
    square = z * z
    series = torch.zeros_like(z)
    for n in reversed(range(_LOG_TERMS)):
        series.mul_(square).add_(1 / (2 * n + 1))
    return (2 * z).mul_(series).sub_(exponent.to(torch.float64) * math.log(2))


def row_key(seed: int | np.integer, prompt: list[int], sample: int) -> int:
    """The 63-bit key of one sample of one prompt under one seed.

    A function of the prompt's tokens, not of its place in the call: equal prompts, samples and
    seeds meet equal noise.
    """
    digest = hashlib.blake2b(
        repr((int(seed), int(sample), prompt)).encode(), digest_size=8
    ).digest()
    return int.from_bytes(digest, "little") >> 1
