"""Philox4x32-10 (Salmon et al., 2011) of a step's counters; the formula is in `bass.ops.noise`."""

from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.kernels.cpu.runtime import compiled, doubles, empty, integers, own_share

MASK, SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)
FIRST, SECOND = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL_FIRST, WEYL_SECOND = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


@compiled
@no_type_check
def _uniforms(argument):
    a = integers(argument)
    keys, steps, out, rows, slots = integers(a[0]), integers(a[1]), doubles(a[2]), a[3], a[4]
    threads = a[6]
    for row in own_share(rows, threads):
        key = np.uint64(keys[row])
        for slot in range(slots):
            low, high = key & MASK, key >> SHIFT
            zero, one = np.uint64(steps[row]), np.uint64(slot)
            two, three = np.uint64(a[5]), np.uint64(0)
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


def uniforms(
    keys: Int[Tensor, " batch"], steps: Int[Tensor, " batch"], slots: int, domain: int
) -> Float[Tensor, "batch slots 4"]:
    """float64 uniforms in (0, 1), four streams per slot of each row's step."""
    keys, steps, rows = keys.contiguous(), steps.contiguous(), keys.shape[0]
    out = empty(rows, slots, 4, dtype=torch.float64)
    _uniforms(0, keys, steps, out, rows, slots, domain)
    return out
