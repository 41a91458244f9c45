"""How kernels are launched: programmatic dependent launch, where a kernel begins while the previous
one ends, and waits for its results; kernels compiled in threads; captures that compile none.
"""

import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from threading import get_ident
from typing import Any, final, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Int32
from torch import Tensor
from triton import knobs
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from bass.kernels.support import FirstUse

MOST_THREADS = 16
COMPILES_AHEAD = hasattr(triton, "AsyncCompileMode")  # since Triton 3.5

rehearsing: ContextVar[bool] = ContextVar("rehearsing", default=False)


@triton.jit
@no_type_check
def launch_dependents(PDL: tl.constexpr):
    """Allow the next kernel to start."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
@no_type_check
def wait(PDL: tl.constexpr):
    """Wait until the previous kernel has written everything. Weights may be read before."""
    if PDL:
        gdc_wait()


@triton.jit
@no_type_check
def wait_for_inputs(PDL: tl.constexpr):
    """Let the next kernel begin, then wait until the previous one has written everything."""
    launch_dependents(PDL)
    wait(PDL)


@triton.jit
@no_type_check
def wait_for_all(PDL: tl.constexpr):
    """Wait until the previous kernel has written everything, then let the next one begin.

    A kernel after this one may read, before it waits, everything written before this one.
    """
    wait(PDL)
    launch_dependents(PDL)


def dense(x: Tensor) -> Tensor:
    """The tensor with a contiguous last axis."""
    return x if x.stride(-1) == 1 else x.contiguous()


def dependent(x: Tensor) -> dict[str, Any]:
    """The launch options of a kernel that calls `wait`, on the device of `x`."""
    supported = x.is_cuda and _supports_pdl(x.device)
    return {"PDL": supported} | ({"launch_pdl": True} if supported else {})


# whether TRITON_INTERPRET was set at import
INTERPRETED = not isinstance(wait, triton.JITFunction)
TRITON_DTYPES = {
    torch.int8: tl.int8,
    torch.float8_e4m3fn: tl.float8e4nv,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.int32: tl.int32,
}
WIDENED = (torch.bfloat16, torch.float8_e4m3fn)  # types without products in the interpreter


def operand(dtype: torch.dtype) -> tl.dtype:
    """The type of a product's operands: their own, or float32 if the interpreter has no product of
    it.
    """
    return TRITON_DTYPES[torch.float32 if INTERPRETED and dtype in WIDENED else dtype]


def interpreted_range(*bounds: Any) -> range:
    """Python's `range` for loops in the interpreter, whose scalars are arrays of one element.

    NumPy 2.4 does not accept those as indices.
    """
    return range(
        *(bound.handle.data.item() if isinstance(bound, tl.tensor) else bound for bound in bounds)
    )


@functools.cache
def _supports_pdl(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] >= 9


_restricted: int | None = None  # the thread in which `FirstUse` is raised


@contextmanager
def existing_kernels_only() -> Iterator[None]:
    """Within it, a kernel that this thread has to compile raises `FirstUse`, as do new counters.

    The capture of a CUDA graph allows to compile a kernel, but not to load it, and what a capture
    allocates is zero only when that graph has run.
    """
    global _restricted
    runtime: Any = knobs.runtime
    before = runtime.jit_cache_hook

    def stop(**kernel: Any) -> Any:
        if _restricted == get_ident():
            raise FirstUse
        return None if before is None else before(**kernel)

    _restricted, runtime.jit_cache_hook = get_ident(), stop
    try:
        yield
    finally:
        _restricted, runtime.jit_cache_hook = None, before


def kept_zeros(kernel: str, count: int, device: torch.device) -> Int32[Tensor, " count"]:
    """Counters (semaphores) of a kernel's programs, which the kernel leaves at zero.

    Kernels of one name must not run on two streams at once.
    """
    make: Any = _kept_zeros.__wrapped__ if rehearsing.get() else _kept_zeros
    return make(kernel, count, device)


@functools.cache
def _kept_zeros(kernel: str, count: int, device: torch.device) -> Int32[Tensor, " count"]:
    if _restricted == get_ident():
        raise FirstUse
    return torch.zeros(count, device=device, dtype=torch.int32)


@final
class NotLaunched:
    """In the place of a kernel that is being compiled: its launch does nothing."""

    function = packed_metadata = None

    def launch_metadata(self, *_: object) -> None: ...

    def run(self, *_: object) -> None: ...


@final
class Compiler(triton.AsyncCompileMode if COMPILES_AHEAD else object):  # type: ignore[misc]
    """Compiles in an executor what this thread launches, instead of launching it.

    compiled: whether a kernel was not on disk.
    """

    def __init__(self, executor: Executor) -> None:
        super().__init__(executor, ignore_errors=True)  # the first launch raises them
        self.compiled = False

    def submit(
        self, key: Any, compile_fn: Callable[[], Any], finalize_fn: Callable[[Any], None]
    ) -> NotLaunched:
        super().submit(key, compile_fn, finalize_fn)
        return NotLaunched()

    def note(self, *, cache_hit: bool, **_: Any) -> None:
        """Listen to a compilation that has ended."""
        self.compiled = self.compiled or not cache_hit


@contextmanager
def compiled_ahead() -> Iterator[Compiler]:
    """Within it, kernels that this thread launches for the first time are compiled, not launched.

    What would read their results must not run either: use it within the capture of a graph that is
    dropped. At its end all are compiled; after an exception, those that have begun.
    """
    settings: Any = knobs.compilation
    before, token = settings.listener, rehearsing.set(True)
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        compiler = Compiler(pool)
        settings.listener = compiler.note
        try:
            with compiler:
                try:
                    yield compiler
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    # nobody would notify who waits for them
                    compiler.raw_futures = [f for f in compiler.raw_futures if not f.cancelled()]
                    raise
        finally:
            settings.listener = before
            rehearsing.reset(token)
