"""Writes the weights of a folder of pickle files as safetensors, in a process of its own."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from bass.checkpoints import convert_process
from bass.checkpoints.folder import (
    ADAPTER,
    INDEX,
    ORIGINAL,
    SINGLE,
    file_names,
    pickled_weights,
    read_json,
    refuse_pointer,
    some,
)
from bass.checkpoints.progress import progress
from bass.checkpoints.shards import read_header
from bass.errors import CheckpointError
from bass.files import open_regular, size_in_words, write_atomically
from bass.processes import command, environment

PICKLED_INDEX, PICKLED_ADAPTER = "pytorch_model.bin.index.json", "adapter_model.bin"
_SHARD = re.compile(r"pytorch_model-(?P<number>\d{5})-of-(?P<count>\d{5})\.bin")
_COPIED = (".json", ".model", ".txt", ".jinja", ".tiktoken", ".md", "LICENSE")
# what the process may use, next to the size of the largest file and of all files
MEMORY, SECONDS, BYTES_PER_SECOND = 2 << 30, 120, 20_000_000
PART = ".part"


@final
@dataclass(frozen=True)
class Converted:
    """The files that a conversion wrote, with their tensors and bytes.

    rounded: tensors of float64, which became float32.
    """

    paths: tuple[Path, ...]
    tensors: int
    size: int
    rounded: int = 0


def convert(folder: Path, output: Path | None = None) -> Converted:
    """Write the weights of `folder` as safetensors, into `output` or next to the pickles.

    Files get their names once all of them are complete, and an index comes last: an interrupted
    conversion leaves nothing that could be read as a whole. `output` gets the other files, too.
    Raises `CheckpointError`.
    """
    if not folder.is_dir():
        raise CheckpointError(f"No folder at `{folder}`: give a folder with pickle files.")
    pickles = _pickles(folder)
    output = output or folder
    if output.exists() and not output.is_dir():
        raise CheckpointError(f"`{output}` is a file: give a folder with `--output`.")
    if held := [n for n in _names(output) if n.endswith(".safetensors")]:
        raise CheckpointError(
            f"`{output}` already has {some(held)}: give another folder with `--output`, or remove "
            "them."
        )
    for path in (folder / name for name in pickles):
        refuse_pointer(path)
        try:
            open_regular(path).close()
        except OSError as error:
            raise CheckpointError(
                f"`{path}` cannot be read ({error.strerror}): download it again."
            ) from error
    try:
        with _made(output):
            return _converted(folder, pickles, output)
    except OSError as error:
        raise _unwritable(output, error.errno) from error


def _converted(folder: Path, pickles: list[str], output: Path) -> Converted:
    """Write all files into a folder that exists."""
    size = sum((folder / name).stat().st_size for name in pickles)
    if (free := shutil.disk_usage(output).free) < size:
        raise CheckpointError(
            f"`{output}` has {size_in_words(free)} free, and the weights of `{folder}` take "
            f"{size_in_words(size)}: free disk space, or give another folder with `--output`."
        )
    places = {folder / name: output / _renamed(name) for name in pickles}
    others = {} if output.resolve() == folder.resolve() else _others(folder, output)
    with _parts([*places.values()]) as parts, _parts([*others.values()]) as copies:
        with progress(f"converting {folder.name}", size) as advance:
            names, rounded = _run(folder, [*zip(places, parts, strict=True)], size, advance)
        _check(folder, [*places.values()], names)
        total = sum(_verified(part) for part in parts)
        for path, part in zip(others, copies, strict=True):
            shutil.copyfile(path, part)
        for part, path in zip([*copies, *parts], [*others.values(), *places.values()], strict=True):
            part.replace(path)
        if len(places) > 1:
            files = {n: path.name for path, of in zip(places.values(), names, strict=True)
                     for n in of}  # fmt: skip
            content = {"metadata": {"total_size": total}, "weight_map": files}
            write_atomically(output / INDEX, json.dumps(content, indent=2) + "\n")
    return Converted(tuple(places.values()), sum(map(len, names)), total, rounded)


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """A folder that exists within it; after an error it is removed, unless it was there before."""
    absent = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with suppress(OSError):  # it is not empty, or never came to be
            for path in absent:
                path.rmdir()
        raise


def _unwritable(output: Path, number: int | None) -> CheckpointError:
    reason = os.strerror(number) if number else "unknown error"
    room = "free disk space, or " if number == errno.ENOSPC else ""
    return CheckpointError(
        f"`{output}` cannot be written to ({reason}): {room}give another folder with `--output`."
    )


def _names(folder: Path) -> list[str]:
    return file_names(folder) if folder.is_dir() else []


def _pickles(folder: Path) -> list[str]:
    """The names of the pickle files that hold the weights. Raises `CheckpointError`."""
    names = file_names(folder)
    if PICKLED_INDEX in names:
        places = read_json(folder / PICKLED_INDEX).get("weight_map")
        files = {*places.values()} if isinstance(places, dict) else set()
        if not files or not all(isinstance(f, str) and Path(f).name == f for f in files):
            raise CheckpointError(
                f"`{folder / PICKLED_INDEX}` has no weight_map of files next to it: download it "
                "again."
            )
        return _all_there(folder, sorted(files), names)
    if shards := [*filter(None, map(_SHARD.fullmatch, names))]:
        count = int(shards[0]["count"])
        wanted = [f"pytorch_model-{i + 1:05}-of-{count:05}.bin" for i in range(count)]
        return _all_there(folder, wanted, names)
    for name in ("pytorch_model.bin", PICKLED_ADAPTER):
        if name in names:
            return [name]
    found = pickled_weights(names)
    if len(found) == 1:
        return found
    if found:
        raise CheckpointError(
            f"`{folder}` has several pickle files ({some(found)}) and no pytorch_model.bin: move "
            "the one with the weights into a folder of its own."
        )
    if original := [name for name in names if name.startswith(ORIGINAL)]:
        raise CheckpointError(
            f"`{folder}` holds the files of an original release ({some(original)}), which have "
            "other names of weights: give the Hugging Face form of it."
        )
    raise CheckpointError(f"`{folder}` has no pickle files with weights: give one that has.")


def _all_there(folder: Path, wanted: list[str], names: list[str]) -> list[str]:
    if absent := sorted({*wanted} - {*names}):
        raise CheckpointError(
            f"`{folder}` lacks {len(absent)} of its {len(wanted)} pickle files ({some(absent)}): "
            "download the checkpoint again."
        )
    return wanted


def _renamed(name: str) -> str:
    """The name of the safetensors file for a pickle file."""
    if name == PICKLED_ADAPTER:
        return ADAPTER
    if (found := _SHARD.fullmatch(name)) is not None:
        return f"model-{found['number']}-of-{found['count']}.safetensors"
    return f"{Path(name).stem}.safetensors" if "-of-" in name else SINGLE


@contextmanager
def _parts(paths: list[Path]) -> Iterator[list[Path]]:
    """Names to write to, removed at the end where they still exist."""
    parts = [path.with_name(path.name + PART) for path in paths]
    for part in parts:
        part.unlink(missing_ok=True)  # left by a crash
    try:
        yield parts
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


def _run(
    folder: Path, files: list[tuple[Path, Path]], size: int, advance: Callable[[int], None]
) -> tuple[list[list[str]], int]:
    """Run the process. Returns the names of the tensors of each file, and how many it rounded."""
    largest = max(path.stat().st_size for path, _ in files)
    seconds = SECONDS + size // BYTES_PER_SECOND
    request = {
        "path": [path for path in sys.path if os.path.isabs(path)],
        "files": [[str(path.resolve()), str(part.absolute())] for path, part in files],
        "memory": MEMORY + 3 * largest,
        "seconds": seconds,
    }
    answer: dict[str, Any] = {}
    with subprocess.Popen(
        command(convert_process.__file__),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        env=environment("TMPDIR") | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    ) as process:
        # of waiting for a disk, which takes no processor time
        timer = threading.Timer(4 * seconds, process.kill)
        timer.daemon = True
        timer.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):  # it has been ended already
                process.stdin.write(json.dumps(request))
                process.stdin.close()
            for line in process.stdout:
                answer = json.loads(line)
                advance(answer.get("written", 0))
        finally:  # also when interrupted
            timer.cancel()
            process.kill()
    if "names" in answer:
        return answer["names"], answer["rounded"]
    raise _failed(
        folder / answer.get("file", ""),
        files[0][1].parent,
        {"refused": _ending(process.returncode, seconds)} | answer,
    )


def _failed(path: Path, output: Path, answer: dict[str, Any]) -> CheckpointError:
    """The error for the last answer of the process."""
    if "damaged" in answer:
        return CheckpointError(f"`{path}` is damaged or truncated: download it again.")
    if "unwritten" in answer:
        return _unwritable(output, answer["unwritten"])
    return CheckpointError(
        f"`{path}` cannot be converted ({answer['refused'].rstrip('.')}): convert it where you "
        "trust it, or choose a revision with safetensors files."
    )


def _ending(status: int, seconds: int) -> str:
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"it takes more than the memory of this machine or {seconds} seconds"
    return f"its process ended with {f'signal {-status}' if status < 0 else f'status {status}'}"


def _check(folder: Path, paths: list[Path], names: list[list[str]]) -> None:
    """Raise `CheckpointError` for a tensor in two files."""
    seen: dict[str, Path] = {}
    for path, of in zip(paths, names, strict=True):
        for name in of:
            if name in seen:
                raise CheckpointError(
                    f"`{folder}` has `{some([name])}` in two of its pickle files: download the "
                    "checkpoint again."
                )
            seen[name] = path


def _verified(part: Path) -> int:
    """The bytes of the data of a complete file. Raises `CheckpointError`."""
    return sum(tensor.stop - tensor.start for tensor in read_header(part)[0].values())


def _others(folder: Path, output: Path) -> dict[Path, Path]:
    """Config, tokenizer and descriptions of a folder, and the places of their copies."""
    return {
        folder / name: output / name
        for name in file_names(folder)
        if name.endswith(_COPIED) and name != PICKLED_INDEX and (folder / name).is_file()
    }
