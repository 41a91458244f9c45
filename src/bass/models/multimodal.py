"""Folders of multimodal models, of which the text half is read as a folder of its own."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

from bass.errors import CheckpointError

# fields that a folder has once, next to `text_config`
OUTER = ("dtype", "torch_dtype", "eos_token_id", "quantization_config", "tie_word_embeddings")
HEAD = "lm_head.weight"


@final
@dataclass(frozen=True)
class Multimodal:
    """Where a multimodal folder holds its text half.

    text_type: the model_type of a `text_config` that has none. prefixes: starts of stored names,
    and what they are in a folder of the text half; the first match counts. others: starts of the
    tensors of all other parts. The defaults are LLaVA's names, which most have.
    """

    text_type: str
    prefixes: tuple[tuple[str, str], ...] = (
        ("model.language_model.", "model."),
        ("language_model.model.", "model."),
        ("language_model.lm_head.", "lm_head."),
        ("language_model.", "model."),
    )
    others: tuple[str, ...] = (
        "vision_tower.",
        "multi_modal_projector.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
    )

    def config(self, raw: dict[str, Any]) -> dict[str, Any]:
        """The parsed config.json of the text half. What the outer one says of the whole holds."""
        text = raw.get("text_config") or {}
        if not isinstance(text, dict):
            raise CheckpointError(
                f"config.json has `text_config={text!r:.100}`, which must be an object: download "
                "the checkpoint again."
            )
        whole = {name: raw[name] for name in OUTER if raw.get(name) is not None}
        return {"model_type": self.text_type, **text, **whole}

    def names(self, stored: Iterable[str]) -> dict[str, str]:
        """The stored names of the text half by its own names; those of other parts are left out."""
        found: dict[str, str] = {}
        for name in stored:
            if name.startswith(self.others):
                continue
            own = self._own(name)
            if own in found:
                raise CheckpointError(
                    f"`{found[own][:100]}` and `{name[:100]}` are the same tensor of the text "
                    "half: download the checkpoint again."
                )
            found[own] = name
        return found

    def _own(self, name: str) -> str:
        for start, own in self.prefixes:
            if name.startswith(start):
                return own + name.removeprefix(start)
        return name


MULTIMODAL: dict[str, Multimodal] = {
    "gemma3": Multimodal("gemma3_text"),
    "mistral3": Multimodal("mistral"),
}
