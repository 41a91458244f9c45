"""StableLM: both orders of its halves, the rotary share of a head, biases, ties."""

from typing import Any

FAMILY = "stablelm"
CASES: dict[str, dict[str, Any]] = {
    "multi-head, quarter rotary, biases": {"num_key_value_heads": 4, "use_qkv_bias": True},
    "side by side, grouped, tied": {"use_parallel_residual": True, "tie_word_embeddings": True},
    "multi-query, all rotary, other theta, large epsilon": {
        "num_key_value_heads": 1, "partial_rotary_factor": 1.0, "rope_theta": 500.0,
        "layer_norm_eps": 1e-2,
    },
}  # fmt: skip
