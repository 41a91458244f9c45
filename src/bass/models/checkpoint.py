"""A checkpoint folder on disk: config.json, and tensors in one safetensors file or in several with an index."""

import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bass.errors import CheckpointError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file of a checkpoint holds."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"`{path}` is not readable as JSON ({error}): download the checkpoint again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"`{path}` holds no JSON object: download the checkpoint again.")
    return value


def read_config(folder: Path) -> dict[str, Any]:
    """The parsed `config.json` of a checkpoint folder."""
    if not folder.is_dir():
        raise CheckpointError(f"No checkpoint folder at `{folder}`: give the path of a folder with config.json and model.safetensors.")
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"`{folder}` has no config.json: give a Hugging Face checkpoint folder.")
    return read_json(folder / "config.json")


def eos_ids(folder: Path) -> list[int]:
    """The end-of-sequence tokens that config.json and generation_config.json name together."""
    found: list[int] = []
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        if path.is_file():
            ids = read_json(path).get("eos_token_id")
            ids = ids if isinstance(ids, list) else [] if ids is None else [ids]
            if not all(isinstance(token, int) and 0 <= token < 2**31 for token in ids):
                raise CheckpointError(f"`{path}` has the eos_token_id {ids}, which is no token id: correct it, or download it again.")
            found += ids
    return sorted(set(found))


@dataclass
class TensorFiles:
    """The tensors of a folder by name. Opening reads the headers alone; the files are mapped into memory, not read."""

    folder: Path
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _files: dict[str, Any] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> "TensorFiles":
        for path in self._paths():
            try:
                file = self._stack.enter_context(safe_open(path, framework="pt"))
                for name in file.keys():  # noqa: SIM118  (not a dict)
                    self.shapes[name] = tuple(file.get_slice(name).get_shape())
                    self._files[name] = file
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"`{path}` is damaged or truncated ({error}): download it again.") from error
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self._files[name].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"`{self.folder}`: `{name}` cannot be read ({error}): download the checkpoint again.") from error

    def _paths(self) -> list[Path]:
        if (self.folder / SINGLE).is_file():
            return [self.folder / SINGLE]
        if (self.folder / INDEX).is_file():
            return [self.folder / name for name in sorted(set(read_json(self.folder / INDEX)["weight_map"].values()))]
        raise CheckpointError(f"`{self.folder}` has no {SINGLE}: give a folder whose weights are in safetensors files.")
