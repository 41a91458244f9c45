"""Seed-OSS: biases of each product on and off, its own head size."""

from typing import Any

FAMILY = "seed_oss"
CASES: dict[str, dict[str, Any]] = {
    "grouped, biases of q, k and v": {"head_dim": 16},
    "multi-query, tied, no biases": {
        "num_key_value_heads": 1, "head_dim": 24, "attention_bias": False,
        "tie_word_embeddings": True, "rope_theta": 10000000.0,
    },
    "multi-head, all biases, large epsilon": {
        "num_key_value_heads": 4, "head_dim": 16, "attention_out_bias": True, "mlp_bias": True,
        "rms_norm_eps": 1e-2,
    },
    "yarn, head_dim of 128": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}
    },
}  # fmt: skip
