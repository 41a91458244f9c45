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

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(counter: Int[Tensor, "*rows 4"], key: Int[Tensor, "*rows 2"], rounds: int = 10) -> Int[Tensor, "*rows 4"]:
    """Four 32-bit words (in int64) for each 128-bit counter and 64-bit key, both given as 32-bit words.

    Agrees with the known-answer vectors of Random123.
    """
    if counter.device.type == "cpu":
        # On arrays as small as a step's, NumPy does the same operations in a third of the time.
        return torch.from_numpy(_philox(np, counter.numpy(), key.numpy(), np.arange(2), np.arange(rounds)))
    device = counter.device
    return _philox(torch, counter, key, torch.arange(2, device=device), torch.arange(rounds, device=device))


def _philox(xp: Any, counter: Any, key: Any, lane: Any, rounds: Any) -> Any:
    """The generator in the operations that torch and NumPy (`xp`) share. `lane` is [0, 1], `rounds` [0, 1, ...].

    Constants come from arithmetic on `lane`: on a GPU, a copy from the host could not be part of a CUDA graph.
    """
    multiplier, weyl = (first + lane * (second - first) for first, second in (_MULTIPLIERS, _WEYL))
    round_keys = (key[..., None, :] + weyl * rounds[:, None]) & _MASK
    even, odd = counter[..., 0::2], counter[..., 1::2]
    for i in range(len(rounds)):
        product = (
            (even * multiplier)[..., ::-1] if xp is np else (even * multiplier).flip(-1)
        )  # wraps modulo 2^64, which leaves both halves right
        even = ((product >> 32) & _MASK) ^ odd ^ round_keys[..., i, :]
        odd = product & _MASK
    return xp.stack((even[..., 0], odd[..., 0], even[..., 1], odd[..., 1]), -1)


def uniforms(keys: Int[Tensor, " batch"], steps: Int[Tensor, " batch"], slots: int, domain: int = 0) -> Float[Tensor, "batch slots 4"]:
    """float64 uniforms in (0, 1) on a grid of 2^-32, four streams per slot of the row's step."""
    slot = torch.arange(slots, device=keys.device)
    step = steps[:, None].expand(len(keys), slots)
    counter = torch.stack((step, slot.expand_as(step), torch.full_like(step, domain), torch.zeros_like(step)), -1)
    key = torch.stack((keys & _MASK, (keys >> 32) & _MASK), -1)[:, None].expand(len(keys), slots, 2)
    return (philox(counter, key).to(torch.float64) + 0.5) / 2.0**32


def step_noise(keys: Int[Tensor, " batch"], steps: Int[Tensor, " batch"], k: int) -> Noise:
    """The noise of one speculative step of up to k drafted tokens: k+1 slots."""
    return Noise(keys, uniforms(keys, steps, k + 1))


def row_key(seed: int, prompt: list[int], sample: int) -> int:
    """The 63-bit key of one sample of one prompt under one seed.

    A function of the prompt's tokens, not of its place in the call: equal prompts, samples and seeds give equal tokens.
    """
    digest = hashlib.blake2b(repr((seed, sample, prompt)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
