"""Every family with random weights (`load_format="dummy"`), of any size."""

import math

import torch
from write_shapes import Config, codegen, gated, opt

from bass.models.decoder import CausalDecoder
from bass.ops.norms import HeadNorm

CONTEXT = 2048
SHARPER = 2.0


def of_llamas_kind(size: int, inner: int) -> dict[str, Config]:
    """The fields of each family with Llama's names that its sizes do not give."""
    windows: Config = {"query_pre_attn_scalar": size, "sliding_window": CONTEXT // 4}
    caps: Config = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    return {
        "llama": {},
        "mistral": {"sliding_window": None},
        "ministral": {},
        "ministral3": {},
        "qwen2": {},
        "qwen3": {},
        "mimo": {},
        "phi3": {},
        "gemma2": windows | caps,
        "gemma3_text": windows,
        "starcoder2": {},
        "phi": {},
        "nemotron": {},
        "stablelm": {},
        "mixtral": {},
        "qwen3_moe": {"num_experts": 16, "moe_intermediate_size": inner // 4},
        "olmoe": {"num_experts": 16},
        "granitemoe": {"attention_multiplier": size**-0.5},
        "gpt_oss": {"num_local_experts": 16, "sliding_window": CONTEXT // 4},
        "olmo2": {},
        "olmo3": {"sliding_window": CONTEXT // 4},
        "smollm3": {},
        "granite": {"attention_multiplier": size**-0.5},
        "glm4": {},
        "cohere2": {"sliding_window": CONTEXT // 4, "logit_scale": 1.0},
        "seed_oss": {},
        "exaone4": {"sliding_window": CONTEXT // 4},
        "ernie4_5": {},
        "hunyuan_v1_dense": {},
    }


def families(hidden: int, layers: int, vocabulary: int) -> dict[str, Config]:
    """By name; heads have 128 dimensions, or 32 where fewer than four would fit, and the head is
    not tied: a wide tied embedding makes random weights repeat their last token.
    """
    size = 128 if hidden >= 4 * 128 else 32
    heads, inner = hidden // size, 4 * hidden
    kv_heads = math.gcd(heads, max(1, heads // 4))
    grouped, rotary = (heads, kv_heads, size), size // 2

    def llama_like(family: str, **more: object) -> Config:
        sizes = (vocabulary, hidden, inner, layers, grouped, CONTEXT, False)
        return gated(family, *sizes, **more) | {"eos_token_id": 0, "pad_token_id": 0}

    gpt: Config = {
        "vocab_size": vocabulary,
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "n_positions": CONTEXT,
        "tie_word_embeddings": False,
    }
    others: dict[str, Config] = {
        "gpt2": gpt,
        "gpt_bigcode": gpt,
        "gptj": gpt | {"rotary_dim": rotary},
        "codegen": codegen(hidden, layers, heads, rotary) | gpt,
        "opt": opt(hidden, inner, layers, heads)
        | {"vocab_size": vocabulary, "tie_word_embeddings": False},
        "falcon": {
            "vocab_size": vocabulary,
            "hidden_size": hidden,
            "ffn_hidden_size": inner,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_kv_heads": kv_heads,
            "new_decoder_architecture": True,
            "max_position_embeddings": CONTEXT,
            "tie_word_embeddings": False,
        },
        "gpt_neox": {
            "vocab_size": vocabulary,
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "max_position_embeddings": CONTEXT,
            "tie_word_embeddings": False,
        },
    }
    named = {name: llama_like(name, **more) for name, more in of_llamas_kind(size, inner).items()}
    return named | {name: {"model_type": name} | config for name, config in others.items()}


@torch.no_grad()
def sharpen(decoder: CausalDecoder) -> None:
    """Scale the projections of attention, and query-key norms, by `SHARPER`.

    Scores are four times as large and attention adds more to the residual stream, so that the next
    token depends on the whole text. As they are, random weights are almost a function of the last
    token, and a greedy text soon repeats.
    """
    for path, module in decoder.named_modules():
        weight = getattr(module, "weight", None)
        of_heads = isinstance(module, HeadNorm) or ".qk_norm." in path
        if of_heads and weight is not None:
            weight += SHARPER - 1  # random weights scale by 1
        elif ".attention." in path and weight is not None and weight.ndim > 1:
            weight *= SHARPER
