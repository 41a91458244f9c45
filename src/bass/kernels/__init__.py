"""Kernels in Triton: attention (`attention.py`), products of a few rows (`dense.py`), what stands
between them (`stream.py`), warps and log-probabilities (`sample.py`), draws and verdicts
(`verdict.py`).

Their twins in plain torch are in `reference.py`; those of the last two are the functions that call
them, on other devices.

Nothing here imports the rest of `bass`, and importing this package, or `reference`, needs no
Triton.
"""

import functools
import importlib.util
import os
import sys

import torch
from torch import Tensor

# bytes that a program may have: on an H100 or a B200; that the kernels need
MOST_SHARED, LEAST_SHARED = 227 * 1024, 96 * 1024


def serves(x: Tensor) -> bool:
    """Whether Triton's kernels serve the tensor: on a CUDA device that has Triton.

    On a CPU torch is faster than its interpreter.
    """
    return x.is_cuda and serve(x.device)


@functools.cache
def serve(device: torch.device) -> bool:
    """The same of a device."""
    return device.type == "cuda" and obstacle(device) is None


def obstacle(device: torch.device) -> tuple[str, str] | None:
    """Why our kernels cannot run on the device, and what to do about it; None where they can."""
    found = no_triton(device)
    if found is None and device.type == "cuda" and (size := shared_memory(device)) < LEAST_SHARED:
        found = (
            (
                f"its programs have {size >> 10} KB of shared memory, and the kernels need "
                f"{LEAST_SHARED >> 10}"
            ),
            "take another GPU",
        )
    return found


def no_triton(device: torch.device) -> tuple[str, str] | None:
    """The same of any kernel in Triton."""
    if importlib.util.find_spec("triton") is None:
        if sys.platform != "linux":
            return "Triton has packages for Linux only", "take a Linux machine"
        return "triton is not installed", "restore it with `pip install bass-decoding`"
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return (
            "Triton compiles for GPUs",
            "take a CUDA device, or set TRITON_INTERPRET=1, which interprets its kernels, slowly",
        )
    if device.type not in ("cpu", "cuda"):
        return (
            "the kernels know CUDA devices, and a CPU with TRITON_INTERPRET=1",
            "take one of these",
        )
    return None


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Bytes that a program on the device may have, of which a multiprocessor keeps 1 KB; as on an
    H100 where torch does not tell.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return MOST_SHARED
    whole = getattr(
        torch.cuda.get_device_properties(device),
        "shared_memory_per_multiprocessor",
        MOST_SHARED + 1024,
    )
    return min(whole - 1024, MOST_SHARED)
