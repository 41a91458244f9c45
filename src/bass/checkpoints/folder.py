"""A checkpoint folder on disk: config.json, and safetensors files with or without an index."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from bass.checkpoints.multimodal import MULTIMODAL
from bass.errors import CheckpointError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MEDUSA = "medusa_lm_head.safetensors"
_POINTER = b"version https://git-lfs.github.com/spec/"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# pickles of a training run, which hold no weights, and of original releases
_OTHER_PICKLES = re.compile(
    r"(training_args|optimizer|scheduler|rng_state|scaler)\b.*|rng_state_.*|consolidated.*"
)
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, OSError) as error:
        refuse_pointer(path)
        raise CheckpointError(
            f"`{path}` is not readable as JSON ({error}): download the checkpoint again."
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """The parsed `config.json` of a folder, with the separate GPTQ config of older exports."""
    if not (folder / "config.json").exists():
        if folder.exists():
            refuse_other_formats(folder)
        found = "has no config.json" if folder.is_dir() else "is no folder"
        raise CheckpointError(
            f"`{folder}` {found}: give a Hugging Face folder with config.json and safetensors "
            "files, or a hub id such as org/name."
        )
    raw, separate = read_json(folder / "config.json"), folder / "quantize_config.json"
    if not raw.get("quantization_config") and separate.exists():
        raw["quantization_config"] = {"quant_method": "gptq"} | read_json(separate)
    return raw


def text_config(raw: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """A config.json, and None; of a multimodal one the text half's, and its model_type."""
    name = raw.get("model_type")
    if name in MULTIMODAL:
        return MULTIMODAL[name].config(raw), name
    if name == "mistral" and "layer_types" in raw:  # as `transformers` reads it, but in no half
        return raw | {"model_type": "ministral"}, None
    return raw, None


def stored_dtype(config: Mapping[str, Any]) -> torch.dtype | None:
    """The type of the weights by config.json; None if it has none of `DTYPES`."""
    return DTYPES.get(str(config.get("dtype") or config.get("torch_dtype")))


def eos_ids(folder: Path, config: dict[str, Any]) -> list[int]:
    """The end tokens of generation_config.json; without any, those of config.json (`config`)."""
    generation = folder / "generation_config.json"
    for content in (read_json(generation) if generation.exists() else {}, config):
        ids = content.get("eos_token_id")
        if ids := ids if isinstance(ids, list) else [] if ids is None else [ids]:
            return sorted(set(ids))
    return []


def some(names: Iterable[str]) -> str:
    """The first three names."""
    listed = [*names]
    return ", ".join(listed[:3]) + (", ..." if len(listed) > 3 else "")


def file_names(path: Path) -> list[str]:
    """The names of all files of a folder, or that of a file."""
    return sorted(one.name for one in path.iterdir()) if path.is_dir() else [path.name]


def refuse_pointer(path: Path) -> None:
    """Raise `CheckpointError` for a file that is a pointer of Git LFS."""
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(_POINTER)) == _POINTER:
                raise CheckpointError(
                    f"`{path}` is a pointer of Git LFS and not the file itself: run `git lfs pull` "
                    "in its repository, or download the checkpoint again."
                )


def weight_files(folder: Path) -> dict[Path, list[str]]:
    """The safetensors files of a folder, each with its tensors by the index; a single file, and
    numbered shards, need no index (their lists are empty).
    """
    for name in (SINGLE, MEDUSA):
        if (folder / name).is_file():
            return {folder / name: []}
    if (folder / INDEX).is_file():
        files: dict[Path, list[str]] = {}
        for tensor, file in read_json(folder / INDEX)["weight_map"].items():
            files.setdefault(folder / file, []).append(tensor)
        return dict(sorted(files.items()))
    shards = sorted(folder.glob("*-of-*.safetensors"))
    if found := [path for path in shards if not path.name.startswith("consolidated")]:
        return {path: [] for path in found}
    refuse_other_formats(folder)
    others = sorted(file_names(folder), key=lambda name: not name.endswith(".safetensors"))
    raise CheckpointError(
        f"`{folder}` has no weights, neither {SINGLE} nor shards of it; it holds {some(others)}: "
        f"download the rest, name the file with the weights {SINGLE}, or give "
        "`load_format=dummy`, for random weights."
    )


def refuse_other_formats(path: Path) -> None:
    """Raise `CheckpointError` for a folder, or a file, with weights in an unsupported format."""
    names = file_names(path)
    if ADAPTER_CONFIG in names:
        base = read_json(path / ADAPTER_CONFIG).get("base_model_name_or_path")
        raise CheckpointError(
            f"`{path}` is a LoRA adapter and no whole model: give `{base or 'its base model'}` as "
            f"the checkpoint and `--lora {path}` (for a draft `--draft-lora`)."
        )
    if pickles := pickled_weights(names):
        folder = path if path.is_dir() else path.parent
        raise CheckpointError(
            f"`{path}` has its weights only in pickle files ({some(pickles)}), which can run code "
            f"when read, so `bass` does not read them: convert them with `bass convert {folder}`, "
            "or choose a revision with safetensors files."
        )
    if any(name.endswith(".gguf") for name in names):
        raise CheckpointError(
            f"`{path}` holds its weights as GGUF, which `bass` does not read: give the original "
            "in safetensors files."
        )


def pickled_weights(names: Iterable[str]) -> list[str]:
    """The names of pickle files that may hold weights."""
    found = [name for name in names if name.endswith(PICKLES)]
    return [name for name in found if not _OTHER_PICKLES.fullmatch(name)]
