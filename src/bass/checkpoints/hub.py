"""Resolves a checkpoint to a folder: a local path, or a hub id, whose files are downloaded."""

import os
import re
import sys
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
CONVERTER = "SFconvertbot"  # user of the hub that opens pull requests with safetensors files
ALL_WEIGHTS = ("*.safetensors",)


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
    return _fetch(spec, found["id"], found["revision"], weights)


def _fetch(spec: str, repository: str, revision: str | None, weights: bool) -> Path:
    try:
        import huggingface_hub as hub
        from huggingface_hub import errors
    except ImportError as error:
        raise CheckpointError(
            f"`{spec}` is no local folder, and hub ids need the package huggingface_hub: install "
            f"it with {install('hub')}."
        ) from error
    try:
        found = hub.snapshot_download(
            repository,
            revision=revision,
            allow_patterns=[*WANTED],
            ignore_patterns=[*(UNWANTED if weights else ALL_WEIGHTS)],
            tqdm_class=_bar(hub.utils.tqdm),
        )
        folder = Path(found)
        if weights and not any(folder.glob("*.safetensors")):
            api = hub.HfApi()
            _refuse(spec, api.list_repo_files(repository, revision=revision), api, repository)
    except errors.GatedRepoError as error:
        raise CheckpointError(
            f"`{spec}` is gated: accept its terms on its hub page, then log in with `hf auth "
            "login` or HF_TOKEN."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"`{spec}` is neither a local folder nor a repository that you can access: correct "
            "the name, or, if it is private, "
            "log in with `hf auth login` or HF_TOKEN."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(
            f"`{repository}` has no revision `{revision}` on the hub: give a branch, a tag or a "
            "commit of it."
        ) from error
    except errors.LocalEntryNotFoundError as error:
        if hub.constants.HF_HUB_OFFLINE:
            raise CheckpointError(
                f"`{spec}` is no local folder, and is not complete in the hub's cache: unset "
                "HF_HUB_OFFLINE to fetch it, or give a folder."
            ) from error
        raise CheckpointError(
            f"`{spec}` is no local folder, and is not complete in the hub's cache, and the hub "
            f"cannot be reached ({_cause(error)}): "
            "connect to the network, or give a folder."
        ) from error
    except errors.HFValidationError as error:
        raise CheckpointError(
            f"`{spec}` is neither a local folder nor a valid hub id: correct the name."
        ) from error
    except (OSError, ValueError, _http_error()) as error:
        raise CheckpointError(
            f"`{spec}` could not be fetched from the hub ({_cause(error)}): try again, or give a "
            "folder."
        ) from error
    return folder


def _bar(shown: type[Any]) -> type[Any]:
    """The library's progress bar, for terminals only."""

    class Bar(shown):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(
                *arguments, **options | ({} if sys.stderr.isatty() else {"disable": True})
            )

    return Bar


def _refuse(spec: str, names: list[str], api: Any, repository: str) -> None:
    """Raise `CheckpointError` for a repository without safetensors files, with the reason."""
    if pickles := sorted(name for name in names if name.endswith(PICKLES)):
        raise pickles_only(f"`{spec}`", pickles, revisions=converted(api, repository))
    raise CheckpointError(
        f"`{spec}` has no safetensors files on the hub: choose a repository or a revision that has "
        "them."
    )


def converted(api: Any, repository: str) -> list[str]:
    """The revisions of a repository in which the hub's converter has added safetensors files.

    api: a `huggingface_hub.HfApi`. Empty where the hub does not tell.
    """
    try:
        opened = api.get_repo_discussions(
            repository, author=CONVERTER, discussion_type="pull_request"
        )
        return [
            f"{repository}@refs/pr/{one.num}"
            for one in opened
            if one.author == CONVERTER and one.status != "merged" and "safetensors" in one.title
        ]
    except Exception:  # it is advice within an error, which must not replace it
        return []


def _http_error() -> type[Exception]:
    import httpx

    return httpx.HTTPError


def _cause(error: BaseException) -> str:
    """The first line of the innermost error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
