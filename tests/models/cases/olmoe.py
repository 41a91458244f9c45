"""OLMoE: norms over all heads, numbers of experts."""

from typing import Any

FAMILY = "olmoe"
CASES: dict[str, dict[str, Any]] = {
    "two of six, grouped": {"num_experts": 6, "num_experts_per_tok": 2},
    "three of four, normalised, multi-head, tied, biases": {
        "num_experts": 4, "num_experts_per_tok": 3, "norm_topk_prob": True,
        "num_key_value_heads": 4, "tie_word_embeddings": True, "attention_bias": True,
    },
    "one of three, multi-query, large epsilon": {
        "num_experts": 3, "num_experts_per_tok": 1, "num_key_value_heads": 1, "rms_norm_eps": 1e-2,
    },
}  # fmt: skip
