"""MiMo, which `transformers` has not: its Qwen2, with an own size of heads as MiMo-7B has."""

from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

FAMILY = "mimo"


class MiMoConfig(Qwen2Config):
    model_type = FAMILY


class MiMoForCausalLM(Qwen2ForCausalLM):
    config_class = MiMoConfig


AutoConfig.register(FAMILY, MiMoConfig)
AutoModelForCausalLM.register(MiMoConfig, MiMoForCausalLM)

CASES: dict[str, dict[str, Any]] = {
    "grouped, own head_dim": {"head_dim": 24, "rope_theta": 640000.0},
    "multi-query, tied": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "window of 5 from layer 1 on": {
        "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1,
    },
}  # fmt: skip
