"""Which devices run the kernels. It imports no Triton."""

import ctypes
import functools
import importlib.metadata
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

# bytes of shared memory of a program: on an H100 or a B200; the kernels' minimum
MOST_SHARED, LEAST_SHARED = 227 * 1024, 96 * 1024


@dataclass(frozen=True)
class Unsupported:
    """Why something cannot run, and the remedy."""

    reason: str
    remedy: str


class FirstUse(Exception):
    """A kernel or its counters would be made here, where only those that exist may be used."""


@functools.cache
def runs_kernels(device: torch.device) -> bool:
    """Whether the kernels run on the device, and faster than torch: a CUDA device with Triton.

    On a CPU torch is faster than Triton's interpreter.
    """
    return device.type == "cuda" and unsupported(device) is None


def unsupported(device: torch.device) -> Unsupported | None:
    """Why our kernels cannot run on the device; None if they can."""
    found = triton_unsupported(device)
    if found is None and device.type == "cuda" and (size := shared_memory(device)) < LEAST_SHARED:
        found = Unsupported(
            f"its programs have {size >> 10} KB of shared memory, and the kernels need "
            f"{LEAST_SHARED >> 10}",
            "take another GPU",
        )
    return found


def triton_unsupported(device: torch.device) -> Unsupported | None:
    """Why no Triton kernel can run on the device; None if one can."""
    if importlib.util.find_spec("triton") is None:
        if sys.platform != "linux":
            return Unsupported("Triton has packages for Linux only", "take a Linux machine")
        return Unsupported("triton is not installed", "restore it with `pip install bass-decoding`")
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return Unsupported(
            "Triton compiles for GPUs",
            "take a CUDA device, or set TRITON_INTERPRET=1, which interprets its kernels, slowly",
        )
    if device.type not in ("cpu", "cuda"):
        return Unsupported(
            "the kernels support CUDA devices, and a CPU with TRITON_INTERPRET=1",
            "take one of these",
        )
    return None


@functools.cache
def runs_hopper(device: torch.device) -> bool:
    """Whether the Gluon kernels run on the device: they use Hopper's instructions."""
    return (
        runs_kernels(device)
        and torch.cuda.get_device_capability(device)[0] == 9
        and is_known_gluon()
    )


def is_known_gluon() -> bool:
    """Whether the installed Triton has the Gluon of the kernels for Hopper."""
    return importlib.metadata.version("triton").split(".")[:2] == ["3", "6"]


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory for a program on the device; a multiprocessor reserves 1 KB."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return MOST_SHARED
    whole: int = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
    return min(whole - 1024, MOST_SHARED)


@functools.cache
def cpu_unsupported() -> Unsupported | None:
    """Why no kernel of `bass.kernels.cpu` can run; None if they can. It compiles none."""
    if importlib.util.find_spec("numba") is None:
        return Unsupported("numba is not installed", "restore it with `pip install bass-decoding`")
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        ctypes.CDLL(str(library)).GOMP_parallel  # noqa: B018
    except (OSError, AttributeError):
        return Unsupported("torch's threads are not GCC's OpenMP", "use torch's wheel for Linux")
    return None
