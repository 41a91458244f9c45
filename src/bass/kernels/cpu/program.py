"""A sequence of kernels that is recorded once, and then runs in one parallel region.

    every thread:   kernel 0 | barrier | kernel 1 | barrier | ...

    with Recording() as recording:
        outputs = compute(*inputs)          # kernels, views, and empty tensors
    program = recording.program(inputs, outputs)
    outputs = program(inputs)               # other inputs of the same shapes

As a CUDA graph does, a program holds addresses: of weights and caches, and of a memory of its own,
of which its inputs, its outputs and the tensors between its kernels take blocks as they did in the
recording.
"""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bass.kernels.cpu import runtime

_aten = torch.ops.aten
_EMPTY = (_aten.empty.memory_format, _aten.empty_like.default, _aten.new_empty.default)
Tensors = tuple[Tensor, ...]


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
            block = runtime.empty(size, dtype=torch.uint8)
            self.blocks[block.data_ptr()] = block
        owner = block.numpy()[:size]  # lives as long as the storage that is made of it
        weakref.finalize(owner, self._free.append, block)
        return torch.from_numpy(owner)


class Recording(TorchDispatchMode):
    """Records the kernels that run meanwhile.

    foreign: the first operation that is no kernel, and would be missing in a replay.
    """

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

    def launch(self, kernel: int, arguments: tuple[runtime.Argument, ...]) -> None:
        """Record the kernel at this address."""
        self.launches.append((kernel, runtime.pack(arguments)))
        for one in arguments:
            if (
                isinstance(one, Tensor)
                and one.untyped_storage().data_ptr() not in self.memory.blocks
            ):
                self.read[one.data_ptr()] = one

    def __enter__(self) -> "Recording":
        runtime.here.recording = self
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        runtime.here.recording = None

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
        self._threads, self._region = torch.get_num_threads(), runtime.Region(recording.launches)
        self._memory, self._read = recording.memory, recording.read
        self._inputs, self._outputs = inputs, outputs

    @property
    def stale(self) -> bool:
        """Whether a weight has other memory than at the recording."""
        return any(tensor.data_ptr() != address for address, tensor in self._read.items())

    def __call__(self, inputs: Tensors) -> Tensors:
        """The outputs for these inputs."""
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given)
        self._region.run(self._threads)
        return tuple(output.clone() for output in self._outputs)
