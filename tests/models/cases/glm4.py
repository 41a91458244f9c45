"""GLM-4: the rotary share of a head, biases, ties."""

from typing import Any

FAMILY = "glm4"
CASES: dict[str, dict[str, Any]] = {
    "grouped, biases, half rotary": {"head_dim": 16},
    "multi-query, no biases, all rotary, tied": {
        "num_key_value_heads": 1, "head_dim": 24, "attention_bias": False,
        "partial_rotary_factor": 1.0, "tie_word_embeddings": True,
    },
    "multi-head, one rotary pair, large epsilon": {
        "num_key_value_heads": 4, "head_dim": 16, "partial_rotary_factor": 0.125,
        "rms_norm_eps": 1e-2,
    },
    "yarn, head_dim of 128": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}
    },
}  # fmt: skip
