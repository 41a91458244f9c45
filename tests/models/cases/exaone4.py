"""EXAONE 4: windows by pattern and by name, no windows at all, layers without positions."""

from typing import Any

FAMILY = "exaone4"
CASES: dict[str, dict[str, Any]] = {
    "grouped, untied, three of four layers slide": {"num_hidden_layers": 4, "sliding_window": 5},
    "multi-query, tied, no windows": {
        "num_key_value_heads": 1, "hidden_size": 32, "tie_word_embeddings": True,
        "sliding_window": None, "layer_types": ["full_attention"] * 3,
    },
    "multi-head, named layers, large epsilon, llama3": {
        "num_key_value_heads": 4, "sliding_window": 4, "sliding_window_pattern": "LGL",
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rms_norm_eps": 1e-2,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 24,
        },
    },
}  # fmt: skip
