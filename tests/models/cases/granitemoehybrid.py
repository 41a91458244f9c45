"""Granite 4 of attention layers: with and without rotary embedding, ties, biases."""

from typing import Any

FAMILY = "granitemoehybrid"
DENSE = {"num_local_experts": 0, "layer_types": ["attention"] * 3, "shared_intermediate_size": 96}
CASES: dict[str, dict[str, Any]] = {
    "grouped, tied, rotary, all multipliers": DENSE | {
        "tie_word_embeddings": True, "embedding_multiplier": 1.7, "residual_multiplier": 0.6,
        "attention_multiplier": 0.2, "logits_scaling": 3, "position_embedding_type": "rope",
    },
    "multi-head, biases, no rotary": DENSE | {
        "num_key_value_heads": 4, "attention_bias": True, "attention_multiplier": 0.0625,
        "position_embedding_type": "nope",
    },
    "multi-query, inner of 80, large epsilon, other theta": DENSE | {
        "num_key_value_heads": 1, "rms_norm_eps": 1e-2, "rope_theta": 5000000.0,
        "shared_intermediate_size": 80, "position_embedding_type": "rope",
    },
}  # fmt: skip
