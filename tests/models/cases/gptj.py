"""GPT-J: the rotary share of a head, ties, its own MLP width."""

from typing import Any

FAMILY = "gptj"
USES_COMMON = False
_SIZES = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 96, "rotary_dim": 8}
CASES: dict[str, dict[str, Any]] = {
    "half rotary": _SIZES,
    "all rotary, tied": {**_SIZES, "rotary_dim": 16, "tie_word_embeddings": True},
    "one rotary pair, three heads, inner of 80, relu, large epsilon": {
        **_SIZES, "n_embd": 60, "n_head": 3, "rotary_dim": 2, "n_inner": 80,
        "activation_function": "relu", "layer_norm_epsilon": 1e-2,
    },
}  # fmt: skip
