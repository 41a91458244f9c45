"""`bass convert`: pickles become safetensors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bass.checkpoints.convert import convert
from bass.checkpoints.folder import INDEX, SINGLE
from unit.checkpoints import Said
from unit.test_bad_input import refuses
from unit.test_weights import parameters, same, tied

__all__ = ["tied"]  # a fixture
Command = Callable[..., Said]


def pickled(folder: Path, count: int = 1, **save: Any) -> Path:
    """The folder with its weights in pickle files instead."""
    tensors = load_file(folder / SINGLE)
    (folder / SINGLE).unlink()
    if count == 1:
        torch.save(tensors, folder / "pytorch_model.bin", **save)
    for i in range(count if count > 1 else 0):
        names = sorted(tensors)[i::count]
        file = f"pytorch_model-{i + 1:05}-of-{count:05}.bin"
        torch.save({name: tensors[name] for name in names}, folder / file, **save)
    return folder


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_converted_folder_loads_as_before(
    bass_command: Command, tied: Path, count: int, zipped: bool
) -> None:
    whole = parameters(tied)
    pickled(tied, count, _use_new_zipfile_serialization=zipped)
    refuses(bass_command("info", str(tied)), f"`bass convert {tied}`")
    said = bass_command("convert", str(tied))
    assert said.status == 0, said
    assert len(said.out.splitlines()) == count
    assert (tied / INDEX).exists() == (count > 1)
    assert same(parameters(tied), whole)


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
    convert(tied, tied)
    held = load_file(tied / SINGLE)
    assert held.keys() == tensors.keys()
    for name, tensor in tensors.items():
        expected = torch.float32 if name == "float64" else tensor.dtype
        assert (held[name].dtype, held[name].shape) == (expected, tensor.shape)
        assert torch.equal(held[name].double(), tensor.double())
