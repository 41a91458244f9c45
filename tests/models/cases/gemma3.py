"""Gemma 3 from 4B on: multimodal folders, of which the text half is read."""

from typing import Any

from models.cases import COMMON

FAMILY = "gemma3"
USES_COMMON = False
_VISION = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 28, "patch_size": 14,
}  # fmt: skip


def _text(**fields: Any) -> dict[str, Any]:
    text = {"head_dim": 16, "sliding_window": 5, **COMMON, **fields}
    return {"text_config": text, "vision_config": _VISION, "mm_tokens_per_image": 4}


CASES: dict[str, dict[str, Any]] = {
    "tied, five of six layers slide": _text(hidden_size=16, num_hidden_layers=6),
    "untied, linear, named layers": {
        **_text(
            layer_types=["sliding_attention", "full_attention", "full_attention"],
            rope_scaling={"rope_type": "linear", "factor": 8.0},
        ),
        "tie_word_embeddings": False,
    },
    "untied, multi-query, own scale": {
        **_text(num_key_value_heads=1, head_dim=24, query_pre_attn_scalar=16),
        "tie_word_embeddings": False,
    },
}
