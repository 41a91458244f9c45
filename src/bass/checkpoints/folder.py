"""A checkpoint folder on disk: config.json, and its tensors in one safetensors file or in several
with an index.
"""

import os.path
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from bass.errors import CheckpointError
from bass.files import read_regular
from bass.plain_json import parse_json

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
LONGEST_NAME = 100  # of a tensor or a file in an error
LARGEST_JSON = 32 << 20  # bytes of one file without a vocabulary
# of a checkpoint; the largest known have 2,000 tensors in 200 files
MOST_TENSORS, MOST_FILES = 100_000, 10_000
MOST_EOS = 1000
PICKLES, GGUF = (".bin", ".pt", ".pth", ".ckpt", ".pkl"), ".gguf"


def read_json(path: Path, limit: int = LARGEST_JSON) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint, which may have `limit` bytes."""
    try:
        value = parse_json(read_regular(path, limit))
    except (ValueError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(
            f"`{path}` is not readable as JSON ({reason}): download the checkpoint again."
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"`{path}` holds no JSON object: download the checkpoint again.")
    return value


def read_config(folder: Path) -> dict[str, Any]:
    """The parsed `config.json` of a checkpoint folder."""
    if not os.path.isdir(folder):
        _refuse_other_formats(folder, [folder.name] if os.path.isfile(folder) else [])
        raise CheckpointError(
            f"No checkpoint folder at `{folder}`: give a folder with config.json and safetensors "
            "files, or a hub id such as org/name."
        )
    if not (folder / "config.json").exists():
        _refuse_other_formats(folder, sorted(path.name for path in folder.iterdir()))
        raise CheckpointError(
            f"`{folder}` has no config.json: give a Hugging Face checkpoint folder."
        )
    return read_json(folder / "config.json")


def stored_dtype(config: dict[str, Any]) -> torch.dtype | None:
    """The type of the weights by config.json; None if it has none of `DTYPES`."""
    kind = config.get("dtype") or config.get("torch_dtype")
    return DTYPES.get(kind) if isinstance(kind, str) else None


def eos_ids(folder: Path, config: dict[str, Any]) -> list[int]:
    """The end-of-sequence tokens of generation_config.json; if it has none, those of config.json,
    whose content is `config`.
    """
    named = {folder / "config.json": config}
    if (generation := folder / "generation_config.json").exists():
        named = {generation: read_json(generation), **named}
    for path, content in named.items():
        ids = content.get("eos_token_id")
        ids = ids if isinstance(ids, list) else [] if ids is None else [ids]
        if not all(type(token) is int and 0 <= token < 2**31 for token in ids):
            raise CheckpointError(
                f"`{path}` has the eos_token_id {ids!r:.100}, which is not a token id: correct it, "
                "or download it again."
            )
        if len(ids) > MOST_EOS:
            raise CheckpointError(
                f"`{path}` has {len(ids):,} ids in its eos_token_id, and the limit is "
                f"{MOST_EOS:,}: correct it."
            )
        if ids:
            return sorted(set(ids))
    return []


def some(names: Iterable[str]) -> str:
    """The first three names, each shortened for a message."""
    listed = [name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..." for name in names]
    return ", ".join(listed[:3]) + (", ..." if len(listed) > 3 else "")


def weight_files(folder: Path) -> dict[Path, list[str]]:
    """The safetensors files of a folder, each with its tensors by the index; a single file has no
    index.
    """
    if (folder / SINGLE).is_file():
        return {folder / SINGLE: []}
    if not (folder / INDEX).is_file():
        _refuse_other_formats(folder, sorted(path.name for path in folder.iterdir()))
        raise CheckpointError(
            f"`{folder}` has no {SINGLE}: give a folder whose weights are in safetensors files."
        )
    names = read_json(folder / INDEX).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointError(
            f"`{folder / INDEX}` has no weight_map: download the checkpoint again."
        )
    if len(names) > MOST_TENSORS:
        raise CheckpointError(
            f"`{folder / INDEX}` names {len(names):,} tensors, and the limit is {MOST_TENSORS:,}: "
            "use another checkpoint."
        )
    places: dict[Path, list[str]] = {}
    for tensor, file in names.items():
        # a name with a path could lead out of the folder
        if (
            not isinstance(file, str)
            or Path(file).name != file
            or not file.endswith(".safetensors")
        ):
            raise CheckpointError(
                f"`{folder / INDEX}` names `{some([str(file)])}`, which is no safetensors file "
                "next to it: download it again."
            )
        places.setdefault(folder / file, []).append(tensor)
    if len(places) > MOST_FILES:
        raise CheckpointError(
            f"`{folder / INDEX}` names {len(places):,} files, and the limit is {MOST_FILES:,}: use "
            "another checkpoint."
        )
    # unlike `is_file`, false for an impossible name
    absent = sorted(path.name for path in places if not os.path.isfile(path))
    if absent:
        raise CheckpointError(
            f"`{folder}` lacks {len(absent)} of the {len(places)} files that {INDEX} names "
            f"({some(absent)}): download the checkpoint again."
        )
    return dict(sorted(places.items()))


def _refuse_other_formats(place: Path, names: list[str]) -> None:
    """Raise `CheckpointError` for weights in an unsupported format."""
    if pickles := [name for name in names if name.endswith(PICKLES)]:
        raise pickles_only(f"`{place}`", pickles)
    if any(name.endswith(GGUF) for name in names):
        raise CheckpointError(
            f"`{place}` holds its weights as GGUF, which `bass` does not read: give the original "
            "in safetensors files."
        )


def pickles_only(where: str, names: list[str]) -> CheckpointError:
    """The error for weights that exist only in pickle files."""
    return CheckpointError(
        f"{where} has its weights only in pickle files ({some(names)}), which can run code when "
        "read, so `bass` does not read them: "
        "convert them with safetensors, or choose a revision with safetensors files."
    )
