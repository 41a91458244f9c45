"""GPT-NeoX: both orders of its halves, the rotary share of a head, biases, ties, rope scaling."""

from typing import Any

FAMILY = "gpt_neox"
USES_COMMON = False
_SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "initializer_range": 0.2,  # with less, models as small as these say one token for ever
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "side by side": _SIZES,
    "in turn, all rotary, tied": {
        **_SIZES, "use_parallel_residual": False, "rotary_pct": 1.0, "tie_word_embeddings": True,
    },
    "no biases, half rotary, other base, tanh gelu, large epsilon": {
        **_SIZES, "attention_bias": False, "rotary_pct": 0.5, "rotary_emb_base": 500.0,
        "hidden_act": "gelu_fast", "layer_norm_eps": 1e-2,
    },
    "linear": {**_SIZES, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "yarn": {
        **_SIZES, "rotary_pct": 0.5,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24,
        },
    },
}  # fmt: skip
