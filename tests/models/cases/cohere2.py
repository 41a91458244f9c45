"""Cohere 2: windows by pattern and by name, layers without positions, the scale of logits."""

from typing import Any

FAMILY = "cohere2"
CASES: dict[str, dict[str, Any]] = {
    "grouped, tied, three of four layers slide": {"num_hidden_layers": 4, "sliding_window": 5},
    "multi-query, untied, biases, pattern of 2": {
        "num_key_value_heads": 1, "tie_word_embeddings": False, "attention_bias": True,
        "sliding_window": 4, "sliding_window_pattern": 2, "logit_scale": 0.25,
    },
    "multi-head, named layers, large epsilon, other theta": {
        "num_key_value_heads": 4, "sliding_window": 6,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "layer_norm_eps": 1e-2, "rope_theta": 50000.0, "logit_scale": 1.0,
    },
    "yarn": {
        "sliding_window": 64, "tie_word_embeddings": False,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24,
        },
    },
}  # fmt: skip
