"""Ministral 3: yarn with and without scaled queries, within the original context."""

from typing import Any

FAMILY = "ministral3"


def _rope(**fields: Any) -> dict[str, Any]:
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "llama_4_scaling_beta": 0.1}
    return {"rope_parameters": {**yarn, "original_max_position_embeddings": 48, **fields}}


CASES: dict[str, dict[str, Any]] = {
    "grouped, yarn": {"head_dim": 16, **_rope()},
    "multi-query, tied, own head_dim, window of 5": {
        "num_key_value_heads": 1, "head_dim": 24, "tie_word_embeddings": True, "sliding_window": 5,
        **_rope(mscale=1.0, mscale_all_dim=1.0),
    },
    "multi-head, queries do not grow, other theta": {
        "num_key_value_heads": 4, "head_dim": 16,
        **_rope(llama_4_scaling_beta=0.0, rope_theta=500.0),
    },
}  # fmt: skip
