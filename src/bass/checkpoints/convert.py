"""Writes the weights of a folder of pickle files as safetensors, by torch's weights-only reader."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bass.checkpoints.folder import ADAPTER, INDEX, SINGLE, file_names, pickled_weights
from bass.checkpoints.shards import save_tensors
from bass.errors import CheckpointError

INNER = ("state_dict", "model", "module", "model_state_dict")  # keys of the weights in a checkpoint


def convert(folder: Path, output: Path) -> list[Path]:
    """Write the weights of `folder` as safetensors into `output`, next to copies of its config and
    tokenizer. Returns the files of weights. Raises `CheckpointError`.
    """
    names = file_names(folder)
    if not (pickles := pickled_weights(names)):
        raise CheckpointError(f"`{folder}` has no pickle files with weights: give one that has.")
    output.mkdir(parents=True, exist_ok=True)
    weight_map: dict[str, str] = {}
    for name in pickles:
        shard = f"{Path(name).stem.removeprefix('pytorch_')}.safetensors"
        to = shard if len(pickles) > 1 else ADAPTER if name.startswith("adapter") else SINGLE
        tensors = tensors_of(folder / name)
        save_tensors(tensors, output / to)
        weight_map |= dict.fromkeys(tensors, to)
    if len(pickles) > 1:
        (output / INDEX).write_text(json.dumps({"weight_map": weight_map}, indent=2) + "\n")
    for name in names if output != folder else ():
        if name.endswith((".json", ".model", ".txt", ".jinja", ".tiktoken", ".md")):
            shutil.copyfile(folder / name, output / name)
    return [output / name for name in dict.fromkeys(weight_map.values())]


def tensors_of(path: Path) -> dict[str, Tensor]:
    """The tensors of a pickle file by name, in float32 if they are in float64."""
    try:
        value: Any = torch.load(path, map_location="cpu", weights_only=True)
        while inner := [value[key] for key in INNER if isinstance(value.get(key), dict)]:
            value = inner[0]
        found = {n: t.float() if t.dtype == torch.float64 else t for n, t in value.items()}
    except Exception as error:  # a pickle that is damaged, or holds more, may raise anything
        raise CheckpointError(
            f"`{path}` is damaged, or holds more than tensors and plain containers: download it "
            "again, or choose a revision with safetensors files."
        ) from error
    seen = set[int]()  # safetensors wants no memory that is shared
    for name, tensor in found.items():
        memory = tensor.untyped_storage().data_ptr()
        found[name] = (tensor.clone() if memory in seen else tensor).detach().contiguous()
        seen.add(memory)
    return found
