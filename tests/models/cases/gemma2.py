"""Gemma 2: alternating windows, soft caps on and off, its own scale of scores.

A wide tied embedding, scaled as it is, makes a small random model repeat its last token; a narrow
one with more layers does not.
"""

from typing import Any

FAMILY = "gemma2"
CASES: dict[str, dict[str, Any]] = {
    "grouped, tied, head_dim of 256, caps": {
        "sliding_window": 5, "hidden_size": 16, "num_hidden_layers": 6,
    },
    "multi-query, untied, tight caps, own scale": {
        "num_key_value_heads": 1, "head_dim": 16, "tie_word_embeddings": False,
        "query_pre_attn_scalar": 24, "sliding_window": 4, "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    },
    "multi-head, no caps, named layers, biases": {
        "num_key_value_heads": 4, "head_dim": 24, "tie_word_embeddings": False, "sliding_window": 3,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True,
    },
    "scores capped, logits not, gelu": {
        "tie_word_embeddings": False, "head_dim": 16, "sliding_window": 6,
        "attn_logit_softcapping": 5.0, "final_logit_softcapping": None, "hidden_activation": "gelu",
    },
}  # fmt: skip
