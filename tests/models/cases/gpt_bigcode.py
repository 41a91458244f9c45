"""GPT-BigCode: ties, scores that are not scaled, its own MLP width."""

from typing import Any

FAMILY = "gpt_bigcode"
USES_COMMON = False
_SIZES = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 96, "initializer_range": 0.1}
CASES: dict[str, dict[str, Any]] = {
    "multi-query": _SIZES,
    "untied, large epsilon": {**_SIZES, "tie_word_embeddings": False, "layer_norm_epsilon": 1e-2},
    "multi-query, not scaled, inner of 80, relu": {
        **_SIZES, "scale_attn_weights": False, "n_inner": 80, "activation_function": "relu",
    },
}  # fmt: skip
