"""Programmatic dependent launch: a kernel that begins while the one before it ends, and waits for what that one writes."""

import functools
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
@no_type_check
def wait_for_inputs(PDL: tl.constexpr):
    """Let the next kernel begin, then wait until the one before has written everything. Weights may be read before it."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


def dependent(x: Tensor) -> dict[str, Any]:
    """The launch options of a kernel that calls `wait_for_inputs`, on the device of `x`."""
    able = x.is_cuda and _able(x.device)
    return {"PDL": able} | ({"launch_pdl": True} if able else {})


@functools.cache
def _able(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] >= 9
