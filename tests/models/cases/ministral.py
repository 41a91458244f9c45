"""Ministral: one window for all layers, windows in named layers, and none.

`transformers` requires `head_dim`, and a window even where no layer has it.
"""

from typing import Any

FAMILY = "ministral"
CASES: dict[str, dict[str, Any]] = {
    "grouped, window of 5": {"sliding_window": 5, "head_dim": 16},
    "multi-query, window of 4 in named layers, tied": {
        "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 4,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "tie_word_embeddings": True,
    },
    "no window, own head_dim, yarn": {
        "sliding_window": 4, "layer_types": ["full_attention"] * 3, "head_dim": 24,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24,
        },
    },
}  # fmt: skip
