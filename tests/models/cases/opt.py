"""OPT: norms before and after, embeddings of another size, without biases, without weights in the
norms.
"""

from typing import Any

FAMILY = "opt"
USES_COMMON = False
_SIZES = {
    "hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 96,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "norms before, tied": _SIZES,
    "norms after, projected embeddings (350M)": {
        **_SIZES, "do_layer_norm_before": False, "word_embed_proj_dim": 48,
        "init_std": 0.2,  # with less, it says two tokens for ever
    },
    "projected embeddings, untied, gelu": {
        **_SIZES, "word_embed_proj_dim": 48, "tie_word_embeddings": False,
        "activation_function": "gelu",
    },
    "no biases, plain norms": {
        **_SIZES, "enable_bias": False, "layer_norm_elementwise_affine": False,
    },
}  # fmt: skip
