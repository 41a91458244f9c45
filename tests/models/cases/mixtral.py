"""Mixtral: two of eight experts, one of three, all of them; windows."""

from typing import Any

FAMILY = "mixtral"
CASES: dict[str, dict[str, Any]] = {
    "two of eight, grouped": {},
    "one of three, window of 5, tied": {
        "num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": 5,
        "tie_word_embeddings": True,
    },
    "all of four, multi-query, own head_dim, large epsilon": {
        "num_local_experts": 4, "num_experts_per_tok": 4, "num_key_value_heads": 1, "head_dim": 24,
        "rms_norm_eps": 1e-2,
    },
}  # fmt: skip
