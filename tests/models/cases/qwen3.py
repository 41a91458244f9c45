"""Qwen3: normalised queries and keys, its own head size, biases, windows in the upper layers,
yarn.
"""

from typing import Any

FAMILY = "qwen3"
CASES: dict[str, dict[str, Any]] = {
    "grouped, untied, head_dim of 128": {},
    "multi-query, tied, biases": {
        "num_key_value_heads": 1, "head_dim": 24, "tie_word_embeddings": True,
        "attention_bias": True,
    },
    "window of 5 from layer 1 on": {
        "head_dim": 16, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1,
    },
    "multi-head, yarn, large epsilon": {
        "num_key_value_heads": 4, "head_dim": 16, "rms_norm_eps": 1e-2,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24,
        },
    },
}  # fmt: skip
