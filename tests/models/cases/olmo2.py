"""OLMo 2: norms over all heads, with as many key heads and with fewer; biases, other bases."""

from typing import Any

FAMILY = "olmo2"
CASES: dict[str, dict[str, Any]] = {
    "multi-head, biases": {"hidden_size": 128, "num_key_value_heads": 4, "attention_bias": True},
    "grouped, tied": {"tie_word_embeddings": True},
    "multi-query, large epsilon, other theta": {
        "num_key_value_heads": 1, "rms_norm_eps": 1e-2, "rope_theta": 500000.0,
    },
    "yarn, relu": {
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24,
        },
        "hidden_act": "relu",
    },
}  # fmt: skip
