"""Resolves a checkpoint to a folder: a local path, or a hub id, whose files are downloaded."""

import os
import re
from pathlib import Path

from bass.errors import CheckpointError, install

HUB_ID = re.compile(r"(?P<id>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[\w./-]+))?", re.ASCII)
WANTED = (
    "config.json", "quantize_config.json", "generation_config.json", "tokenizer.json",
    "tokenizer.model", "vocab.json", "merges.txt", "tekken.json", "tiktoken.model", "*.tiktoken",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja",
    "*.safetensors", "model.safetensors.index.json", "adapter_config.json", "mask_embedding.pt",
)  # fmt: skip
# other formats of the same weights: in subfolders, and original formats
UNWANTED = ("*/*.safetensors", "consolidated*")


def resolve(spec: str | Path, weights: bool = True) -> Path:
    """The folder of a checkpoint: an existing folder itself; text of the form `org/name` or
    `org/name@revision` is a hub id. Without `weights`, these are not downloaded.

    `huggingface_hub` resolves a hub id: its cache, HF_HOME, HF_TOKEN, HF_ENDPOINT and
    HF_HUB_OFFLINE have their usual meaning. Other text is a path. Raises `CheckpointError`.
    """
    if isinstance(spec, Path) or os.path.exists(spec) or not (found := HUB_ID.fullmatch(spec)):
        return Path(spec)
    try:
        import huggingface_hub as hub
    except ImportError as error:
        raise CheckpointError(
            f"`{spec}` is no local folder, and hub ids need the package huggingface_hub: install "
            f"it with {install('hub')}."
        ) from error
    try:
        folder = hub.snapshot_download(
            found["id"],
            revision=found["revision"],
            allow_patterns=[*WANTED],
            ignore_patterns=[*(UNWANTED if weights else ("*.safetensors",))],
        )
    except Exception as error:  # of the library, and of the network below it
        raise CheckpointError(
            f"`{spec}` is no local folder, and it could not be fetched from the hub "
            f"({' '.join(str(error).split())}): correct the name, log in with `hf auth login` or "
            "HF_TOKEN, or give a folder."
        ) from error
    if weights and not any(Path(folder).glob("*.safetensors")):
        raise CheckpointError(
            f"`{spec}` has no safetensors files on the hub: choose a repository or a revision that "
            "has them, or download it, and convert its pickle files with `bass convert FOLDER`."
        )
    return Path(folder)
