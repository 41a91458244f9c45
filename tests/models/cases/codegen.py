"""CodeGen: the rotary share of a head, heads beyond the four parts, ties, its own MLP width."""

from typing import Any

FAMILY = "codegen"
USES_COMMON = False
_SIZES = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 96, "rotary_dim": 8}
CASES: dict[str, dict[str, Any]] = {
    "half rotary": _SIZES,
    "all rotary, two heads in a part, inner of 80, relu": {
        **_SIZES, "n_head": 8, "rotary_dim": 8, "n_inner": 80, "activation_function": "relu",
    },
    "one rotary pair, tied, large epsilon": {
        **_SIZES, "rotary_dim": 2, "tie_word_embeddings": True, "layer_norm_epsilon": 1e-2,
        "initializer_range": 0.2,  # with less, it says one token for ever
    },
}  # fmt: skip
