"""Gemma 3: a rotary base for each kind of layer, linear scaling of one of them, windows by pattern
and by name.

A wide tied embedding, scaled as it is, makes a small random model repeat its last token; a narrow
one with more layers does not.
"""

from typing import Any

FAMILY = "gemma3_text"
CASES: dict[str, dict[str, Any]] = {
    "grouped, tied, five of six layers slide": {
        "hidden_size": 16, "head_dim": 16, "sliding_window": 5, "num_hidden_layers": 6,
    },
    "multi-query, untied, pattern of 2, own bases": {
        "num_key_value_heads": 1, "head_dim": 24, "tie_word_embeddings": False, "sliding_window": 4,
        "sliding_window_pattern": 2, "rope_theta": 50000.0, "rope_local_base_freq": 100.0,
        "query_pre_attn_scalar": 24,
    },
    "linear, named layers, head_dim of 256": {
        "tie_word_embeddings": False, "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "multi-head, bases by kind, logits capped, biases": {
        "tie_word_embeddings": False, "num_key_value_heads": 4, "head_dim": 24, "sliding_window": 3,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 70000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        },
        "final_logit_softcapping": 3.0, "attention_bias": True,
    },
}  # fmt: skip
