"""A sequence of kernels that is recorded once, and then runs in one parallel region.

    every thread:   kernel 0 | barrier | kernel 1 | barrier | ...

    with Recording() as recording:
        outputs = compute(*inputs)          # kernels, views, and empty tensors
    program = recording.program(inputs, outputs)
    outputs = program(inputs)               # other inputs of the same shapes

As a CUDA graph does, a program holds addresses: of weights and caches, which it keeps alive, and of
buffers between its kernels, which share one block of memory. Inputs and outputs are those of each
call.
"""

import ctypes
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bass.kernels.cpu import runtime

ALIGNMENT = 64  # bytes of a buffer
_aten = torch.ops.aten
_EMPTY = (_aten.empty.memory_format, _aten.empty_like.default, _aten.new_empty.default)
Tensors = tuple[Tensor, ...]


@dataclass
class Buffer:
    """A block of memory that kernels of a recording use.

    places: of its address, as a launch, an argument, and an offset in bytes.
    """

    size: int
    places: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def life(self) -> tuple[int, int]:
        """The first and the last launch that use it."""
        return self.places[0][0], self.places[-1][0]


class Recording(TorchDispatchMode):
    """Records the kernels that run meanwhile.

    foreign: the first operation that is no kernel, and would be missing in a replay.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[tuple[int, tuple[Any, ...]]] = []
        self.made: list[Tensor] = []
        self.foreign: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _EMPTY:
            self.made.append(result)
        elif not _is_view(func) and self.foreign is None:
            self.foreign = str(func)
        return result

    def __enter__(self) -> "Recording":
        runtime.recordings.launches.append(self.launches)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        runtime.recordings.launches.pop()

    def program(self, inputs: Tensors, outputs: Tensors) -> "Program | None":
        """The program of the recorded kernels; None for other operations, or for outputs that no
        kernel made.
        """
        made = {_block(tensor): tensor for tensor in self.made}
        whole = all(
            _block(one) in made and one.is_contiguous() and _bytes(one) == _bytes(made[_block(one)])
            for one in outputs
        )
        if self.foreign is not None or not self.launches or not whole:
            return None
        return Program(self.launches, self.made, inputs, outputs)


def _is_view(operation: Any) -> bool:
    found = operation._schema.returns
    alias = found[0].alias_info if len(found) == 1 else None
    return alias is not None and not alias.is_write


def _block(tensor: Tensor) -> int:
    """The address of a tensor's storage."""
    return tensor.untyped_storage().data_ptr()


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.itemsize


class Program:
    """Runs recorded kernels in one parallel region, with other inputs and new outputs."""

    def __init__(
        self,
        launches: list[tuple[int, tuple[Any, ...]]],
        made: list[Tensor],
        inputs: Tensors,
        outputs: Tensors,
    ) -> None:
        self._threads = torch.get_num_threads()
        self._arguments: list[Any] = []
        # weights and caches, with their addresses, and their storages, which must outlive these
        self._kept: dict[int, tuple[Tensor, Any]] = {}
        buffers = {_block(t): Buffer(t.untyped_storage().nbytes()) for t in (*made, *inputs)}
        for launch, (_, given) in enumerate(launches):
            for i, value in enumerate(given):
                if isinstance(value, Tensor):
                    buffer = buffers.get(_block(value))
                    if buffer is None:
                        self._kept[value.data_ptr()] = value, value.untyped_storage()
                    else:
                        buffer.places.append((launch, i, value.data_ptr() - _block(value)))
            addresses = map(runtime.as_integer, given)
            self._arguments.append((ctypes.c_int64 * (len(given) + 1))(*addresses, 1))
        pairs = [
            number
            for (kernel, given), packed in zip(launches, self._arguments, strict=True)
            for number in (kernel, ctypes.addressof(packed), len(given))
        ]
        self._pairs = (ctypes.c_int64 * len(pairs))(*pairs)
        self._region = (ctypes.c_int64 * 2)(ctypes.addressof(self._pairs), len(launches))
        self._inputs = [buffers.pop(_block(one)).places for one in inputs]
        blocks = [_block(one) for one in outputs]
        self._index = [blocks.index(block) for block in blocks]  # outputs may share their memory
        self._shapes = [(one.shape, one.dtype) for one in outputs]
        own = {block: buffers.pop(block).places for block in dict.fromkeys(blocks)}
        self._outputs = [own.pop(block, []) for block in blocks]
        used = [buffer for buffer in buffers.values() if buffer.places]
        self._memory = runtime.empty(_placed(used), dtype=torch.uint8)
        for buffer, offset in zip(used, _offsets(used), strict=True):
            self._write(buffer.places, self._memory.data_ptr() + offset)

    @property
    def stale(self) -> bool:
        """Whether a weight has other memory than at the recording."""
        return any(kept.data_ptr() != address for address, (kept, _) in self._kept.items())

    def __call__(self, inputs: Tensors) -> Tensors:
        """The outputs for these inputs, which are contiguous."""
        made = [runtime.empty(*shape, dtype=dtype) for shape, dtype in self._shapes]
        outputs = tuple(made[i] for i in self._index)
        for places, tensor in zip((*self._inputs, *self._outputs), (*inputs, *made), strict=True):
            self._write(places, tensor.data_ptr())
        runtime.in_parallel(self._region, self._threads)
        return outputs

    def _write(self, places: list[tuple[int, int, int]], address: int) -> None:
        for launch, argument, offset in places:
            self._arguments[launch][argument] = address + offset


def _offsets(buffers: list[Buffer]) -> list[int]:
    """Where each buffer lies in one block of memory: buffers that are in use at the same time do
    not overlap.
    """
    offsets: list[int] = []
    for buffer in buffers:
        first, last = buffer.life
        at = 0
        others = sorted(
            (offset, offset + other.size)
            for offset, other in zip(offsets, buffers, strict=False)
            if other.life[0] <= last and first <= other.life[1]
        )
        for start, end in others:
            if at + buffer.size > start:
                at = max(at, math.ceil(end / ALIGNMENT) * ALIGNMENT)
        offsets.append(at)
    return offsets


def _placed(buffers: list[Buffer]) -> int:
    """The bytes of all buffers together."""
    ends = (o + b.size for o, b in zip(_offsets(buffers), buffers, strict=True))
    return max(ends, default=0)
