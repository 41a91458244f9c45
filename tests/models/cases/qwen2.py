"""Qwen2: windows in the upper layers, by number and by name, off by default; yarn, as the long
variants use it.
"""

from typing import Any

FAMILY = "qwen2"
CASES: dict[str, dict[str, Any]] = {
    "grouped, tied, large theta": {"tie_word_embeddings": True, "rope_theta": 1000000.0},
    "multi-query, window switched off": {
        "num_key_value_heads": 1, "sliding_window": 4, "max_window_layers": 1,
    },
    "window of 5 from layer 1 on": {
        "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1,
    },
    "window of 4 in named layers": {
        "use_sliding_window": True, "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "multi-head, yarn": {
        "num_key_value_heads": 4,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24,
        },
    },
}  # fmt: skip
