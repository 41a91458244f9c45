"""Falcon: both architectures, one norm and two, biases, ties."""

from typing import Any

FAMILY = "falcon"
USES_COMMON = False
_SIZES = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 96, "initializer_range": 0.1,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "old, multi-query, tied": _SIZES,
    "new, grouped, two norms, biases, untied, inner of 80": {
        **_SIZES, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True,
        "tie_word_embeddings": False, "ffn_hidden_size": 80,
    },
    "new, multi-head, one norm, relu, large epsilon, linear": {
        **_SIZES, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1,
        "activation": "relu",
        "initializer_range": 0.2,  # with less it says one token for ever
        "layer_norm_epsilon": 1e-2, "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    },
}  # fmt: skip
