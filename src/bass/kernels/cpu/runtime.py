"""Runs kernels in the threads of torch's OpenMP pool.

A kernel is a C function of one pointer, to 64-bit integers: addresses and sizes, the number of
threads last. Every thread calls it and takes its share of the work by its number.
"""

import ctypes
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding
import torch
from llvmlite import ir
from numba import cfunc, types
from numba.extending import intrinsic
from torch import Tensor

# the library that loads torch's OpenMP: GCC's names are found through it
_torch = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
_parallel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)(
    ("GOMP_parallel", _torch)
)
for _name, _function in (
    ("bass_thread_number", _torch.omp_get_thread_num),
    ("bass_barrier", _torch.GOMP_barrier),
):
    llvmlite.binding.add_symbol(_name, ctypes.cast(_function, ctypes.c_void_p).value)  # pyright: ignore[reportArgumentType]
thread_number = types.ExternalFunction("bass_thread_number", types.int32())


LEAST_WORK = 1 << 16  # multiplications: fewer take less time than to wake another thread
# of the recordings in progress, the launches: a kernel's address and its arguments
launched: list[list[tuple[int, tuple[Any, ...]]]] = []


def compiled(function: Callable[[Any], None]) -> Callable[..., None]:
    """The kernel as a function of its work, in multiplications, and of integers and tensors, which
    it gets as addresses (None: 0). It is compiled once per machine, where numba finds a folder.
    """
    signature = types.void(types.voidptr)
    try:
        kernel = cfunc(signature, cache=True, error_model="numpy")(function)
    except RuntimeError:  # no folder is writable
        kernel = cfunc(signature, error_model="numpy")(function)
    address: Any = kernel.address
    alone = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)

    def run(work: int, *arguments: int | Tensor | None) -> None:
        if launched:
            launched[-1].append((address, arguments))
        threads = torch.get_num_threads() if work >= LEAST_WORK else 1
        packed = (ctypes.c_int64 * (len(arguments) + 1))(*map(as_integer, arguments), threads)
        if threads == 1:
            alone(packed)
        else:
            _parallel(address, packed, threads, 0)

    return run


def as_integer(argument: int | Tensor | None) -> int:
    """An argument as the kernel gets it."""
    if isinstance(argument, Tensor):
        return argument.data_ptr()
    return argument or 0


def _pointer(kind: Any, element: ir.Type) -> Any:
    """An intrinsic that reads an address as a pointer to numbers."""

    @intrinsic
    def pointer(typing: Any, address: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = arguments[0]
            if signature.args[0] == types.voidptr:
                return builder.bitcast(value, element.as_pointer())
            return builder.inttoptr(value, element.as_pointer())

        given = types.voidptr if address == types.voidptr else types.int64
        return types.CPointer(kind)(given), code

    return pointer


integers = _pointer(types.int64, ir.IntType(64))
floats = _pointer(types.float32, ir.FloatType())
doubles = _pointer(types.float64, ir.DoubleType())
bytes_ = _pointer(types.uint8, ir.IntType(8))


@intrinsic
def double(typing: Any, packed: Any) -> Any:
    """The inverse of `bits`."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), code


def bits(value: float) -> int:
    """A float64 as an argument of a kernel."""
    return int.from_bytes(struct.pack("<d", value), "little", signed=True)
