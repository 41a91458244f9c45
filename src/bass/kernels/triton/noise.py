"""Philox4x32-10 (Salmon et al., 2011) in one launch: the uniforms of `bass.ops.noise`."""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from bass.kernels.triton.launch import dependent, wait_for_inputs

SLOTS = 128  # of one program


@triton.jit(do_not_specialize=["slots"])
@no_type_check  # Triton reads the source, not the function
def _uniforms(
    keys, steps, out, slots, DOMAIN: tl.constexpr, SLOTS: tl.constexpr, PDL: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.program_id(1) * SLOTS + tl.arange(0, SLOTS)
    wait_for_inputs(PDL)
    step = (tl.load(steps + row) + slot * 0).to(tl.uint32)
    domain = tl.full((SLOTS,), DOMAIN, tl.uint32)
    words = tl.philox(tl.load(keys + row), step, slot.to(tl.uint32), domain, domain * 0)
    at = out + (row * slots + slot) * 4
    for stream in tl.static_range(4):
        # 2^-32, exactly
        tl.store(
            at + stream,
            (words[stream].to(tl.float64) + 0.5) * 2.3283064365386963e-10,
            mask=slot < slots,
        )


def uniforms(
    keys: Int[Tensor, " batch"], steps: Int[Tensor, " batch"], slots: int, domain: int
) -> Float[Tensor, "batch slots 4"]:
    """float64 uniforms in (0, 1), four per slot of each row; the counter is (step, slot, domain,
    0).
    """
    out = torch.empty((len(keys), slots, 4), device=keys.device, dtype=torch.float64)
    launch: Any = _uniforms[(len(keys), -(-slots // SLOTS))]
    with torch.cuda.device_of(keys):
        launch(
            keys.contiguous(), steps.contiguous(), out, slots, DOMAIN=domain, SLOTS=SLOTS,
            num_warps=4, **dependent(keys),
        )  # fmt: skip
    return out
