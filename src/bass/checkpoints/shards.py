"""The tensors of a folder's safetensors files: validated headers, and data mapped into memory."""

import math
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard, final

import torch
from jaxtyping import UInt8
from torch import Tensor

from bass.checkpoints.folder import (
    CONSOLIDATED,
    MOST_TENSORS,
    original_release,
    refuse_pointer,
    some,
    weight_files,
)
from bass.errors import CheckpointError
from bass.files import open_regular, size_in_words
from bass.plain_json import parse_json

FLOATS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
# of the tensors of quantized checkpoints
CODES = {
    "I8": torch.int8,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
}
KINDS = FLOATS | CODES
LARGEST_HEADERS = 32 << 20  # bytes of all headers; 100,000 tensors take half of it
MOST_AXES = 64
_ORIGINAL = ("tok_embeddings.", ".attention.wq.")  # parts of names of original releases
STAGED_BYTES = 32 << 20  # of each of the two buffers for copies to a GPU


@dataclass(frozen=True)
class Stored:
    """The location of a tensor: its file, type (as the file names it), shape and bytes."""

    path: Path
    kind: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def is_counter(self) -> bool:
        """Whether it is a buffer of integers that no decoder reads; packed weights have two axes
        or more.
        """
        return self.kind in ("I64", "I32", "BOOL") and len(self.shape) <= 1


@dataclass(frozen=True)
class StoredQuantized(Stored):
    """A quantized matrix: `parts` are its tensors by role, `weight` makes a `QuantizedWeight` of
    their values, `check` looks at their bytes before. `kind` is the type that it is computed in;
    its bytes are those of all parts. words: its codes and scales, for people.
    """

    parts: dict[str, Stored]
    weight: Callable[[dict[str, Tensor]], Any]
    check: Callable[[dict[str, Tensor]], None]
    words: str


@dataclass(frozen=True)
class TensorFiles:
    """The tensors of a checkpoint by name, from the headers of its files.

    unread: the number of those that belong to other parts of a multimodal model.
    """

    folder: Path
    paths: tuple[Path, ...]
    stored: dict[str, Stored]
    unread: int = 0

    @classmethod
    def read(cls, folder: Path) -> "TensorFiles":
        """Read the headers; a `CheckpointError` names the file that is missing or damaged."""
        places = weight_files(folder)
        stored: dict[str, Stored] = {}
        budget = LARGEST_HEADERS
        for path in places:
            held, length = read_header(path, budget)
            budget -= length
            if path.name == CONSOLIDATED and any(
                part in name for name in held for part in _ORIGINAL
            ):
                raise original_release(folder, [CONSOLIDATED])
            for name, tensor in held.items():
                if name in stored:
                    raise CheckpointError(
                        f"`{path}` and `{stored[name].path.name}` both hold `{some([name])}`: "
                        "download the checkpoint again."
                    )
                stored[name] = tensor
            _check_count(path, len(stored))
        lost = sorted(
            name
            for path, names in places.items()
            for name in names
            if name not in stored or stored[name].path != path
        )
        if lost:
            raise CheckpointError(
                f"`{folder}` has an index that names {some(lost)} in files without them: download "
                "the checkpoint again."
            )
        return cls(folder, tuple(places), stored)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.paths)


def read_header(path: Path, limit: int = LARGEST_HEADERS) -> tuple[dict[str, Stored], int]:
    """The content of a safetensors file by its header, and the bytes of the header, at most
    `limit`.

    The tensors must cover the data without gap or overlap, so a truncated file is an error.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, limit):
                raise ValueError(
                    "its header is cut off, or those of all files take more than "
                    f"{size_in_words(LARGEST_HEADERS)}"
                )
            header = parse_json(file.read(length))
        if not isinstance(header, dict):
            raise ValueError("its header is not an object")
        header.pop("__metadata__", None)
        _check_count(path, len(header))
        found = {name: _stored(path, name, value, 8 + length) for name, value in header.items()}
        end = 8 + length
        for name, tensor in sorted(found.items(), key=lambda item: (item[1].start, item[1].stop)):
            if tensor.start != end:
                raise ValueError(f"`{some([name])}` does not begin where the tensor before it ends")
            end = tensor.stop
        if end != size:
            raise ValueError(f"it has {size} bytes and should have {end}")
    except (OSError, ValueError) as error:
        refuse_pointer(path)
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(
            f"`{path}` is damaged or truncated ({reason}): download it again."
        ) from error
    return found, length


def _check_count(path: Path, tensors: int) -> None:
    if tensors > MOST_TENSORS:
        raise CheckpointError(
            f"`{path}`, with the files before it, holds {tensors:,} tensors, and the limit is "
            f"{MOST_TENSORS:,}: use another checkpoint."
        )


def _stored(path: Path, name: str, value: Any, base: int) -> Stored:
    fields = value if isinstance(value, dict) else {}
    kind, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if (
        not isinstance(kind, str)
        or not _sizes(shape)
        or len(shape) > MOST_AXES
        or not _sizes(offsets)
        or len(offsets) != 2
    ):
        raise ValueError(f"its header is invalid for `{some([name])}`")
    start, stop = offsets
    if stop < start or (kind in KINDS and stop - start != math.prod(shape) * KINDS[kind].itemsize):
        raise ValueError(f"`{some([name])}` has {stop - start} bytes, which is not {kind} {shape}")
    return Stored(path, kind, tuple(shape), base + start, base + stop)


def _sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item < 2**62 for item in value
    )


@final
@dataclass
class TensorReader:
    """Reads tensors on a device, one after the other.

    On a CPU they are the mapped file itself, and must not be written to.
    """

    files: TensorFiles
    device: torch.device
    _maps: dict[Path, mmap.mmap] = field(default_factory=dict)
    _staging: "Staging | None" = None

    def __getitem__(self, name: str) -> Tensor:
        """The tensor; of a quantized matrix, its values in float32."""
        tensor = self.files.stored[name]
        if isinstance(tensor, StoredQuantized):
            return self.quantized(tensor).dense()
        return self._read(tensor)

    def quantized(self, tensor: StoredQuantized) -> Any:
        """A quantized matrix as a `QuantizedWeight`."""
        if self.device.type != "meta":
            tensor.check({role: self._mapped(part) for role, part in tensor.parts.items()})
        return tensor.weight({role: self._read(part) for role, part in tensor.parts.items()})

    def _read(self, tensor: Stored) -> Tensor:
        dtype, size = KINDS[tensor.kind], tensor.stop - tensor.start
        if size == 0 or self.device.type == "meta":
            return torch.empty(tensor.shape, dtype=dtype, device=self.device)
        raw = self._mapped(tensor)
        if self.device.type == "cuda":
            self._staging = self._staging or Staging(self.device)
            raw = self._staging.copied(raw)
        elif tensor.start % dtype.itemsize:
            raw = raw.clone()  # the format does not guarantee alignment
        return raw.view(dtype).view(tensor.shape)

    def _mapped(self, tensor: Stored) -> UInt8[Tensor, " bytes"]:
        """Its bytes in host memory, which are read when they are used."""
        if tensor.start == tensor.stop:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(
            self._map(tensor.path), dtype=torch.uint8, count=tensor.stop - tensor.start,
            offset=tensor.start,
        )  # fmt: skip

    def release(self, name: str) -> None:
        """Release the memory of the tensor's part of the mapped file; a later access reads the file
        again.
        """
        tensor = self.files.stored[name]
        for part in tensor.parts.values() if isinstance(tensor, StoredQuantized) else (tensor,):
            self._release(part)

    def _release(self, tensor: Stored) -> None:
        start, stop = (
            -(-tensor.start // mmap.PAGESIZE) * mmap.PAGESIZE,
            tensor.stop // mmap.PAGESIZE * mmap.PAGESIZE,
        )
        if start < stop:
            self._map(tensor.path).madvise(mmap.MADV_DONTNEED, start, stop - start)

    def _map(self, path: Path) -> mmap.mmap:
        """The mapped file. It is never closed explicitly: a tensor may still refer to it."""
        if path not in self._maps:
            try:
                with open_regular(path) as file:
                    self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            except (OSError, ValueError) as error:
                raise CheckpointError(
                    f"`{path}` cannot be read ({error}): download it again."
                ) from error
        return self._maps[path]


@final
class Staging:
    """Two pinned buffers: while a GPU copies one, the other is filled.

    Copies from pageable memory would wait for each other.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.buffers = [
            torch.empty(STAGED_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)
        ]
        self.taken = [torch.cuda.Event() for _ in range(2)]
        self.turn = 0

    def copied(self, raw: UInt8[Tensor, " bytes"]) -> UInt8[Tensor, " bytes"]:
        """The bytes on the device."""
        out = torch.empty(len(raw), dtype=torch.uint8, device=self.device)
        with torch.cuda.device(self.device):
            for ours, theirs in zip(out.split(STAGED_BYTES), raw.split(STAGED_BYTES), strict=True):
                buffer, taken = self.buffers[self.turn][: len(theirs)], self.taken[self.turn]
                taken.synchronize()  # sync: the buffer is still being copied
                buffer.copy_(theirs)
                ours.copy_(buffer, non_blocking=True)
                taken.record()
                self.turn = 1 - self.turn
        return out
