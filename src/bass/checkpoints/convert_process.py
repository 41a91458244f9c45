"""A process that writes the tensors of pickle files as safetensors, within limits of time and
memory and without network. `bass.checkpoints.convert` runs it, and nothing imports it.

torch's weights-only reader builds tensors and plain containers, and refuses everything else a
pickle can do. Should it ever fail to, this process can open no socket and start no program, and it
holds no more than the data. Standard input: {"path", "files": [[pickle, safetensors], ...],
"memory", "seconds"} as JSON. Standard output, line by line: {"written": bytes}, at last {"names":
[names of each file], "rounded": tensors of float64 that became float32}, or the "file" with
{"refused": reason}, {"damaged": true} or {"unwritten": errno}. It imports nothing of bass.
"""

import ctypes
import json
import os
import pickle
import platform
import re
import resource
import struct
import sys
import zipfile
from collections.abc import Mapping
from typing import Any

KINDS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64",
    "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
INNER = ("state_dict", "model", "module", "model_state_dict")  # keys of the weights in a checkpoint
PIECE, PIECE_READ = 1 << 26, 1 << 20  # bytes of one write, and of one read
MOST_TIMES, MOST_MORE = 4, 1 << 26  # views of one storage may write so much more than they read
# of x86-64 and of 64-bit ARM: the marks of the architecture, and socket, connect, sendto, execve,
# execveat, ptrace, process_vm_readv, process_vm_writev, io_uring_setup
_DENIED = {
    "x86_64": (0xC000003E, (41, 42, 44, 59, 322, 101, 310, 311, 425)),
    "aarch64": (0xC00000B7, (198, 203, 206, 221, 281, 117, 270, 271, 425)),
}


class Refused(Exception):
    """The reason why a file is not converted."""


class Damaged(Exception):
    """A file is not as torch wrote it."""


def confine(memory: int, seconds: int) -> None:
    """Limit this process: `memory` bytes more than now, `seconds` of processor time, no sockets."""
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    for kind, value in (
        (resource.RLIMIT_AS, now + memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _DENIED:
        raise Refused(f"there is no filter of system calls for {sys.platform} on {machine}")
    mark, denied = _DENIED[machine]
    lines = [(0x20, 0, 0, 4), (0x15, 1, 0, mark), (0x06, 0, 0, 0x80000000), (0x20, 0, 0, 0)]
    if machine == "x86_64":  # the x32 calls have other numbers
        lines += [(0x35, 0, 1, 0x40000000), (0x06, 0, 0, 0x80000000)]
    for number in denied:
        lines += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050001)]  # EPERM
    program = b"".join(struct.pack("=HBBI", *line) for line in [*lines, (0x06, 0, 0, 0x7FFF0000)])
    buffer = ctypes.create_string_buffer(program, len(program))
    pointer = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, pointer, 0, 0) != 0:
        raise Refused(f"system calls cannot be filtered ({os.strerror(ctypes.get_errno())})")


def tensors_of(path: str) -> dict[str, Any]:
    """The tensors of a pickle file by name."""
    import torch

    with open(path, "rb") as file:
        start = file.read(4)
    zipped = start == b"PK\x03\x04"
    mapped = zipped and _checked_records(path)
    try:
        value = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # a damaged or hostile file may raise anything
        raise _unread(error, zipped or start[:1] == b"\x80") from error
    while isinstance(value, Mapping) and not any(map(torch.is_tensor, value.values())):
        inner = [value[name] for name in INNER if isinstance(value.get(name), Mapping)]
        if not inner:
            break
        value = inner[0]
    if not isinstance(value, Mapping) or not value:
        raise Refused("it holds no mapping of names to tensors")
    for name, tensor in value.items():
        if not isinstance(name, str) or not torch.is_tensor(tensor):
            raise Refused(f"`{str(name)[:100]}` in it is no tensor with a name")
        if tensor.layout != torch.strided:
            layout = str(tensor.layout).removeprefix("torch.")
            raise Refused(f"`{name[:100]}` is of the layout {layout}, and only dense ones are read")
        if tensor.is_meta:
            raise Refused(f"`{name[:100]}` is on the device meta, without values")
        if tensor.is_quantized or _kind(tensor) is None:
            raise Refused(f"`{name[:100]}` is of the unsupported type {tensor.dtype}")
    total = sum(tensor.numel() * tensor.element_size() for tensor in value.values())
    size = os.path.getsize(path)
    if total > MOST_TIMES * size + MOST_MORE:
        raise Refused(f"its tensors take {total:,} bytes, and the file has {size:,}")
    return dict(value)


def _checked_records(path: str) -> bool:
    """Compare the records of a zip file with their checksums, which torch's reader does not do.

    A checksum of zero is none: torch writes zeros after `set_crc32_options(False)` and in
    `skip_data`. Returns whether no record is compressed, so that the file can be mapped.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
            for record in records:
                if record.CRC:
                    with archive.open(record) as data:
                        while data.read(PIECE_READ):  # raises where the checksum differs
                            pass
    except MemoryError:
        raise
    except Exception as error:  # a damaged or hostile file may raise anything
        raise Damaged from error
    return all(record.compress_type == zipfile.ZIP_STORED for record in records)


def _unread(error: Exception, pickled: bool) -> Exception:
    """What torch's reader found, without its advice to read the file with its code.

    pickled: the file begins as those of torch do.
    """
    said = str(error)
    if (named := re.search(r"\bGLOBAL (\S{1,100})", said)) is not None:
        return Refused(
            f"it contains `{named[1]}`, which is code or an object of a class, and only tensors "
            "and plain containers are read"
        )
    if "TorchScript" in said:
        return Refused("it is a TorchScript archive, which is a program")
    if isinstance(error, MemoryError) or "memory" in said:
        return Refused("it takes more memory than a file of its size needs")
    if pickled and isinstance(error, pickle.UnpicklingError):
        return Refused("its pickle has instructions that tensors and plain containers do not need")
    return Damaged()


def round_doubles(tensors: dict[str, Any]) -> int:
    """Round tensors of float64 to float32, the widest type that `bass` reads. Returns how many."""
    import torch

    doubles = {name: t for name, t in tensors.items() if t.dtype == torch.float64}
    for name, tensor in doubles.items():
        tensors[name] = tensor.to(torch.float32)
        if (tensors[name].isinf() & tensor.isfinite()).any():
            raise Refused(f"`{name[:100]}` has values of float64 that float32 cannot hold")
    return len(doubles)


def write(path: str, tensors: Mapping[str, Any]) -> None:
    """Write a safetensors file. Tensors that share memory are written once for each name."""
    import torch

    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    for name in order:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        shape = list(tensor.shape)
        header[name] = {"dtype": _kind(tensor), "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            flat = tensors[name].detach().contiguous().reshape(-1)
            raw = memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else b""
            for start in range(0, len(raw), PIECE):
                piece = raw[start : start + PIECE]
                file.write(piece)
                print(json.dumps({"written": len(piece)}), flush=True)
        file.flush()
        os.fsync(file.fileno())


def _kind(tensor: Any) -> str | None:
    return KINDS.get(str(tensor.dtype).removeprefix("torch."))


def _found(error: Exception) -> dict[str, Any]:
    """An error as the last line of the standard output."""
    if isinstance(error, Damaged):
        return {"damaged": True}
    if isinstance(error, OSError):
        return {"unwritten": error.errno}
    return {"refused": " ".join((str(error) or type(error).__name__).split())[:300]}


def main() -> None:
    """Serve one request."""
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # ends with its parent
    requested = json.load(sys.stdin)
    sys.path += requested["path"]
    import torch

    torch.set_num_threads(1)
    names: list[list[str]] = []
    path, rounded = "", 0
    try:
        confine(requested["memory"], requested["seconds"])
        for path, to in requested["files"]:
            tensors = tensors_of(path)
            rounded += round_doubles(tensors)
            write(to, tensors)
            names.append([*tensors])
            del tensors
    except Exception as error:  # a damaged or hostile file may raise anything
        found = {"file": os.path.basename(path), **_found(error)}
        print(json.dumps(found), flush=True)
        return
    print(json.dumps({"names": names, "rounded": rounded}), flush=True)


if __name__ == "__main__":
    main()
