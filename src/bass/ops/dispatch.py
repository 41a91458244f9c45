"""Which kernels serve an operation: Triton's, Hopper's, those for CPUs, or none.

`BASS_CPU_PRODUCTS=torch` leaves a CPU to torch (`kernel`: the default).
"""

import importlib
import os
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from bass.errors import OptionError
from bass.kernels import triton as kernels
from bass.kernels.support import FirstUse as FirstUse
from bass.kernels.support import Unsupported as Unsupported
from bass.kernels.support import cpu_unsupported, runs_hopper
from bass.kernels.support import runs_kernels as runs_kernels
from bass.kernels.support import triton_unsupported as triton_unsupported
from bass.kernels.support import unsupported as unsupported

MOST_ROWS = 512  # of a step; a prefill has more, and is bound by arithmetic
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
CPU_DTYPES = (torch.float32, torch.int64)  # of a step on a CPU, but for matrices
MOST_CPU_ROWS = 192  # of a step on a CPU, whose passes are replayed
VARIABLE = "BASS_CPU_PRODUCTS"
_cpu: list[Any] = []  # the package of kernels for CPUs, once a model on a CPU is loaded


def launches() -> ModuleType:
    """`bass.kernels.triton.launch`, for steps that are captured and kernels that are compiled in
    advance.
    """
    return kernels.launch


def use_kernels(x: Tensor) -> bool:
    """Whether operations on the tensor use kernels: it is on a CUDA device that runs them."""
    return x.is_cuda and runs_kernels(x.device)


def hopper(x: Tensor) -> bool:
    """Whether operations on the tensor use the kernels in Gluon: on a Hopper GPU, Triton 3.6."""
    return x.is_cuda and runs_hopper(x.device)


def few_rows(x: Tensor, *weights: Tensor | None) -> bool:
    """Whether a layer uses kernels for these rows of a decoding step.

    They compute in float32 what is stored in 32 bits or fewer.
    """
    return (
        use_kernels(x)
        and x.dtype in DTYPES
        and x.numel() <= MOST_ROWS * x.shape[-1]
        and not has_gradient(x, *weights)
    )


def has_gradient(*tensors: Tensor | None) -> bool:
    """Whether torch records a gradient of any of them, which kernels do not have."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def load_cpu_kernels() -> None:
    """Let a CPU use its kernels from now on; compiles what this machine has not compiled yet.

    Raises `OptionError` for an unknown value of BASS_CPU_PRODUCTS.
    """
    chosen = os.environ.get(VARIABLE, "kernel")
    if chosen not in ("kernel", "torch"):
        raise OptionError(f"`{VARIABLE}={chosen}` is unknown: give kernel or torch, or unset it.")
    _cpu.clear()
    if chosen == "kernel" and cpu_unsupported() is None:
        _cpu.append(importlib.import_module("bass.kernels.cpu"))


def cpu_kernels(*tensors: Tensor | None, types: tuple[torch.dtype, ...] = CPU_DTYPES) -> Any:
    """The package `bass.kernels.cpu` if it serves these tensors; None: torch does."""
    if (
        _cpu
        and all(t is None or (t.is_cpu and t.dtype in types) for t in tensors)
        and not has_gradient(*tensors)
    ):
        return _cpu[0]
    return None


def cpu_step_kernels(x: Tensor, *weights: Tensor | None) -> Any:
    """The same for the rows x of a step: few, so that its passes are replayed (`ops.recorded`), and
    weights without gaps. Tokens have an axis of 1.
    """
    if 0 < x.numel() <= MOST_CPU_ROWS * x.shape[-1] and all(
        w is None or w.is_contiguous() for w in weights
    ):
        return cpu_kernels(x, *weights)
    return None


def cpu_kernels_in_words() -> str:
    """What computes on a CPU, and why, if it is torch, in a few words."""
    reason = cpu_unsupported()
    if os.environ.get(VARIABLE) == "torch":
        return "torch"
    return "numba" if reason is None else f"torch ({reason.reason})"
