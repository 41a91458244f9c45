"""Tier 3: the generator in one kernel gives the bits of the one that is written out."""

import torch

from bass.kernels.triton.batch_state import uniforms as kernel
from bass.ops.noise import row_key, uniforms


def test_the_kernels_noise_is_the_other_ones_bit_by_bit(device: torch.device) -> None:
    keys = torch.tensor([row_key(seed, [3, 1], 0) for seed in range(3)] + [0, 2**63 - 1])
    steps = torch.tensor([0, 1, 77, 2**31, 2**32 - 1])
    for slots in (1, 8, 130):
        for domain in (0, 1):
            found = kernel(keys.to(device), steps.to(device), slots, domain)
            assert torch.equal(found.cpu(), uniforms(keys, steps, slots, domain))
