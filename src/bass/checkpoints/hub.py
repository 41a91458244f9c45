"""Resolves a checkpoint to a folder: a local path, or a hub id, whose files are downloaded."""

import os
import re
from pathlib import Path
from typing import Any

from bass.checkpoints.folder import PICKLES, pickles_only
from bass.errors import CheckpointError, install

HUB_ID = re.compile(r"(?P<id>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[\w./-]+))?", re.ASCII)
WANTED = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "vocab.json",
    "merges.txt", "tekken.json", "tiktoken.model", "*.tiktoken", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json",
    "additional_chat_templates/*.jinja",
    "*.safetensors", "model.safetensors.index.json", "adapter_config.json",
)  # fmt: skip
# other formats of the same weights: in subfolders, and original formats
UNWANTED = ("*/*.safetensors", "consolidated*")
# what is wrong by the class of the library's error, the most specific first
ERRORS = {
    "GatedRepoError": "is gated: accept its terms on its hub page, then log in with `hf auth login`"
    " or HF_TOKEN",
    "RepositoryNotFoundError": "is neither a local folder nor a repository that you can access:"
    " correct the name, or, if it is private, log in with `hf auth login` or HF_TOKEN",
    "RevisionNotFoundError": "has no such revision on the hub: give a branch, a tag or a commit",
    "LocalEntryNotFoundError": "is no local folder, it is not complete in the hub's cache, and the"
    " hub cannot be reached ({}): connect to the network, unset HF_HUB_OFFLINE, or give a folder",
    "HFValidationError": "is neither a local folder nor a valid hub id: correct the name",
    "Exception": "could not be fetched from the hub ({}): try again, or give a folder",
}


def resolve(spec: str | Path, weights: bool = True) -> Path:
    """The folder of a checkpoint: an existing folder itself; text of the form `org/name` or
    `org/name@revision` is a hub id. Without `weights`, these are not downloaded.

    `huggingface_hub` resolves a hub id: its cache, HF_HOME, HF_TOKEN, HF_ENDPOINT and
    HF_HUB_OFFLINE have their usual meaning. Other text is a path. Raises `CheckpointError`.
    """
    if spec == "":  # as a path, it would be the current folder
        raise CheckpointError(
            "The name of a checkpoint or adapter is empty: give a folder, or a hub id such as "
            "org/name."
        )
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
        return _fetch(hub, spec, found["id"], found["revision"], weights)
    except CheckpointError:
        raise
    except Exception as error:  # of the library, and of the network below it
        kinds = [kind.__name__ for kind in type(error).__mro__]
        words = next(words for kind, words in ERRORS.items() if kind in kinds)
        raise CheckpointError(f"`{spec}` {words.format(_cause(error))}.") from error


def _fetch(hub: Any, spec: str, repository: str, revision: str | None, weights: bool) -> Path:
    folder = Path(
        hub.snapshot_download(
            repository,
            revision=revision,
            allow_patterns=[*WANTED],
            ignore_patterns=[*(UNWANTED if weights else ("*.safetensors",))],
        )
    )
    if weights and not any(folder.glob("*.safetensors")):
        names = hub.HfApi().list_repo_files(repository, revision=revision)
        if pickles := sorted(name for name in names if name.endswith(PICKLES)):
            raise pickles_only(spec, pickles, "FOLDER")
        raise CheckpointError(
            f"`{spec}` has no safetensors files on the hub: choose a repository or a revision that "
            "has them."
        )
    return folder


def _cause(error: BaseException) -> str:
    """The first line of the innermost error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
