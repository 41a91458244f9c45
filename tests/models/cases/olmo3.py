"""OLMo 3: windows by default and by name, yarn in the layers without."""

from typing import Any

FAMILY = "olmo3"
CASES: dict[str, dict[str, Any]] = {
    "multi-head, biases, window of 5 in three of four layers": {
        "hidden_size": 128, "num_key_value_heads": 4, "num_hidden_layers": 4,
        "attention_bias": True, "sliding_window": 5,
    },
    "grouped, tied, named layers, yarn": {
        "tie_word_embeddings": True, "sliding_window": 4,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24,
        },
    },
    "multi-query, rope by kind, large epsilon": {
        "num_key_value_heads": 1, "rms_norm_eps": 1e-2, "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 3000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 3000.0},
        },
    },
}  # fmt: skip
