"""Phi-3: fused tensors, partially rotated heads, windows, and the short factors of longrope."""

from typing import Any

FAMILY = "phi3"


def _longrope(pairs: int, **more: Any) -> dict[str, Any]:
    """Short factors that are not 1, so that leaving them out would be seen."""
    short = [1.0 + 0.1 * i for i in range(pairs)]
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": [2.0 * f for f in short],
        **more,
    }


CASES: dict[str, dict[str, Any]] = {
    "multi-head, window of 5": {"num_key_value_heads": 4, "sliding_window": 5},
    "grouped, tied, three quarters rotary": {
        "tie_word_embeddings": True, "partial_rotary_factor": 0.75, "hidden_size": 128,
    },
    "multi-query, longrope": {
        "num_key_value_heads": 1, "original_max_position_embeddings": 48,
        "rope_scaling": _longrope(8),
    },
    "longrope, half rotary": {
        "partial_rotary_factor": 0.5, "original_max_position_embeddings": 64,
        "max_position_embeddings": 256, "rope_scaling": _longrope(4),
    },
    "longrope, own factors": {
        "original_max_position_embeddings": 48,
        "rope_scaling": _longrope(8, attention_factor=1.3, factor=7.0),
    },
}  # fmt: skip
