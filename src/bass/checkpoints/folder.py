"""A checkpoint folder on disk: config.json, and its tensors in one safetensors file or in several,
with or without an index.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from bass.errors import CheckpointError
from bass.files import is_lfs_pointer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
LONGEST_NAME = 100  # of a tensor or a file in an error
PICKLES, GGUF = (".bin", ".pt", ".pth", ".ckpt", ".pkl"), ".gguf"
# pickles of a training run, which hold no weights
OF_TRAINING = re.compile(r"(training_args|optimizer|scheduler|rng_state|scaler)\b.*|rng_state_.*")
_SHARD = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.safetensors")
ORIGINAL = ("consolidated", "params.json")  # names of the files of an original release
CONSOLIDATED = "consolidated.safetensors"  # of an original release, or with Hugging Face's names
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, OSError) as error:
        refuse_pointer(path)
        raise CheckpointError(
            f"`{path}` is not readable as JSON ({error}): download the checkpoint again."
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"`{path}` holds no JSON object: download the checkpoint again.")
    return value


def read_config(folder: Path) -> dict[str, Any]:
    """The parsed `config.json` of a checkpoint folder."""
    if not (folder / "config.json").exists():
        names = file_names(folder) if folder.is_dir() else [folder.name]
        if folder.exists():
            _refuse_other_formats(folder, names)
        what = (
            f"`{folder}` has no config.json"
            if folder.is_dir()
            else f"No checkpoint folder at `{folder}`"
        )
        raise CheckpointError(
            f"{what}: give a Hugging Face folder with config.json and safetensors files, or a hub "
            "id such as org/name."
        )
    return read_json(folder / "config.json")


def stored_dtype(config: dict[str, Any]) -> torch.dtype | None:
    """The type of the weights by config.json; None if it has none of `DTYPES`."""
    return DTYPES.get(str(config.get("dtype") or config.get("torch_dtype")))


def eos_ids(folder: Path, config: dict[str, Any]) -> list[int]:
    """The end-of-sequence tokens of generation_config.json; if it has none, those of config.json,
    whose content is `config`.
    """
    generation = folder / "generation_config.json"
    for content in (read_json(generation) if generation.exists() else {}, config):
        ids = content.get("eos_token_id")
        ids = ids if isinstance(ids, list) else [] if ids is None else [ids]
        if not all(type(token) is int for token in ids):
            raise CheckpointError(
                f"`{folder}` has the eos_token_id {ids!r:.100}, which is not a token id: correct "
                "its generation_config.json or config.json."
            )
        if ids:
            return sorted(set(ids))
    return []


def some(names: Iterable[str]) -> str:
    """The first three names, each shortened for a message."""
    listed = [name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..." for name in names]
    return ", ".join(listed[:3]) + (", ..." if len(listed) > 3 else "")


def file_names(folder: Path) -> list[str]:
    """The names of all files of a folder."""
    return sorted(path.name for path in folder.iterdir())


def refuse_pointer(path: Path) -> None:
    """Raise `CheckpointError` for a file that is a pointer of Git LFS."""
    if is_lfs_pointer(path):
        raise CheckpointError(
            f"`{path}` is a pointer of Git LFS and not the file itself: run `git lfs pull` in its "
            "repository, or download the checkpoint again."
        )


def weight_files(folder: Path) -> dict[Path, list[str]]:
    """The safetensors files of a folder, each with its tensors by the index; a single file, and
    shards that are numbered without gaps, need no index (their lists are empty).
    """
    if (folder / SINGLE).is_file():
        return {folder / SINGLE: []}
    if (folder / INDEX).is_file():
        files: dict[Path, list[str]] = {}
        for tensor, file in read_json(folder / INDEX).get("weight_map", {}).items():
            files.setdefault(folder / file, []).append(tensor)
        return dict(sorted(_all_there(folder, files).items()))
    names = file_names(folder)
    shards = [
        one for one in map(_SHARD.fullmatch, names) if one and not one.string.startswith(ORIGINAL)
    ]
    if shards:
        stem, count = shards[0]["stem"], shards[0]["count"]
        wanted = [f"{stem}-{i + 1:05}-of-{count}.safetensors" for i in range(int(count))]
        return _all_there(folder, {folder / name: [] for name in wanted})
    if CONSOLIDATED in names:
        return {folder / CONSOLIDATED: []}
    _refuse_other_formats(folder, names)
    others = some(name for name in names if name.endswith(".safetensors"))
    raise CheckpointError(
        f"`{folder}` has no {SINGLE}, and no complete set of shards; it holds {others or 'none'}: "
        f"give a folder with safetensors files, the one to be read under the name {SINGLE}."
    )


def _all_there(folder: Path, files: dict[Path, list[str]]) -> dict[Path, list[str]]:
    absent = sorted(path.name for path in files if not path.is_file())
    if absent or not files:
        what = f"{len(absent)} of its {len(files)} shards ({some(absent) or INDEX})"
        raise CheckpointError(f"`{folder}` lacks {what}: download the checkpoint again.")
    return files


def _refuse_other_formats(path: Path, names: list[str]) -> None:
    """Raise `CheckpointError` for weights in an unsupported format."""
    if ADAPTER_CONFIG in names:
        base = read_json(path / ADAPTER_CONFIG).get("base_model_name_or_path")
        raise CheckpointError(
            f"`{path}` is a LoRA adapter and no whole model: give `{base or 'its base model'}` as "
            f"the checkpoint and `--lora {path}` (for a draft `--draft-lora`)."
        )
    refuse_pickles(path)
    if any(name.endswith(GGUF) for name in names):
        raise CheckpointError(
            f"`{path}` holds its weights as GGUF, which `bass` does not read: give the original "
            "in safetensors files."
        )
    original = [name for name in names if name.startswith(ORIGINAL)]
    if original not in ([], [CONSOLIDATED]):
        raise original_release(path, original)


def original_release(path: Path, names: list[str]) -> CheckpointError:
    """The error for the files of an original release."""
    return CheckpointError(
        f"`{path}` holds the files of an original release ({some(names)}), whose names and "
        "order of weights `bass` does not read: give the Hugging Face form of it, with "
        "config.json and model*.safetensors."
    )


def pickled_weights(names: Iterable[str]) -> list[str]:
    """The names of pickle files that may hold weights, other than those of an original release."""
    found = [n for n in names if n.endswith(PICKLES) and not n.startswith(ORIGINAL)]
    return [name for name in found if not OF_TRAINING.fullmatch(name)]


def refuse_pickles(path: Path) -> None:
    """Raise `CheckpointError` for a folder whose weights are pickle files, or for one of these."""
    if pickles := pickled_weights(file_names(path) if path.is_dir() else [path.name]):
        raise pickles_only(str(path), pickles, str(path if path.is_dir() else path.parent))


def pickles_only(where: str, names: list[str], folder: str) -> CheckpointError:
    """The error for weights that exist only in pickle files. folder: to be converted."""
    return CheckpointError(
        f"`{where}` has its weights only in pickle files ({some(names)}), which can run code when "
        f"read, so `bass` does not read them: convert them with `bass convert {folder}`, or choose "
        "a revision with safetensors files."
    )
