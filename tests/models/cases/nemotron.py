"""Nemotron: the rotary share of a head, biases, ties, rope scaling."""

from typing import Any

FAMILY = "nemotron"
CASES: dict[str, dict[str, Any]] = {
    "grouped, half rotary": {"initializer_range": 0.2},
    "multi-head, all rotary, tied, biases": {
        "num_key_value_heads": 4, "partial_rotary_factor": 1.0, "tie_word_embeddings": True,
        "attention_bias": True, "mlp_bias": True,
    },
    "multi-query, own head_dim, gelu, large epsilon": {
        "num_key_value_heads": 1, "head_dim": 24, "hidden_act": "gelu", "norm_eps": 1e-2,
    },
    "yarn": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}
    },
}  # fmt: skip
