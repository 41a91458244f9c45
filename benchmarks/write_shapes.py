"""Writes the shapes of well-known pairs to benchmarks/shapes/PAIR/{target,draft}/config.json, for
`bass bench --load-format dummy`.

    python benchmarks/write_shapes.py

The values are those of the public config.json files, less what no decoder reads. "paper" is a pair
of the sizes in the BASS paper: a target of 7.7B with a draft of 310M. No weights are needed:

    bass bench --target benchmarks/shapes/llama/target --draft benchmarks/shapes/llama/draft \
        --load-format dummy --methods plain 4 --batches 1 8 --acceptance 0.8
"""

import json
from pathlib import Path
from typing import Any

import command_line as cli

SHAPES = Path(__file__).parent / "shapes"
Config = dict[str, Any]


def gated(
    family: str, vocabulary: int, hidden: int, inner: int, layers: int, heads: tuple[int, int, int],
    context: int, tied: bool, **more: Any,
) -> Config:  # fmt: skip
    """A family with Llama's names. heads: queries, keys, dimensions of each."""
    return {
        "architectures": [f"{family.title().replace('_', '')}ForCausalLM"],
        "model_type": family,
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": heads[2],
        "max_position_embeddings": context,
        "tie_word_embeddings": tied,
        **more,
    }


def opt(hidden: int, inner: int, layers: int, heads: int) -> Config:
    """OPT with norms before, as all sizes but 350M."""
    return {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "vocab_size": 50272,
        "hidden_size": hidden,
        "word_embed_proj_dim": hidden,
        "ffn_dim": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 2048,
        "do_layer_norm_before": True,
        "tie_word_embeddings": True,
    }


def codegen(hidden: int, layers: int, heads: int, rotary: int) -> Config:
    """CodeGen; its MLP is four times as wide as its hidden states."""
    return {
        "architectures": ["CodeGenForCausalLM"],
        "model_type": "codegen",
        "vocab_size": 51200,
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "rotary_dim": rotary,
        "n_positions": 2048,
        "n_ctx": 2048,
        "tie_word_embeddings": False,
    }


LLAMA_3: Config = {"rope_theta": 500000.0, "rms_norm_eps": 1e-5}
QWEN: Config = {"rope_theta": 1000000.0, "rms_norm_eps": 1e-6}
GEMMA: Config = {
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "sliding_window": 4096,
    "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6,
}  # fmt: skip
EXPERTS: Config = {
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
    "norm_topk_prob": True,
}  # fmt: skip
YARN: Config = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
GPT_OSS: Config = {
    "num_local_experts": 32, "num_experts_per_tok": 4, "attention_bias": True,
    "sliding_window": 128, "rope_theta": 150000.0, "rope_scaling": YARN, "rms_norm_eps": 1e-5,
}  # fmt: skip
MIXTRAL: Config = {"rope_theta": 1000000.0, "rms_norm_eps": 1e-5}
PAIRS: dict[str, tuple[Config, Config]] = {
    "paper": (
        gated("llama", 51200, 4096, 11008, 36, (32, 32, 128), 2048, False),
        gated("llama", 51200, 2048, 5632, 4, (32, 32, 64), 2048, True),
    ),
    "llama": (  # Llama 3.1 8B with Llama 3.2 1B, for contexts without scaling of the positions
        gated("llama", 128256, 4096, 14336, 32, (32, 8, 128), 8192, False, **LLAMA_3),
        gated("llama", 128256, 2048, 8192, 16, (32, 8, 64), 8192, True, **LLAMA_3),
    ),
    "qwen3": (  # 8B with 0.6B
        gated("qwen3", 151936, 4096, 12288, 36, (32, 8, 128), 40960, False, **QWEN),
        gated("qwen3", 151936, 1024, 3072, 28, (16, 8, 128), 40960, True, **QWEN),
    ),
    "qwen2.5": (  # 7B with 0.5B, whose vocabularies are padded differently
        gated("qwen2", 152064, 3584, 18944, 28, (28, 4, 128), 32768, False, **QWEN),
        gated("qwen2", 151936, 896, 4864, 24, (14, 2, 64), 32768, True, **QWEN),
    ),
    "gemma2": (  # 9B with 2B
        gated("gemma2", 256000, 3584, 14336, 42, (16, 8, 256), 8192, True, **GEMMA),
        gated("gemma2", 256000, 2304, 9216, 26, (8, 4, 256), 8192, True, **GEMMA),
    ),
    "opt": (opt(5120, 20480, 40, 40), opt(768, 3072, 12, 12)),  # 13B with 125M
    "codegen": (codegen(6144, 34, 24, 64), codegen(1024, 20, 16, 32)),  # 16B with 350M
    "qwen3-moe": (  # 30B-A3B with 0.6B
        gated("qwen3_moe", 151936, 2048, 6144, 48, (32, 4, 128), 40960, False, **QWEN, **EXPERTS),
        gated("qwen3", 151936, 1024, 3072, 28, (16, 8, 128), 40960, True, **QWEN),
    ),
    "mixtral": (  # 8x7B, 93 GB, with a draft in the shape of TinyLlama 1.1B
        gated("mixtral", 32000, 4096, 14336, 32, (32, 8, 128), 32768, False, **MIXTRAL),
        gated("llama", 32000, 2048, 5632, 22, (32, 4, 64), 2048, False, rms_norm_eps=1e-5),
    ),
    "gpt-oss": (  # 20b, with a draft in the shape of Qwen3 0.6B
        gated("gpt_oss", 201088, 2880, 2880, 24, (64, 8, 64), 131072, False, **GPT_OSS),
        gated("qwen3", 201088, 1024, 3072, 28, (16, 8, 128), 40960, True, **QWEN),
    ),
}
EAGLE_3: Config = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000}
DFLASH: Config = {
    "architectures": ["DFlashDraftModel"], "block_size": 16, "num_target_layers": 36,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
}  # fmt: skip
LLAMA_8B, QWEN_8B = PAIRS["llama"][0], PAIRS["qwen3"][0]
# targets with heads that draft from their states; a head's layers have the target's sizes
HEADS: dict[str, tuple[Config, Config]] = {
    "llama-eagle3": (LLAMA_8B, LLAMA_8B | {"num_hidden_layers": 1} | EAGLE_3),
    "qwen3-eagle3": (QWEN_8B, QWEN_8B | {"num_hidden_layers": 1} | EAGLE_3),
    "qwen3-dflash": (QWEN_8B, QWEN_8B | {"num_hidden_layers": 5} | DFLASH),
}
MIXTURES = ("qwen3-moe", "mixtral", "gpt-oss")  # of experts


def context_of(config: Config) -> int:
    """The most tokens of a text."""
    return config["n_positions" if "n_positions" in config else "max_position_embeddings"]


def written(config: Config) -> str:
    """The text of a config.json; weights would be in bfloat16."""
    return json.dumps(config | {"torch_dtype": "bfloat16"}, indent=2) + "\n"


def main(argv: list[str] | None = None) -> None:
    """Write all pairs, those with heads too."""
    cli.Parser(__doc__).parse_args(argv)
    for name, pair in (PAIRS | HEADS).items():
        for role, config in zip(("target", "draft"), pair, strict=True):
            folder = SHAPES / name / role
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text(written(config), encoding="utf-8")


if __name__ == "__main__":
    cli.run(main)
