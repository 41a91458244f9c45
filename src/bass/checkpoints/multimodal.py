"""Folders of multimodal models, of which the text half is read as a folder of its own."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

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
        whole = {name: raw[name] for name in OUTER if raw.get(name) is not None}
        return {"model_type": self.text_type, **(raw.get("text_config") or {}), **whole}

    def names(self, stored: Iterable[str]) -> dict[str, str]:
        """The stored names of the text half by its own names; those of other parts are left out."""
        return {self._own(name): name for name in stored if not name.startswith(self.others)}

    def _own(self, name: str) -> str:
        for start, own in self.prefixes:
            if name.startswith(start):
                return own + name.removeprefix(start)
        return name


MULTIMODAL: dict[str, Multimodal] = {
    "gemma3": Multimodal("gemma3_text"),
    "mistral3": Multimodal("mistral"),
}
