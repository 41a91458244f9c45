"""Granite with experts: the multipliers, numbers of experts."""

from typing import Any

FAMILY = "granitemoe"
CASES: dict[str, dict[str, Any]] = {
    "two of eight, no multipliers but that of scores": {"attention_multiplier": 0.25},
    "one of three, all multipliers, tied": {
        "num_local_experts": 3, "num_experts_per_tok": 1, "embedding_multiplier": 3.0,
        "residual_multiplier": 0.9, "attention_multiplier": 0.1, "logits_scaling": 1.3,
        "tie_word_embeddings": True,
    },
    "all of four, multi-query, biases": {
        "num_local_experts": 4, "num_experts_per_tok": 4, "num_key_value_heads": 1,
        "attention_multiplier": 0.3, "attention_bias": True,
    },
}  # fmt: skip
