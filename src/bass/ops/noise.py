"""Counter-based noise: Philox4x32-10 (Salmon et al., 2011) in integer tensor operations, with the
same bits on every device.

A row's key derives from its request's seed, its prompt and its sample index. The counter holds the
row's own step, the slot in the window, and a domain. A row's noise therefore does not depend on the
other rows, its place in the batch, the layout or the backend. In the domain of positions, the
counter holds a position and the index of four adjacent tokens instead: see `exponential_race`.
"""

import hashlib
import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.kernels import triton as kernels
from bass.kernels.values import RowNumbers, Scores
from bass.ops import dispatch
from bass.records import Noise

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_POSITIONS = 1  # the domain of noise keyed by position; a step's noise has the domain 0
_LOG_TERMS = 11


def philox(
    counter: Int[Tensor, "*counters 4"], key: Int[Tensor, "*keys 2"]
) -> Int[Tensor, "*counters 4"]:
    """Four 32-bit words (in int64) for each 128-bit counter and 64-bit key, both as 32-bit words.

    Agrees with the known-answer vectors of Random123.
    """
    even, odd = counter[..., 0::2], counter[..., 1::2]
    # Constants come from arithmetic: a CUDA graph cannot capture a copy from the host.
    lane = torch.arange(2, device=counter.device)
    multiplier, weyl = (first + lane * (second - first) for first, second in (_MULTIPLIERS, _WEYL))
    for i in range(10):
        product = even * multiplier  # wraps modulo 2^64, which keeps both halves correct
        swapped = product.flip(-1)
        even = ((swapped >> 32) ^ odd ^ (key + i * weyl)) & _MASK
        odd = swapped & _MASK
    return torch.stack((even[..., 0], odd[..., 0], even[..., 1], odd[..., 1]), -1)


def uniforms(
    keys: RowNumbers, steps: RowNumbers, slots: int, domain: int = 0
) -> Float[Tensor, "batch slots 4"]:
    """float64 uniforms in (0, 1) on a grid of 2^-32, four streams per slot of the row's step."""
    if dispatch.use_kernels(keys):
        return kernels.batch_state.uniforms(keys, steps, slots, domain)
    cpu = dispatch.cpu_kernels(keys)
    if cpu is not None:
        return cpu.step.uniforms(keys, steps, slots, domain)
    slot = torch.arange(slots, device=keys.device)
    zero = steps[:, None] * 0 + slot * 0
    counter = torch.stack((steps[:, None] + zero, slot + zero, zero + domain, zero), -1)
    words = philox(counter, torch.stack((keys & _MASK, (keys >> 32) & _MASK), -1)[:, None])
    return (words.to(torch.float64) + 0.5) / 2.0**32


def step_noise(keys: RowNumbers, steps: RowNumbers, lens: RowNumbers, k: int) -> Noise:
    """The noise of one step of up to k drafted tokens: k+1 slots, the first for position `lens`."""
    return Noise(keys, lens, uniforms(keys, steps, k + 1))


def exponential_race(
    probs: Scores, keys: RowNumbers, first: RowNumbers
) -> Int[Tensor, "batch window"]:
    """Draw one token per row and position from `probs`; it does not depend on the step.

    first: the position of slot 0. The token with the least exponential noise / probability wins,
    which is the Gumbel-max: the largest log-probability + Gumbel noise. `probs` need not be
    normalised, and a token of probability zero never wins. With the same key and position, two
    similar distributions usually choose the same token (coupled sampling, Daliri et al., 2025).
    """
    return (exponentials(keys, first, probs.shape[1], probs.shape[2]) / probs).argmin(2)


def exponentials(
    keys: RowNumbers, first: RowNumbers, slots: int, vocab: int
) -> Float[Tensor, "batch slots vocab"]:
    """Standard exponential noise in float64, of a row's positions from `first` on and of every
    token.

    The bits are the same on every device. Each call of the generator yields four adjacent tokens.
    """
    positions = first[:, None] + torch.arange(slots, device=first.device)
    words = uniforms(
        keys[:, None].expand(-1, slots).flatten(), positions.flatten(), -(-vocab // 4), _POSITIONS
    )
    return minus_log(words.reshape(len(keys), slots, -1)[..., :vocab])


def minus_log(x: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """-log(x) of float64 in (0, 1), within a relative 1e-11, by operations whose IEEE rounding is
    the same on every device.

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

    It depends on the prompt's tokens, not on its place in the call: equal prompts, samples and
    seeds have equal noise.
    """
    digest = hashlib.blake2b(
        repr((int(seed), int(sample), prompt)).encode(), digest_size=8
    ).digest()
    return int.from_bytes(digest, "little") >> 1
