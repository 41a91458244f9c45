"""Kernels in Triton, for GPUs of several kinds and Triton's interpreter.

A module, and with it Triton, is imported when it is first used.
"""

import importlib
import importlib.util
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bass.kernels.triton import attention as attention
    from bass.kernels.triton import batch_state as batch_state
    from bass.kernels.triton import experts as experts
    from bass.kernels.triton import group_quantized_gemm as group_quantized_gemm
    from bass.kernels.triton import kv_store as kv_store
    from bass.kernels.triton import launch as launch
    from bass.kernels.triton import quantize as quantize
    from bass.kernels.triton import rejection_sampling as rejection_sampling
    from bass.kernels.triton import residual_norm as residual_norm
    from bass.kernels.triton import sampling as sampling
    from bass.kernels.triton import small_m_gemm as small_m_gemm
    from bass.kernels.triton import validity as validity


def __getattr__(name: str) -> ModuleType:
    if importlib.util.find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return importlib.import_module(f"{__name__}.{name}")
