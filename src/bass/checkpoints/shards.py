"""The tensors of a folder's safetensors files: what the headers say, and values on a device."""

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import UInt8
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bass.checkpoints.folder import SINGLE, refuse_pointer, some, stored_dtype, weight_files
from bass.errors import CheckpointError

FLOATS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
# of the tensors of quantized checkpoints
CODES = {
    "I8": torch.int8,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
}
KINDS = FLOATS | CODES
STAGED_BYTES = 32 << 20  # of each of the two buffers for copies to a GPU


@dataclass(frozen=True)
class Stored:
    """A tensor of a file: its name there, its type (as the file names it) and its shape."""

    path: Path
    name: str
    kind: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The bytes of a tensor of one of `KINDS`."""
        return math.prod(self.shape) * KINDS[self.kind].itemsize if self.kind in KINDS else 0


@dataclass(frozen=True)
class StoredQuantized(Stored):
    """A quantized matrix: its tensors by role, and the `Layout` that makes a matrix of their
    values. `kind` is the type that it is computed in; its bytes are those of all parts.
    """

    parts: dict[str, Stored] = field(default_factory=dict)
    layout: Any = None

    @property
    def nbytes(self) -> int:
        """The bytes of all parts."""
        return sum(part.nbytes for part in self.parts.values())


@dataclass(frozen=True)
class TensorFiles:
    """The tensors of a checkpoint by name, from the headers of its files.

    unread: the number of those that belong to other parts of a multimodal model. method: by which
    they are quantized.
    """

    folder: Path
    paths: tuple[Path, ...]
    stored: dict[str, Stored]
    unread: int = 0
    method: str = ""

    @classmethod
    def read(cls, folder: Path) -> "TensorFiles":
        """Read the headers. The index decides which file has a tensor: other copies are ignored.

        Raises `CheckpointError` for a missing or damaged file.
        """
        files = weight_files(folder)
        stored: dict[str, Stored] = {}
        for path, indexed in files.items():
            held = read_header(path)
            stored |= {name: held[name] for name in indexed or held if name in held}
        return cls(folder, tuple(files), stored)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.paths)


def mismatches(
    stored: Mapping[str, Stored],
    wanted: Mapping[str, tuple[int, ...]],
    unexpected: Iterable[str],
) -> str:
    """How stored tensors differ from the wanted shapes, in words; empty if they agree."""
    findings = {
        "missing": [name for name in wanted if name not in stored],
        "unexpected": [*unexpected],
        "wrongly shaped": [
            f"{name} {[*stored[name].shape]} instead of {[*shape]}"
            for name, shape in wanted.items()
            if name in stored and stored[name].shape != shape
        ],
    }
    says = [f"{len(n)} {kind} ({some(sorted(n))})" for kind, n in findings.items() if n]
    return ", ".join(says)


def dtypes_of(tensors: Iterable[Stored], raw: Mapping[str, Any]) -> list[torch.dtype]:
    """The types of weights, most bytes first; without any, that of the parsed config.json."""
    bytes_of = Counter[torch.dtype]()
    for tensor in tensors:
        if tensor.kind in FLOATS:
            bytes_of[FLOATS[tensor.kind]] += tensor.nbytes
    return [dtype for dtype, _ in bytes_of.most_common()] or [stored_dtype(raw) or torch.bfloat16]


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a file of safetensors with the usual permissions; the library's are its owner's."""
    save_file(tensors, path, metadata={"format": "pt"})
    os.umask(mask := os.umask(0))
    path.chmod(0o666 & ~mask)


def write_folder(
    folder: Path, tensors: Mapping[str, Tensor], raw: Mapping[str, Any], dtype: torch.dtype
) -> None:
    """Write `model.safetensors` in this type, and `raw` with the type as `config.json`."""
    cast = {
        name: tensor.to("cpu", dtype if tensor.is_floating_point() else None).contiguous().clone()
        for name, tensor in tensors.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    kind = str(dtype).removeprefix("torch.")
    text = json.dumps({**raw, "dtype": kind, "torch_dtype": kind}, indent=2)
    save_tensors(cast, folder / SINGLE)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def read_header(path: Path) -> dict[str, Stored]:
    """The tensors of a safetensors file by name, without their values."""
    try:
        with safe_open(path, "pt") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                name: Stored(path, name, part.get_dtype(), tuple(part.get_shape()))
                for name, part in parts.items()
            }
    except (SafetensorError, OSError) as error:
        refuse_pointer(path)
        raise CheckpointError(f"`{path}` cannot be read ({error}): download it again.") from error


@final
@dataclass
class TensorReader:
    """Reads tensors on a device, one after the other, and reports their bytes to `advance`.

    On a CPU they are the mapped file itself, and must not be written to.
    """

    files: TensorFiles
    device: torch.device
    advance: Callable[[int], object] = lambda count: None
    _open: dict[Path, Any] = field(default_factory=dict)
    _staging: "Staging | None" = None

    def __getitem__(self, name: str) -> Tensor:
        """The tensor; of a quantized matrix, its values in float32."""
        tensor = self.files.stored[name]
        if isinstance(tensor, StoredQuantized):
            return self.quantized(tensor).dense().reshape(tensor.shape)
        return self._read(tensor)

    def quantized(self, tensor: StoredQuantized) -> Any:
        """A quantized matrix as a `QuantizedWeight`, or a stack of them."""
        parts = {role: self._read(part) for role, part in tensor.parts.items()}
        return tensor.layout.weight(parts, tensor.shape, self.files.folder)

    def _read(self, tensor: Stored) -> Tensor:
        dtype = KINDS[tensor.kind]
        if self.device.type == "meta":
            return torch.empty(tensor.shape, dtype=dtype, device=self.device)
        if tensor.path not in self._open:
            self._open[tensor.path] = safe_open(tensor.path, "pt").__enter__()
        value = self._open[tensor.path].get_tensor(tensor.name)
        self.advance(value.nbytes)
        if self.device.type != "cuda" or value.numel() == 0:
            return value.to(self.device)
        self._staging = self._staging or Staging(self.device)
        raw = self._staging.copied(value.reshape(-1).view(torch.uint8))
        return raw.view(dtype).view(tensor.shape)


@final
class Staging:
    """Two pinned buffers: while a GPU copies one, the other is filled (pageable copies wait)."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.buffers = [
            torch.empty(STAGED_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)
        ]
        self.taken = [torch.cuda.Event() for _ in range(2)]
        self.next = 0

    def copied(self, raw: UInt8[Tensor, " bytes"]) -> UInt8[Tensor, " bytes"]:
        """The bytes on the device."""
        out = torch.empty(len(raw), dtype=torch.uint8, device=self.device)
        with torch.cuda.device(self.device):
            for part, source in zip(out.split(STAGED_BYTES), raw.split(STAGED_BYTES), strict=True):
                buffer, taken = self.buffers[self.next][: len(source)], self.taken[self.next]
                taken.synchronize()  # sync: the buffer is still being copied
                buffer.copy_(source)
                part.copy_(buffer, non_blocking=True)
                taken.record()
                self.next = 1 - self.next
        return out
