"""gpt-oss: sinks, windows in turn, yarn or none, numbers of experts."""

from typing import Any

FAMILY = "gpt_oss"
COMMON: dict[str, Any] = {"sliding_window": 5, "head_dim": 16, "intermediate_size": 24}
CASES: dict[str, dict[str, Any]] = {
    "two of six, window of 5 in turn, yarn": COMMON
    | {"num_local_experts": 6, "num_experts_per_tok": 2},
    "one of three, named layers, no biases, tied": COMMON
    | {
        "num_local_experts": 3, "num_experts_per_tok": 1,
        "layer_types": ["full_attention", "full_attention", "sliding_attention"],
        "attention_bias": False, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "all of four, multi-query, large epsilon, own yarn": COMMON
    | {
        "num_local_experts": 4, "num_experts_per_tok": 4, "num_key_value_heads": 1,
        "rms_norm_eps": 1e-2,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "truncate": False,
            "original_max_position_embeddings": 24,
        },
    },
}  # fmt: skip
