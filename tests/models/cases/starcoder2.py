"""StarCoder 2: windows, ties, biases on and off."""

from typing import Any

FAMILY = "starcoder2"
CASES: dict[str, dict[str, Any]] = {
    "grouped, tied, biases, window of 5": {"sliding_window": 5, "rope_theta": 999999.4420358813},
    "multi-query, untied, no biases": {
        "num_key_value_heads": 1, "tie_word_embeddings": False, "use_bias": False,
    },
    "multi-head, large epsilon, relu": {
        "num_key_value_heads": 4, "norm_epsilon": 1e-2, "hidden_act": "relu",
    },
    "yarn, window of 4": {
        "sliding_window": 4,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24,
        },
    },
}  # fmt: skip
