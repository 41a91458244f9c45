"""Runs kernels in the threads of torch's OpenMP pool.

A kernel is a C function of one pointer, to 64-bit integers: addresses and sizes, the number of
threads last. Every thread calls it and takes its share of the work by its number. OpenMP may give a
region fewer threads than it is asked for, so the region itself writes their number.
"""

import ctypes
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, no_type_check

import llvmlite.binding
import torch
from llvmlite import ir
from numba import cfunc, njit, types
from numba.extending import intrinsic
from torch import Tensor

# the library that loads torch's OpenMP: GCC's names are found through it
_torch = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
_parallel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)(
    ("GOMP_parallel", _torch)
)
for _name, _function in (
    ("bass_thread_number", _torch.omp_get_thread_num),
    ("bass_team_size", _torch.omp_get_num_threads),
    ("bass_barrier", _torch.GOMP_barrier),
):
    llvmlite.binding.add_symbol(_name, ctypes.cast(_function, ctypes.c_void_p).value)  # pyright: ignore[reportArgumentType]
thread_number = types.ExternalFunction("bass_thread_number", types.int32())
team_size = types.ExternalFunction("bass_team_size", types.int32())
barrier = types.ExternalFunction("bass_barrier", types.void())


@njit(cache=True, error_model="numpy")
@no_type_check
def own_share(count, threads):
    """The range of this thread's items."""
    me = thread_number()
    return range(count * me // threads, count * (me + 1) // threads)


LEAST_WORK = 1 << 16  # multiplications: fewer take less time than to wake another thread


class Recordings(threading.local):
    """The recordings in progress of each thread: of each launch the kernel's address and its
    arguments.
    """

    def __init__(self) -> None:
        self.launches: list[list[tuple[int, tuple[Any, ...]]]] = []


recordings = Recordings()


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor on the CPU, whatever torch's default type and device are."""
    return torch.empty(shape, dtype=dtype, device="cpu")


def _function(function: Callable[[Any], None]) -> Any:
    """The function compiled for C."""
    signature = types.void(types.voidptr)
    try:
        return cfunc(signature, cache=True, error_model="numpy")(function)
    except RuntimeError:  # no folder is writable
        return cfunc(signature, error_model="numpy")(function)


def compiled(function: Callable[[Any], None]) -> Callable[..., None]:
    """The kernel as a function of its work, in multiplications, and of integers and tensors, which
    it gets as addresses (None: 0). It is compiled once per machine, where numba finds a folder.
    """
    address: Any = _function(function).address
    alone = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)

    def run(work: int, *arguments: int | Tensor | None) -> None:
        if recordings.launches:
            recordings.launches[-1].append((address, arguments))
        threads = torch.get_num_threads() if work >= LEAST_WORK else 1
        packed = (ctypes.c_int64 * (len(arguments) + 1))(*map(as_integer, arguments), 1)
        if threads == 1:
            alone(packed)
        else:
            pair = (ctypes.c_int64 * 3)(address, ctypes.addressof(packed), len(arguments))
            in_parallel((ctypes.c_int64 * 2)(ctypes.addressof(pair), 1), threads)

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
def _call(typing: Any, function: Any, argument: Any) -> Any:
    """Call the kernel at an address."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte]).as_pointer()
        kernel, packed = (
            builder.inttoptr(value, to) for value, to in zip(arguments, (kind, byte), strict=True)
        )
        builder.call(kernel, [packed])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), code


@no_type_check
def _region(argument):
    """Run kernels one after the other: of each the address, its arguments, and their number."""
    a = integers(argument)
    for i in range(a[1]):
        kernel = integers(a[0] + 24 * i)
        integers(kernel[1])[kernel[2]] = team_size()  # all threads write the same
    barrier()
    for i in range(a[1]):
        kernel = integers(a[0] + 24 * i)
        _call(kernel[0], kernel[1])
        barrier()


_kernels: Any = _function(_region)


def in_parallel(argument: Any, threads: int) -> None:
    """Run `_region` in up to this number of threads."""
    if threads == 1:
        _alone(argument)
    else:
        _parallel(_kernels.address, argument, threads, 0)


_alone = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_kernels.address)


@intrinsic
def double(typing: Any, packed: Any) -> Any:
    """The inverse of `bits`."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), code


def bits(value: float) -> int:
    """A float64 as an argument of a kernel."""
    return int.from_bytes(struct.pack("<d", value), "little", signed=True)
