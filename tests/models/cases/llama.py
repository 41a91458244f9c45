"""Llama: heads, ties, biases, own head sizes, and every kind of rope scaling."""

from typing import Any

FAMILY = "llama"
CASES: dict[str, dict[str, Any]] = {
    "grouped, tied": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "multi-head, untied": {"num_key_value_heads": 4, "tie_word_embeddings": False},
    "multi-query, own head_dim, other theta": {
        "num_key_value_heads": 1, "head_dim": 24, "rope_theta": 500000.0,
    },
    "large epsilon, biases": {
        "num_key_value_heads": 2, "rms_norm_eps": 1e-2, "attention_bias": True, "mlp_bias": True,
    },
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "llama3": {
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
    "yarn": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}
    },
    "yarn, original context next to the others": {
        "original_max_position_embeddings": 32,
        "rope_scaling": {"rope_type": "yarn", "factor": 3.0},
    },
    "llama3, original context next to the others": {
        "original_max_position_embeddings": 16,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        },
    },
    "yarn, own factors": {
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24,
            "attention_factor": 0.8, "beta_fast": 8.0, "beta_slow": 2.0,
        }
    },
}  # fmt: skip
