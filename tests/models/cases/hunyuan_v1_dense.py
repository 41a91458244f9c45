"""HunYuan, dense: groups of heads, ties, biases, the base of its own rope scaling."""

from typing import Any

FAMILY = "hunyuan_v1_dense"
CASES: dict[str, dict[str, Any]] = {
    "grouped, untied, head_dim of 128": {"head_dim": 128},
    "multi-query, tied, biases, dynamic by alpha": {
        "num_key_value_heads": 1, "head_dim": 16, "tie_word_embeddings": True,
        "attention_bias": True,
        "rope_scaling": {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0},
    },
    "multi-head, yarn, large epsilon": {
        "num_key_value_heads": 4, "head_dim": 16, "rms_norm_eps": 1e-2,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24,
        },
    },
}  # fmt: skip
