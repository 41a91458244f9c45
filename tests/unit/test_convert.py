"""`bass convert`: pickles become safetensors in a process of its own, or nothing changes."""

import errno
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
import zipfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bass.checkpoints import convert as converting
from bass.checkpoints import convert_process
from bass.checkpoints.convert import convert
from bass.checkpoints.folder import INDEX, SINGLE
from bass.checkpoints.hub import _refuse, converted
from bass.errors import CheckpointError
from support.matrix import by_day, night
from unit.checkpoints import Said
from unit.test_bad_input import refuses
from unit.test_weights import parameters, same, tied

__all__ = ["tied"]  # a fixture
Command = Callable[..., Said]


def pickled(folder: Path, count: int = 1, index: bool = True, **save: Any) -> Path:
    """The folder with its weights in pickle files instead."""
    tensors = load_file(folder / SINGLE)
    (folder / SINGLE).unlink()
    if count == 1:
        torch.save(tensors, folder / "pytorch_model.bin", **save)
        return folder
    places = {}
    for i in range(count):
        file = f"pytorch_model-{i + 1:05}-of-{count:05}.bin"
        names = sorted(tensors)[i::count]
        places |= dict.fromkeys(names, file)
        torch.save({name: tensors[name] for name in names}, folder / file, **save)
    if index:
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("count", "index", "save"),
    [night(1, True, {}), (3, True, {}), night(2, False, {}),
     (1, True, {"_use_new_zipfile_serialization": False})],
)  # fmt: skip
def test_a_converted_folder_loads_as_before(
    bass_command: Command, tied: Path, count: int, index: bool, save: dict[str, Any]
) -> None:
    whole = parameters(tied)
    pickled(tied, count, index, **save)
    refuses(bass_command("info", str(tied)), f"`bass convert {tied}`")
    said = bass_command("convert", str(tied))
    assert said.status == 0, said
    assert f"{len(load_all(tied))} tensors" in said.out
    assert (tied / INDEX).exists() == (count > 1)
    assert same(parameters(tied), whole)
    refuses(bass_command("convert", str(tied)), "already has")


def load_all(folder: Path) -> dict[str, torch.Tensor]:
    return {k: v for path in folder.glob("*.safetensors") for k, v in load_file(path).items()}


def test_another_folder_gets_config_and_tokenizer(tied: Path, tmp_path: Path) -> None:
    whole = parameters(tied)
    (pickled(tied, 2) / "tokenizer.model").write_bytes(b"x")
    torch.save({"a": 1}, tied / "training_args.bin")
    before = left(tied)
    convert(tied, tmp_path / "new" / "folder")
    assert left(tied) == before
    assert left(tmp_path / "new" / "folder") == [
        "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
        INDEX, "tokenizer.model",
    ]  # fmt: skip
    assert same(parameters(tmp_path / "new" / "folder"), whole)


def test_every_type_view_and_shared_tensor_keeps_its_values(tied: Path) -> None:
    (tied / SINGLE).unlink()
    base = torch.randn(6, 4)
    tensors = {
        "base": base, "same": base, "row": base[2], "transposed": base.T, "none": torch.empty(0, 3),
        "scalar": torch.tensor(3), "flag": torch.tensor([True, False]),
        "parameter": torch.nn.Parameter(base[:, 1:3]),
    }  # fmt: skip
    kinds = ("float64", "float16", "bfloat16", "int32", "uint8", "float8_e4m3fn")
    tensors |= {kind: torch.ones(3).to(getattr(torch, kind)) for kind in kinds}
    torch.save({"epoch": 3, "state_dict": tensors}, tied / "model.pt")
    convert(tied)
    held = load_file(tied / SINGLE)
    assert held.keys() == tensors.keys()
    for name, tensor in tensors.items():
        expected = torch.float32 if name == "float64" else tensor.dtype
        assert (held[name].dtype, held[name].shape) == (expected, tensor.shape)
        assert torch.equal(held[name].double(), tensor.double())


def test_float64_is_rounded_to_what_is_read_and_reported(bass_command: Command, tied: Path) -> None:
    whole, tensors = parameters(tied), load_file(tied / SINGLE)
    (tied / SINGLE).unlink()
    doubles = {name: tensor.double() for name, tensor in tensors.items()}
    torch.save(doubles, tied / "pytorch_model.bin")
    said = bass_command("convert", str(tied))
    assert f". {len(tensors)} of float64 became float32. `bass info" in said.out
    assert same(parameters(tied), whole)


class Runs:
    """A pickle of this creates a file when it is loaded without restrictions."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def huge(tmp_path: Path) -> Any:
    return {"weight": torch.zeros(1).expand(1 << 40)}


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "code": (lambda path: {"weight": Runs(path / "ran")}, "(it contains `posix.mkdir`, which is"),
    "an object": (lambda path: {"args": Namespace(a=1)}, "(it contains `argparse.Namespace`, "),
    "a module": (lambda path: torch.nn.Linear(2, 2), "`torch.nn.modules.linear.Linear`"),
    "no mapping": (lambda path: [torch.ones(3)], "no mapping of names to tensors"),
    "nothing": (lambda path: {}, "no mapping of names to tensors"),
    "a number": (lambda path: {"a": torch.ones(3), "b": 4}, "`b` in it is no tensor"),
    "sparse": (
        lambda path: {"a": torch.eye(3).to_sparse()},
        "(`a` is of the layout sparse_coo, and only dense ones are read)",
    ),
    "meta": (
        lambda path: {"a": torch.ones(3, device="meta")},
        "(`a` is on the device meta, without values)",
    ),
    "a large number": (
        lambda path: {"a": torch.tensor([1e300], dtype=torch.float64)},
        "(`a` has values of float64 that float32 cannot hold)",
    ),
    "complex": (lambda path: {"a": torch.ones(3, dtype=torch.complex64)}, "complex64"),
    "views of a terabyte": (huge, "its tensors take 4,398,046,511,104 bytes"),
}


@pytest.mark.parametrize(
    "case", by_day(BAD, ("code", "meta", "a large number", "views of a terabyte"))
)
def test_what_is_not_plain_tensors_is_refused_and_leaves_nothing(
    bass_command: Command, tied: Path, tmp_path: Path, case: str
) -> None:
    content, words = BAD[case]
    (tied / SINGLE).unlink()
    torch.save(content(tmp_path), tied / "pytorch_model.bin")
    before = left(tied)
    said = bass_command("convert", str(tied))
    refuses(said, "pytorch_model.bin", "cannot be converted", words)
    assert "weights_only" not in said.err
    assert left(tied) == before
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("zipped", [True, night(False)])
@pytest.mark.parametrize("size", [0, 2, 100, 700, -1000, -300, -1])
def test_a_truncated_file_is_to_be_downloaded_again(
    tied: Path, tmp_path: Path, size: int, zipped: bool
) -> None:
    pickled(tied, _use_new_zipfile_serialization=zipped)
    path = tied / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError) as caught:
        convert(tied, tmp_path / "new" / "folder")
    assert str(caught.value) == f"`{path}` is damaged or truncated: download it again."
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("compressed", [False, True])
def test_a_changed_byte_is_found_by_the_checksum_of_its_record(
    tied: Path, compressed: bool
) -> None:
    path = pickled(tied) / "pytorch_model.bin"
    if compressed:
        zipped_again(path, zipfile.ZIP_DEFLATED)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)
    with pytest.raises(CheckpointError) as caught:
        convert(tied)
    assert str(caught.value) == f"`{path}` is damaged or truncated: download it again."


def zipped_again(path: Path, method: int) -> None:
    """Write the records of a zip file as another program may write them."""
    with zipfile.ZipFile(path) as held:
        records = {name: held.read(name) for name in held.namelist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in records.items():
            archive.writestr(name, data)


@pytest.mark.parametrize("written", ["without checksums", "compressed", "stored again"])
def test_files_of_other_writers_keep_their_values(tied: Path, written: str) -> None:
    whole = parameters(tied)
    torch.serialization.set_crc32_options(written != "without checksums")
    try:
        path = pickled(tied) / "pytorch_model.bin"
    finally:
        torch.serialization.set_crc32_options(True)
    if written != "without checksums":
        zipped_again(path, zipfile.ZIP_DEFLATED if written == "compressed" else zipfile.ZIP_STORED)
    convert(tied)
    assert same(parameters(tied), whole)


@pytest.mark.parametrize("content", [b"<!doctype html><html></html>", bytes(3000), b"{}"])
def test_a_file_that_torch_did_not_write_is_damaged(tied: Path, content: bytes) -> None:
    (pickled(tied) / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged or truncated: download it again"):
        convert(tied)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_other_pickles_and_programs_are_named(tied: Path) -> None:
    path = pickled(tied) / "pytorch_model.bin"
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(CheckpointError, match=r"instructions that tensors .* do not need"):
        convert(tied)
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(2)), path)
    with pytest.raises(CheckpointError, match="a TorchScript archive, which is a program"):
        convert(tied)


def test_an_output_that_cannot_be_written_to_is_named(
    tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pickled(tied)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "absent")
    for place, words in {
        tmp_path / "file": "is a file: give a folder with `--output`",
        tmp_path / "file" / "x": r"\(Not a directory\): give another folder with `--output`",
        tmp_path / "link": r"\(File exists\): give another folder",
        Path("/proc/absent"): r"cannot be written to \(No such file or directory\): give another",
    }.items():
        with pytest.raises(CheckpointError, match=words):
            convert(tied, place)
    monkeypatch.setattr(converting, "_run", full)
    with pytest.raises(CheckpointError, match=r"No space left on device\): free disk space, or"):
        convert(tied, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def full(*arguments: Any) -> Any:
    raise OSError(errno.ENOSPC, "full")


def test_damaged_and_missing_files_are_named(tied: Path) -> None:
    pickled(tied, 2)
    path = tied / "pytorch_model-00002-of-00002.bin"
    path.write_bytes(path.read_bytes()[:-300])
    before = left(tied)
    with pytest.raises(CheckpointError, match=f"{path.name}` is damaged or truncated"):
        convert(tied)
    assert left(tied) == before
    path.write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CheckpointError, match="git lfs pull"):
        convert(tied)
    path.unlink()
    with pytest.raises(CheckpointError, match=f"lacks 1 of its 2 pickle files .{path.name}"):
        convert(tied)
    with pytest.raises(CheckpointError, match="No folder"):
        convert(path)


def test_a_folder_without_one_set_of_weights_is_an_error(tied: Path) -> None:
    (tied / SINGLE).unlink()
    with pytest.raises(CheckpointError, match="no pickle files with weights"):
        convert(tied)
    (tied / "consolidated.00.pth").touch()
    with pytest.raises(CheckpointError, match="original release"):
        convert(tied)
    for name in ("first.pt", "second.pt"):
        torch.save({}, tied / name)
    with pytest.raises(CheckpointError, match=r"several pickle files \(first\.pt, second\.pt\)"):
        convert(tied)


@pytest.mark.parametrize("limit", ["MEMORY", "SECONDS"])
def test_limits_end_the_process(tied: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    tensors = {"weight": torch.zeros(1 << 24)}
    # this older format cannot be mapped
    torch.save(tensors, tied / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    (tied / SINGLE).unlink()
    size = (tied / "pytorch_model.bin").stat().st_size
    least = {"MEMORY": (1 << 20) - 3 * size, "SECONDS": -(size // converting.BYTES_PER_SECOND)}
    monkeypatch.setattr(converting, limit, least[limit])
    before = left(tied)
    with pytest.raises(CheckpointError, match="cannot be converted"):
        convert(tied)
    assert left(tied) == before


CONFINED = """
import os, socket, subprocess, sys
sys.path.insert(0, sys.argv[1])
import convert_process
convert_process.confine(1 << 30, 60)
for what in (socket.socket, lambda: os.execv("/bin/true", ["true"])):
    try:
        what()
        print("done")
    except OSError as error:
        print(error.errno)
"""


def test_the_process_opens_no_socket_and_starts_no_program() -> None:
    folder = str(Path(convert_process.__file__).parent)
    command = [sys.executable, "-c", CONFINED, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1"], done


def test_a_killed_conversion_is_never_taken_for_whole(tied: Path, tmp_path: Path) -> None:
    whole = parameters(tied)
    pickled(tied, 2)
    slow = tmp_path / "pytorch_model-00002-of-00002.bin"
    shutil.move(tied / slow.name, slow)
    more = torch.load(slow) | {"v_head.weight": torch.zeros(1 << 26)}
    torch.save(more, tied / slow.name)
    process = subprocess.Popen([sys.executable, "-m", "bass", "convert", str(tied)])
    while not list(tied.glob("*.part")):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait(timeout=60)
    assert not list(tied.glob("*.safetensors"))
    with pytest.raises(CheckpointError, match="bass convert"):
        parameters(tied)
    convert(tied)
    assert same(parameters(tied), whole)
    assert not list(tied.glob("*.part"))


@pytest.mark.parametrize(("author", "status", "offered"), [
    ("SFconvertbot", "open", True), ("SFconvertbot", "merged", False), ("someone", "open", False),
])  # fmt: skip
def test_a_revision_that_the_hub_converted_is_offered(
    author: str, status: str, offered: bool
) -> None:
    class Api:
        def get_repo_discussions(self, repository: str, **options: Any) -> Any:
            title = "Adding `safetensors` variant of this model"
            return [SimpleNamespace(num=7, author=author, status=status, title=title)]

    with pytest.raises(CheckpointError) as caught:
        _refuse("org/name", ["pytorch_model.bin"], Api(), "org/name")
    assert ("give `org/name@refs/pr/7` with safetensors files" in str(caught.value)) == offered
    assert "`bass convert FOLDER` after a download" in str(caught.value)


def test_a_hub_that_does_not_answer_offers_nothing() -> None:
    assert converted(None, "org/name") == []
