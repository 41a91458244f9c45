"""Qwen3 with experts: weights normalised or not, layers without experts, windows."""

from typing import Any

FAMILY = "qwen3_moe"
CASES: dict[str, dict[str, Any]] = {
    "two of six, not normalised, head_dim of 16": {
        "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "head_dim": 16,
    },
    "three of five, normalised, layer 1 dense, biases, tied": {
        "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
        "norm_topk_prob": True, "mlp_only_layers": [1], "attention_bias": True, "head_dim": 16,
        "tie_word_embeddings": True,
    },
    "every other layer, window of 5, multi-query": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "decoder_sparse_step": 2, "use_sliding_window": True, "sliding_window": 5,
        "num_key_value_heads": 1, "head_dim": 24,
    },
}  # fmt: skip
