"""Kernels in Triton, for GPUs of several kinds and Triton's interpreter.

A module, and with it Triton, is imported when it is first used.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bass.kernels.triton import (
        attention,
        batch_state,
        experts,
        group_quantized_gemm,
        kv_store,
        launch,
        quantize,
        rejection_sampling,
        residual_norm,
        sampling,
        small_m_gemm,
        validity,
    )

__all__ = [
    "attention",
    "batch_state",
    "experts",
    "group_quantized_gemm",
    "kv_store",
    "launch",
    "quantize",
    "rejection_sampling",
    "residual_norm",
    "sampling",
    "small_m_gemm",
    "validity",
]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return importlib.import_module(f"{__name__}.{name}")
