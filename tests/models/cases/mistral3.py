"""Mistral Small 3.1 and others: multimodal folders, of which the text half is read."""

from typing import Any

from models.cases import COMMON

FAMILY = "mistral3"
USES_COMMON = False
_VISION = {
    "model_type": "pixtral", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 2, "head_dim": 8, "image_size": 28, "patch_size": 14,
}  # fmt: skip


def _text(kind: str, **fields: Any) -> dict[str, Any]:
    text = {"model_type": kind, "head_dim": 16, "sliding_window": None, **COMMON, **fields}
    return {"text_config": text, "vision_config": _VISION}


CASES: dict[str, dict[str, Any]] = {
    "mistral, untied": {**_text("mistral"), "tie_word_embeddings": False},
    "mistral, tied, multi-query, window of 5": {
        **_text("mistral", num_key_value_heads=1, sliding_window=5), "tie_word_embeddings": True,
    },
    "ministral, untied, window of 4 in named layers": {
        **_text(
            "ministral", sliding_window=4,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
        "tie_word_embeddings": False,
    },
    "ministral3, tied": {
        **_text(
            "ministral3",
            rope_parameters={
                "rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0,
                "original_max_position_embeddings": 48, "llama_4_scaling_beta": 0.1,
            },
        ),
        "tie_word_embeddings": True,
    },
}  # fmt: skip
