"""SmolLM 3: layers without rotary embedding, by interval and by name; windows in them."""

from typing import Any

FAMILY = "smollm3"
CASES: dict[str, dict[str, Any]] = {
    "grouped, tied, fourth layer without rotary": {"num_hidden_layers": 4},
    "multi-query, untied, named layers, biases": {
        "num_key_value_heads": 1, "tie_word_embeddings": False, "no_rope_layers": [0, 1, 0],
        "attention_bias": True, "mlp_bias": True,
    },
    "window of 5 in every other layer": {
        "no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 5,
    },
    "multi-head, yarn, large epsilon": {
        "num_key_value_heads": 4, "no_rope_layers": [1, 1, 0], "rms_norm_eps": 1e-2,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24,
        },
    },
}  # fmt: skip
