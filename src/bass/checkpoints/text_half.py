"""Reads a multimodal folder as that of its text half."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from bass.checkpoints.folder import read_config
from bass.checkpoints.shards import TensorFiles
from bass.models.multimodal import HEAD, MULTIMODAL


def read_text_config(folder: Path) -> tuple[dict[str, Any], str | None]:
    """The parsed config.json of a folder, and None; of a multimodal folder that of its text half,
    and the model_type of the whole.
    """
    raw = read_config(folder)
    name = raw.get("model_type")
    if not isinstance(name, str) or name not in MULTIMODAL:
        if name == "mistral" and "layer_types" in raw:  # as `transformers` reads it, but in no half
            return raw | {"model_type": "ministral"}, None
        return raw, None
    return MULTIMODAL[name].config(raw), name


def text_half(
    half_of: str, raw: dict[str, Any], files: TensorFiles
) -> tuple[dict[str, Any], TensorFiles]:
    """The tensors of the text half, named as in a folder of its own, and its config.json.

    If the outer config does not say whether the head is tied to the embedding, it is where none is
    stored, as in `transformers`, or where the text half says so.
    """
    names = MULTIMODAL[half_of].names(files.stored)
    tie = "tie_word_embeddings"
    if raw.get(tie) is None or (HEAD not in names and read_config(files.folder).get(tie) is None):
        raw = raw | {tie: HEAD not in names}
    stored = {own: files.stored[name] for own, name in names.items()}
    return raw, replace(files, stored=stored, unread=len(files.stored) - len(stored))
