"""Fields of published config.json files, with those that no decoder reads."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bass.checkpoints.weights import dummy_index
from bass.models import FAMILIES
from models.cases import COMMON

SLIDES = ["sliding_attention"] * 3 + ["full_attention"]
PUBLISHED: dict[str, dict[str, Any]] = {
    "SmolLM3-3B": {
        "model_type": "smollm3",
        "max_position_embeddings": 65536,
        "max_window_layers": 28,
        "no_rope_layers": [1, 1, 1, 0],
        "no_rope_layer_interval": 4,
        "layer_types": ["full_attention"] * 4,
        "pretraining_tp": 2,
        "rope_scaling": None,
        "rope_theta": 5000000.0,
        "sliding_window": None,
        "use_sliding_window": False,
    },
    "OLMo-2-1124-7B": {
        "model_type": "olmo2",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 500000,
    },
    "Olmo-3-7B": {
        "model_type": "olmo3",
        "max_position_embeddings": 65536,
        "rms_norm_eps": 1e-06,
        "sliding_window": 4096,
        "layer_types": SLIDES,
        "rope_theta": 500000,
        "rope_scaling": {
            "attention_factor": 1.2079441541679836,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "yarn",
        },
    },
    "granite-3.1-8b": {
        "model_type": "granite",
        "attention_multiplier": 0.0078125,
        "embedding_multiplier": 12.0,
        "logits_scaling": 16.0,
        "residual_multiplier": 0.22,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "rope_scaling": None,
        "rope_theta": 10000000.0,
    },
    "GLM-4-9B-0414": {
        "model_type": "glm4",
        "attention_bias": False,
        "head_dim": 16,
        "eos_token_id": [1, 2, 3],
        "max_position_embeddings": 32768,
        "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-05,
    },
    "c4ai-command-r7b-12-2024": {
        "model_type": "cohere2",
        "cache_implementation": "hybrid",
        "head_dim": 16,
        "layer_norm_eps": 1e-05,
        "layer_switch": 4,
        "logit_scale": 0.25,
        "max_position_embeddings": 132096,
        "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj",
        "rope_scaling": None,
        "rope_theta": 50000,
        "rotary_pct": 1.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "use_embedding_sharing": True,
        "use_gated_activation": True,
        "use_parallel_block": True,
        "use_parallel_embedding": False,
        "use_qk_norm": False,
    },
    "Seed-OSS-36B": {
        "model_type": "seed_oss",
        "attention_bias": True,
        "attention_dropout": 0.1,
        "attention_out_bias": False,
        "head_dim": 16,
        "max_position_embeddings": 524288,
        "mlp_bias": False,
        "residual_dropout": 0.1,
        "rope_scaling": {"rope_type": "default"},
        "rope_theta": 10000000.0,
    },
    "EXAONE-4.0-32B": {
        "model_type": "exaone4",
        "head_dim": 16,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "sliding_window_pattern": "LLLG",
        "layer_types": SLIDES,
        "rope_theta": 1000000,
        "rope_scaling": {
            "factor": 16.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    },
    "EXAONE-4.0-1.2B": {
        "model_type": "exaone4",
        "head_dim": 16,
        "sliding_window": None,
        "sliding_window_pattern": None,
        "layer_types": ["full_attention"] * 4,
        "tie_word_embeddings": True,
    },
    "ERNIE-4.5-0.3B": {
        "model_type": "ernie4_5",
        "head_dim": 16,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000,
        "use_bias": False,
        "compression_ratio": 1.0,
    },
    "Hunyuan-7B-Instruct": {
        "model_type": "hunyuan_v1_dense",
        "attention_head_dim": 16,
        "head_dim": 16,
        "cla_share_factor": 2,
        "max_position_embeddings": 262144,
        "mlp_bias": False,
        "norm_type": "rms",
        "num_experts": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "alpha": 1000.0,
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 0.0,
            "type": "dynamic",
        },
        "rope_theta": 10000.0,
        "use_cla": False,
        "use_qk_norm": True,
        "use_rotary_pos_emb": True,
    },
    "falcon-40b": {
        "model_type": "falcon",
        "alibi": False,
        "apply_residual_connection_post_layernorm": False,
        "layer_norm_epsilon": 1e-05,
        "max_position_embeddings": 2048,
        "multi_query": True,
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "parallel_attn": True,
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_is_read(name: str, tmp_path: Path) -> None:
    """In small sizes: every other field is as published."""
    config = COMMON | {"num_hidden_layers": 4} | PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    decoder = dummy_index(tmp_path).load(torch.device("cpu"), torch.float32)
    assert type(decoder) is FAMILIES[config["model_type"]]
    length = config["max_position_embeddings"]
    assert decoder.shape.max_positions == length
    slides = config.get("layer_types") == SLIDES or "sliding_window_pattern" in config
    windows = [rule.window for rule in decoder.shape.rules]
    slides = slides and config["sliding_window"] is not None
    assert windows == ([4096] * 3 + [None] if slides else [None] * 4)
