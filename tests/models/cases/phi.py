"""Phi: the rotary share of a head, ties, grouped heads, rope scaling."""

from typing import Any

FAMILY = "phi"
CASES: dict[str, dict[str, Any]] = {
    "multi-head, half rotary": {"num_key_value_heads": 4},
    "grouped, tied, all rotary, other theta": {
        "tie_word_embeddings": True,
        "partial_rotary_factor": 1.0,
        "rope_theta": 500.0,
    },
    "multi-query, quarter rotary, relu, large epsilon": {
        "num_key_value_heads": 1,
        "partial_rotary_factor": 0.25,
        "hidden_act": "relu",
        "layer_norm_eps": 1e-2,
    },
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
}
