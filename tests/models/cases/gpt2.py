"""GPT-2: ties, its own MLP width, scores that are not scaled."""

from typing import Any

FAMILY = "gpt2"
USES_COMMON = False
_SIZES = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 96}
CASES: dict[str, dict[str, Any]] = {
    "tied": _SIZES,
    "untied, inner of 80, relu": {
        **_SIZES, "tie_word_embeddings": False, "n_inner": 80, "activation_function": "relu",
    },
    "large epsilon": {**_SIZES, "layer_norm_epsilon": 1e-2},
    "scores not scaled": {**_SIZES, "scale_attn_weights": False},
}  # fmt: skip
