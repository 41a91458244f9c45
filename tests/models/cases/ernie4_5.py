"""ERNIE 4.5: biases, ties, its own head size."""

from typing import Any

FAMILY = "ernie4_5"
CASES: dict[str, dict[str, Any]] = {
    "grouped, tied, head_dim of 128": {},
    "multi-query, untied, biases": {
        "num_key_value_heads": 1, "head_dim": 24, "tie_word_embeddings": False, "use_bias": True,
    },
    "multi-head, yarn, large epsilon": {
        "num_key_value_heads": 4, "head_dim": 16, "tie_word_embeddings": False,
        "rms_norm_eps": 1e-2,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24,
        },
    },
}  # fmt: skip
