"""Kernels for CPUs, compiled by numba.

They run in the threads of torch's own OpenMP pool (`runtime`), so that two pools never compete. A
module, and with it numba, is imported when it is first used.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bass.kernels.cpu import (
        attention,
        batch_state,
        embedding,
        gemm,
        noise,
        norms,
        program,
        rejection_sampling,
        runtime,
        sampling,
    )

__all__ = [
    "attention",
    "batch_state",
    "embedding",
    "gemm",
    "noise",
    "norms",
    "program",
    "rejection_sampling",
    "runtime",
    "sampling",
]


def load() -> None:
    """Import all kernels, which compiles what this machine has not compiled yet."""
    for name in __all__:
        importlib.import_module(f"{__name__}.{name}")


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return importlib.import_module(f"{__name__}.{name}")
