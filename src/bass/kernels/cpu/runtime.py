"""Runs kernels in the threads of torch's OpenMP pool.

A kernel is a C function of one pointer, to 64-bit integers: addresses and numbers, the number of
threads last. Every thread calls it and takes its share of the work by its number. OpenMP may give a
region fewer threads than it is asked for, so the region itself writes their number.

A sequence of kernels is recorded once, and then runs in one region:

    every thread:   kernel 0 | barrier | kernel 1 | barrier | ...

    with Recording() as recording:
        outputs = compute(*inputs)          # kernels, views, and empty tensors
    program = recording.program(inputs, outputs)
    outputs = program(inputs)               # other inputs of the same shapes

As a CUDA graph does, a program holds addresses: of weights and caches, and of a memory of its own,
of which its inputs, its outputs and the tensors between its kernels take blocks as they did in the
recording.
"""

import ctypes
import struct
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, no_type_check

import llvmlite.binding
import torch
from llvmlite import ir
from numba import cfunc, njit, types
from numba.extending import intrinsic
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

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

LEAST_WORK = 1 << 16  # multiplications: fewer take less time than to wake another thread
Argument = int | float | Tensor | None
Tensors = tuple[Tensor, ...]
_aten = torch.ops.aten
_EMPTY = (_aten.empty.memory_format, _aten.empty_like.default, _aten.new_empty.default)
# of the arguments of a kernel: their letters in `unpacked`
KINDS = {
    "i": types.int64,
    "d": types.float64,
    "I": types.CPointer(types.int64),
    "F": types.CPointer(types.float32),
    "D": types.CPointer(types.float64),
    "B": types.CPointer(types.uint8),
}


@njit(cache=True, error_model="numpy")
@no_type_check
def own_share(count, threads):
    """The range of this thread's items."""
    me = thread_number()
    return range(count * me // threads, count * (me + 1) // threads)


@intrinsic(prefer_literal=True)
def unpacked(typing: Any, packed: Any, kinds: Any) -> Any:
    """The arguments of a kernel: for each letter of `kinds`, a literal, a number (i: integer,
    d: float64) or the numbers at an address (I, F, D: integers, float32, float64; B: bytes).
    """
    found = types.Tuple([KINDS[letter] for letter in kinds.literal_value])

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        read = builder.bitcast if packed == types.voidptr else builder.inttoptr
        numbers = read(arguments[0], ir.IntType(64).as_pointer())
        values = []
        for i, kind in enumerate(found):
            value = builder.load(builder.gep(numbers, [ir.Constant(ir.IntType(64), i)]))
            if isinstance(kind, types.CPointer):
                value = builder.inttoptr(value, context.get_value_type(kind))
            elif kind == types.float64:
                value = builder.bitcast(value, ir.DoubleType())
            values.append(value)
        return context.make_tuple(builder, found, values)

    return found(packed, kinds), code


@intrinsic
def floats(typing: Any, address: Any) -> Any:
    """The float32 numbers at an address."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.FloatType().as_pointer())

    return KINDS["F"](types.int64), code


@intrinsic
def _call(typing: Any, function: Any, argument: Any) -> Any:
    """Call the kernel at an address."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64).as_pointer()])
        kernel = builder.inttoptr(arguments[0], kind.as_pointer())
        builder.call(kernel, [arguments[1]])
        return context.get_dummy_value()

    return types.void(types.int64, KINDS["I"]), code


def _function(function: Callable[[Any], None]) -> Any:
    """The function compiled for C: once per machine."""
    return cfunc(types.void(types.voidptr), cache=True, error_model="numpy")(function)


@no_type_check
def _region(argument):
    """Run kernels one after the other: of each the address, its arguments, and their number."""
    table, count = unpacked(argument, "ii")
    for i in range(count):
        _, packed, size = unpacked(table + 24 * i, "iIi")
        packed[size] = team_size()  # all threads write the same
    barrier()
    for i in range(count):
        kernel, packed, _ = unpacked(table + 24 * i, "iIi")
        _call(kernel, packed)
        barrier()


_kernels: Any = _function(_region)
_C_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_alone = _C_FUNCTION(_kernels.address)


class Region:
    """Runs kernels in one parallel region. launches: of each its address and `pack`ed arguments."""

    def __init__(self, launches: list[tuple[int, Any]]) -> None:
        numbers = [
            number
            for address, packed in launches
            for number in (address, ctypes.addressof(packed), len(packed) - 1)
        ]
        self.launches, self._table = launches, (ctypes.c_int64 * len(numbers))(*numbers)
        self._argument = (ctypes.c_int64 * 2)(ctypes.addressof(self._table), len(launches))

    def run(self, threads: int) -> None:
        """Run them in up to this number of threads."""
        if threads == 1:
            _alone(self._argument)
        else:
            _parallel(_kernels.address, self._argument, threads, 0)


here = threading.local()  # `recording`: that of this thread, if one is in progress


def compiled(function: Callable[[Any], None]) -> Callable[..., None]:
    """The kernel as a function of its work, in multiplications, and of its arguments."""
    address: Any = _function(function).address
    alone = _C_FUNCTION(address)

    def run(work: int, *arguments: Argument) -> None:
        recording = getattr(here, "recording", None)
        if recording is not None:
            recording.launch(address, arguments)
        threads = torch.get_num_threads() if work >= LEAST_WORK else 1
        if threads == 1:
            alone(pack(arguments))
        else:
            Region([(address, pack(arguments))]).run(threads)

    return run


def pack(arguments: tuple[Argument, ...]) -> Any:
    """The arguments as a kernel gets them, for one thread."""
    return (ctypes.c_int64 * (len(arguments) + 1))(*map(_as_integer, arguments), 1)


def _as_integer(argument: Argument) -> int:
    """A tensor's address, the bits of a float64, or 0 for None."""
    if isinstance(argument, Tensor):
        return argument.data_ptr()
    if isinstance(argument, float):
        return int.from_bytes(struct.pack("<d", argument), "little", signed=True)
    return argument or 0


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor on the CPU, whatever torch's default type and device are."""
    return torch.empty(shape, dtype=dtype, device="cpu")


class ProgramMemory:
    """Blocks for tensors; a block is free again when its tensor and all its views are gone."""

    def __init__(self) -> None:
        self.blocks: dict[int, Tensor] = {}  # all, by their addresses
        self._free: list[Tensor] = []

    def take(self, size: int) -> Tensor:
        """A block of some bytes: the smallest free one that is large enough, or a new one."""
        enough = [i for i, block in enumerate(self._free) if len(block) >= size]
        if enough:
            block = self._free.pop(min(enough, key=lambda i: len(self._free[i])))
        else:
            block = empty(size, dtype=torch.uint8)
            self.blocks[block.data_ptr()] = block
        owner = block.numpy()[:size]  # lives as long as the storage that is made of it
        weakref.finalize(owner, self._free.append, block)
        return torch.from_numpy(owner)


class Recording(TorchDispatchMode):
    """Records the kernels that run meanwhile.

    foreign: the first operation that is no kernel, and would be missing in a replay.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operation in it imports torch's compiler: a second

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[tuple[int, Any]] = []
        self.memory = ProgramMemory()
        self.read: dict[int, Tensor] = {}  # tensors outside the memory, by their addresses
        self.foreign: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _EMPTY and result.numel():
            return self.memory.take(result.nbytes).view(result.dtype).view(result.shape)
        if func not in _EMPTY and not _is_view(func) and self.foreign is None:
            self.foreign = str(func)
        return result

    def launch(self, kernel: int, arguments: tuple[Argument, ...]) -> None:
        """Record the kernel at this address."""
        self.launches.append((kernel, pack(arguments)))
        for one in arguments:
            if (
                isinstance(one, Tensor)
                and one.untyped_storage().data_ptr() not in self.memory.blocks
            ):
                self.read[one.data_ptr()] = one

    def __enter__(self) -> "Recording":
        here.recording = self
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        here.recording = None

    def program(self, inputs: Tensors, outputs: Tensors) -> "Program | None":
        """The program of the recorded kernels; None if there were other operations."""
        if self.foreign is not None or not self.launches:
            return None
        return Program(self, inputs, outputs)


def _is_view(operation: Any) -> bool:
    found = operation._schema.returns
    alias = found[0].alias_info if len(found) == 1 else None
    return alias is not None and not alias.is_write


class Program:
    """Runs recorded kernels in one parallel region, with other inputs and new outputs."""

    def __init__(self, recording: Recording, inputs: Tensors, outputs: Tensors) -> None:
        self._threads, self._region = torch.get_num_threads(), Region(recording.launches)
        self._memory, self._read = recording.memory, recording.read
        self._inputs, self._outputs = inputs, outputs

    def __call__(self, inputs: Tensors) -> Tensors:
        """The outputs for these inputs."""
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given)
        self._region.run(self._threads)
        return tuple(output.clone() for output in self._outputs)
