"""Kernels for CPUs, compiled by numba.

They run in the threads of torch's own OpenMP pool (`runtime`), so that two pools never compete. The
import compiles what this machine has not compiled yet: `bass.ops.dispatch` imports it when a model
is loaded.
"""

from bass.kernels.cpu import attention, gemm, rows, runtime, step

__all__ = ["attention", "gemm", "rows", "runtime", "step"]
