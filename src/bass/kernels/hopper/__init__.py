"""Kernels in Gluon, for Hopper only.

A module, and with it Triton, is imported when it is first used.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bass.kernels.hopper import attention, gemm, gemm_residual

__all__ = ["attention", "gemm", "gemm_residual"]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return importlib.import_module(f"{__name__}.{name}")
