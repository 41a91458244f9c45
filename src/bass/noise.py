"""Counter-based noise: Philox4x32-10 (Salmon et al., 2011) in integer tensor operations, the same bits everywhere.

A row's key comes from its request's seed, its prompt and its sample index; the counter holds the row's own step, the
slot in the window, and a domain. So a row's noise does not depend on its batch mates, its slot, its layout or backend.
"""

import hashlib
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.records import Noise

Words = Any  # integer tensors, or NumPy arrays: the generator is written in the operations that both have
_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(counter: Words, key: Words, rounds: int = 10) -> Words:
    """Four 32-bit words (in int64) [..., 4] for each 128-bit counter [..., 4] and 64-bit key [..., 2], both as 32-bit words.

    Agrees with the known-answer vectors of Random123.
    """
    even, odd = counter[..., 0::2], counter[..., 1::2]
    # Constants come from arithmetic: on a GPU, a copy from the host could not be part of a CUDA graph.
    lane = even * 0 + (_arange(2, counter) if isinstance(counter, Tensor) else np.arange(2))
    multiplier, weyl = (first + lane * (second - first) for first, second in (_MULTIPLIERS, _WEYL))
    for i in range(rounds):
        product = even * multiplier  # wraps modulo 2^64, which leaves both halves right
        swapped = product.flip(-1) if isinstance(product, Tensor) else product[..., ::-1]
        even = ((swapped >> 32) ^ odd ^ (key + i * weyl)) & _MASK
        odd = swapped & _MASK
    return _stack((even[..., 0], odd[..., 0], even[..., 1], odd[..., 1]))


def uniforms(keys: Int[Tensor, " batch"], steps: Int[Tensor, " batch"], slots: int, domain: int = 0) -> Float[Tensor, "batch slots 4"]:
    """float64 uniforms in (0, 1) on a grid of 2^-32, four streams per slot of the row's step."""
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


def step_noise(keys: Int[Tensor, " batch"], steps: Int[Tensor, " batch"], k: int) -> Noise:
    """The noise of one speculative step of up to k drafted tokens: k+1 slots."""
    return Noise(keys, uniforms(keys, steps, k + 1))


def row_key(seed: int | np.integer, prompt: list[int], sample: int) -> int:
    """The 63-bit key of one sample of one prompt under one seed.

    A function of the prompt's tokens, not of its place in the call: equal prompts, samples and seeds meet equal noise.
    """
    digest = hashlib.blake2b(repr((int(seed), int(sample), prompt)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
