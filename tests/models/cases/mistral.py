"""Mistral: windows shorter and longer than the prompt, and none."""

from typing import Any

FAMILY = "mistral"
CASES: dict[str, dict[str, Any]] = {
    "grouped, window of 5": {"num_key_value_heads": 2, "sliding_window": 5},
    "multi-query, window of 64": {"num_key_value_heads": 1, "sliding_window": 64},
    "no window, own head_dim, tied": {
        "num_key_value_heads": 2, "sliding_window": None, "head_dim": 24,
        "tie_word_embeddings": True,
    },
}  # fmt: skip
