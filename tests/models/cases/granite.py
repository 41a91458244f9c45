"""Granite: each multiplier, ties, biases."""

from typing import Any

FAMILY = "granite"
CASES: dict[str, dict[str, Any]] = {
    "grouped, tied, all multipliers": {
        "tie_word_embeddings": True, "embedding_multiplier": 1.7, "residual_multiplier": 0.6,
        "attention_multiplier": 0.2, "logits_scaling": 3,
    },
    "multi-head, biases": {
        "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True,
        "embedding_multiplier": 12, "residual_multiplier": 0.22, "attention_multiplier": 0.0625,
    },
    "multi-query, no multipliers, large epsilon, other theta": {
        "num_key_value_heads": 1, "rms_norm_eps": 1e-2, "rope_theta": 5000000.0,
    },
}  # fmt: skip
