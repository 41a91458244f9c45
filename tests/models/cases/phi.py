"""Phi: the rotary share of a head, ties, grouped heads, rope scaling."""

from typing import Any

FAMILY = "phi"
_SHARP = {"initializer_range": 0.5}  # with less, models as small as these say one token for ever
CASES: dict[str, dict[str, Any]] = {
    "multi-head, half rotary": {**_SHARP, "num_key_value_heads": 4},
    "grouped, tied, all rotary, other theta": {
        **_SHARP, "tie_word_embeddings": True, "partial_rotary_factor": 1.0, "rope_theta": 500.0,
    },
    "multi-query, quarter rotary, relu, large epsilon": {
        **_SHARP, "num_key_value_heads": 1, "partial_rotary_factor": 0.25, "hidden_act": "relu",
        "layer_norm_eps": 1e-2,
    },
    "linear": {**_SHARP, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
}  # fmt: skip
