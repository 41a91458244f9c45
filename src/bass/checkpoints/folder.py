"""A checkpoint folder on disk: config.json, and its tensors in one safetensors file or in several,
with or without an index.
"""

import os.path
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from bass.errors import CheckpointError
from bass.files import is_lfs_pointer, read_regular
from bass.plain_json import parse_json

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
LONGEST_NAME = 100  # of a tensor or a file in an error
LARGEST_JSON = 32 << 20  # bytes of one file without a vocabulary
# of a checkpoint; the largest known have 2,000 tensors in 200 files
MOST_TENSORS, MOST_FILES = 100_000, 10_000
MOST_EOS = 1000
PICKLES, GGUF = (".bin", ".pt", ".pth", ".ckpt", ".pkl"), ".gguf"
# pickles of a training run, which hold no weights
OF_TRAINING = re.compile(r"(training_args|optimizer|scheduler|rng_state|scaler)\b.*|rng_state_.*")
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")
ORIGINAL = ("consolidated", "params.json")  # names of the files of an original release
CONSOLIDATED = "consolidated.safetensors"  # of an original release, or with Hugging Face's names
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"


def read_json(path: Path, limit: int = LARGEST_JSON) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint, which may have `limit` bytes."""
    try:
        value = parse_json(read_regular(path, limit))
    except (ValueError, OSError) as error:
        refuse_pointer(path)
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
        _refuse_other_formats(folder, file_names(folder))
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
    shards that are numbered without gaps, need no index.
    """
    if (folder / SINGLE).is_file():
        return {folder / SINGLE: []}
    if (folder / INDEX).is_file():
        return _indexed_files(folder)
    names = file_names(folder)
    if shards := numbered(names):
        return {folder / name: [] for name in _complete(folder, shards)}
    if CONSOLIDATED in names:
        return {folder / CONSOLIDATED: []}
    _refuse_other_formats(folder, names)
    if others := [name for name in names if name.endswith(".safetensors")]:
        raise CheckpointError(
            f"`{folder}` has no {SINGLE}, and no complete set of shards; it holds {some(others)}: "
            f"give a folder with the one to be read under the name {SINGLE}."
        )
    raise CheckpointError(
        f"`{folder}` has no {SINGLE}: give a folder whose weights are in safetensors files."
    )


def numbered(names: Iterable[str]) -> list[re.Match[str]]:
    """The names of the form model-00001-of-00003.safetensors, without those of an original release
    (`consolidated`).
    """
    found = filter(None, map(_SHARD.fullmatch, names))
    return [one for one in found if not one["stem"].startswith(ORIGINAL)]


def _complete(folder: Path, shards: list[re.Match[str]]) -> list[str]:
    """The names of all shards. Raises `CheckpointError` if one is missing or several sets exist."""
    sets = sorted({(one["stem"], int(one["count"])) for one in shards})
    if len(sets) > 1:
        raise CheckpointError(
            f"`{folder}` has no {INDEX}, and several sets of shards "
            f"({some(f'{stem} of {count}' for stem, count in sets)}): remove all but one."
        )
    ((stem, count),) = sets
    if count > MOST_FILES:
        raise CheckpointError(
            f"`{folder}` has shards of {count:,}, and the limit is {MOST_FILES:,}: use another "
            "checkpoint."
        )
    wanted = [f"{stem}-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    held = {one.string for one in shards}
    if absent := [name for name in wanted if name not in held]:
        raise CheckpointError(
            f"`{folder}` lacks {len(absent)} of its {count} shards ({some(absent)}): download the "
            "checkpoint again."
        )
    return wanted


def _indexed_files(folder: Path) -> dict[Path, list[str]]:
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
    if ADAPTER_CONFIG in names:
        raise _adapter_only(place)
    if pickles := pickled_weights(names):
        raise pickles_only(f"`{place}`", pickles, place if place.is_dir() else place.parent)
    if any(name.endswith(GGUF) for name in names):
        raise CheckpointError(
            f"`{place}` holds its weights as GGUF, which `bass` does not read: give the original "
            "in safetensors files."
        )
    original = [name for name in names if name.startswith(ORIGINAL)]
    if original not in ([], [CONSOLIDATED]):
        raise original_release(place, original)


def original_release(place: Path, names: list[str]) -> CheckpointError:
    """The error for the files of an original release."""
    return CheckpointError(
        f"`{place}` holds the files of an original release ({some(names)}), whose names and "
        "order of weights `bass` does not read: give the Hugging Face form of it, with "
        "config.json and model*.safetensors."
    )


def pickled_weights(names: Iterable[str]) -> list[str]:
    """The names of pickle files that may hold weights, other than those of an original release."""
    found = [n for n in names if n.endswith(PICKLES) and not n.startswith(ORIGINAL)]
    return [name for name in found if not OF_TRAINING.fullmatch(name)]


def pickles_only(
    where: str, names: list[str], folder: Path | None = None, revisions: Sequence[str] = ()
) -> CheckpointError:
    """The error for weights that exist only in pickle files, of `folder` or of the hub.

    revisions: those of the hub with safetensors files.
    """
    convert = f"`bass convert {folder}`" if folder else "`bass convert FOLDER` after a download"
    other = f"give `{revisions[0]}`" if revisions else "choose a revision"
    return CheckpointError(
        f"{where} has its weights only in pickle files ({some(names)}), which can run code when "
        f"read, so `bass` does not read them: convert them with {convert}, or {other} with "
        "safetensors files."
    )


def _adapter_only(place: Path) -> CheckpointError:
    base = read_json(place / ADAPTER_CONFIG).get("base_model_name_or_path")
    model = f"`{base:.100}`" if isinstance(base, str) and base else "its base model"
    return CheckpointError(
        f"`{place}` is a LoRA adapter and no whole model: give {model} as the checkpoint and "
        f"`--lora {place}` (for a draft `--draft-lora`)."
    )
