"""A config.json as people write it and as models are published, against what `transformers` reads
in it: defaults, windows, rotary layers, every form of a field, and what no decoder here computes.
"""

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bass.checkpoints.weights import dummy_index, load_decoder
from bass.errors import CheckpointError
from bass.models import FAMILIES
from models.cases import CASES, COMMON
from models.reference import causal_logits

CPU = torch.device("cpu")
FULL, SLIDES = "full_attention", "sliding_attention"


def config_of(family: str, fields: dict[str, Any]) -> Any:
    return FAMILIES[family].config_type.from_json({"model_type": family, **fields})


def write(folder: Path, family: str, change: dict[str, Any]) -> dict[str, Any]:
    """A file in the form that `transformers` writes, with a change by hand."""
    case = next(c for c in CASES if c.family == family)
    raw = AutoConfig.for_model(family, **case.arguments).to_dict() | {"model_type": family}
    raw |= change
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    return raw


WRITTEN: dict[str, tuple[str, dict[str, Any]]] = {
    "kinds of layers in mistral": ("mistral", {"layer_types": [FULL, SLIDES, FULL]}),
    "no kinds in mistral": ("mistral", {"layer_types": None}),
    "yarn by default": ("ministral3", {"rope_parameters": None}),
    "yarn by default with a base": ("ministral3", {"rope_parameters": None, "rope_theta": 55.0}),
    "as many heads of keys": ("qwen2", {"num_key_value_heads": None}),
    "heads of keys and their size": ("seed_oss", {"num_key_value_heads": None, "head_dim": None}),
    "size of heads": ("ernie4_5", {"head_dim": None}),
    "two names of the base": (
        "gpt_neox", {"rope_parameters": None, "rotary_emb_base": 300.0, "rope_theta": 55.0},
    ),
    "two names of the share": (
        "gpt_neox", {"rope_parameters": None, "rotary_pct": 0.5, "partial_rotary_factor": 0.25},
    ),
    "causal": ("qwen2", {"is_causal": True}),
}  # fmt: skip


@pytest.mark.parametrize("what", WRITTEN)
def test_it_computes_what_transformers_reads(what: str, tmp_path: Path) -> None:
    raw = write(tmp_path, *WRITTEN[what])
    config = AutoConfig.from_pretrained(tmp_path)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape) * (0.15 if p.dim() > 1 else 0.3))
        model.save_pretrained(tmp_path)
        (tmp_path / "config.json").write_text(json.dumps(raw), encoding="utf-8")
        tokens = torch.randint(0, raw["vocab_size"], (2, 40))
        theirs = model(tokens, use_cache=False).logits
    ours = causal_logits(load_decoder(tmp_path, CPU, torch.float32), tokens)
    assert float((ours - theirs).abs().max()) <= 1e-4 * float(theirs.abs().max())


@pytest.mark.parametrize("family", ["qwen2", "llama", "gpt2", "gemma2"])
def test_a_model_that_attends_both_ways_is_refused(family: str, tmp_path: Path) -> None:
    write(tmp_path, family, {"is_causal": False})
    with pytest.raises(CheckpointError, match=r"has `is_causal=False`; for .* supports: True"):
        dummy_index(tmp_path)


# what another test compares, or one of the two computes elsewhere
APART = {
    "rope_theta", "rope_scaling", "rope_local_base_freq", "partial_rotary_factor", "layer_types",
    "no_rope_layers", "sliding_window_pattern", "sliding_window", "num_kv_heads",
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_an_absent_field_has_the_default_of_transformers(family: str) -> None:
    kind = FAMILIES[family].config_type
    # heads that all default numbers of key heads divide, with dimensions for all shares of rotary
    common = COMMON | {"num_attention_heads": 32, "hidden_size": 4096}
    stored = kind.json_names()
    needed = {stored[f.name]: common[f.name] for f in fields(kind) if f.default is MISSING}
    if family == "granitemoehybrid":
        needed |= {"layer_types": ["attention"] * 3, "num_local_experts": 0}
    theirs, ours = AutoConfig.for_model(family, **needed), config_of(family, needed)
    if rope := getattr(theirs, "rope_parameters", None):
        assert ours.rope_theta == rope.get(FULL, rope)["rope_theta"]
    sizes = {"num_key_value_heads": ours.num_attention_heads, "intermediate_size": 4 * 4096}
    sizes["head_dim"] = ours.hidden_size // ours.num_attention_heads
    for name, own in stored.items():
        if own not in APART and hasattr(theirs, own):
            their = getattr(theirs, own)
            their = tuple(their) if isinstance(their, list) else their
            assert getattr(ours, name) == (sizes.get(name) if their is None else their), name
    assert [rule.window for rule in ours.rules] == windows(theirs, len(ours.rules))


def windows(theirs: Any, layers: int) -> list[int | None]:
    """The window of each layer, by a config of `transformers`."""
    window, kinds = getattr(theirs, "sliding_window", None), getattr(theirs, "layer_types", None)
    return [window if kinds is None or kinds[layer] == SLIDES else None for layer in range(layers)]


# As files have them: `transformers` writes another form than it reads.
WINDOWS: list[tuple[str, dict[str, Any]]] = [
    ("qwen2", {"use_sliding_window": False, "sliding_window": 4, "max_window_layers": 1}),
    ("qwen3", {"sliding_window": 4, "max_window_layers": 0}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 1}),
    ("mistral", {"sliding_window": None}),
    ("mistral", {}),
    ("ministral", {}),
    ("ministral", {"sliding_window": 7}),
    ("ministral", {"sliding_window": 7, "layer_types": [FULL, SLIDES, FULL]}),
    ("phi3", {"sliding_window": 7}),
    ("starcoder2", {"sliding_window": 7}),
    ("gemma2", {"sliding_window": 4, "cache_implementation": "hybrid"}),
    ("gemma3_text", {"sliding_window": 4, "num_hidden_layers": 13}),
    ("gemma3_text", {"sliding_window": 4, "num_hidden_layers": 13, "sliding_window_pattern": 4}),
    ("cohere2", {"sliding_window": 4, "num_hidden_layers": 9}),
    ("cohere2", {"sliding_window": 4, "num_hidden_layers": 9, "sliding_window_pattern": 2}),
    ("olmo3", {"sliding_window": 4, "num_hidden_layers": 9}),
    ("smollm3", {"sliding_window": 4, "num_hidden_layers": 9}),
    ("smollm3", {"use_sliding_window": True, "sliding_window": 4, "num_hidden_layers": 9}),
    ("exaone4", {"sliding_window": 4, "num_hidden_layers": 9}),
    ("exaone4", {"sliding_window": 4, "num_hidden_layers": 9, "sliding_window_pattern": 3}),
]


@pytest.mark.parametrize(("family", "given"), WINDOWS, ids=str)
def test_windows_are_those_that_transformers_reads(family: str, given: dict[str, Any]) -> None:
    raw = {**COMMON, **given}
    theirs = windows(AutoConfig.for_model(family, **raw), raw["num_hidden_layers"])
    assert [rule.window for rule in config_of(family, raw).rules] == theirs


def test_layers_without_rotary_embedding_are_those_of_the_file() -> None:
    def rotated(family: str, given: dict[str, Any]) -> list[bool]:
        config = config_of(family, {**COMMON, "num_hidden_layers": 4, **given})
        return [r is not None for r in FAMILIES[family](config).rotations(torch.arange(5)[None])]

    assert rotated("smollm3", {}) == [True, True, True, False]
    assert rotated("smollm3", {"no_rope_layer_interval": 2}) == [True, False, True, False]
    assert rotated("smollm3", {"no_rope_layers": [0, 1, 1, 1]}) == [False, True, True, True]
    assert rotated("cohere2", {}) == [True, True, True, False]
    assert rotated("exaone4", {"sliding_window_pattern": "LG"}) == [True, False, True, False]
    letters = {"sliding_window": 4, "sliding_window_pattern": "LLGL", "num_hidden_layers": 6}
    assert rotated("exaone4", letters) == [True, True, False, True, True, True]
    windows = [rule.window for rule in config_of("exaone4", {**COMMON, **letters}).rules]
    assert windows == [4, 4, None, 4, 4, 4]
    assert all(rotated("exaone4", {"sliding_window": None, "sliding_window_pattern": None}))
    with pytest.raises(CheckpointError, match="is 'LXG': write it with L"):
        rotated("exaone4", letters | {"sliding_window_pattern": "LXG"})


# Published files in small sizes, with the fields that no decoder reads; and the layers' windows.
THREE_OF_FOUR, NONE = [4096, 4096, 4096, None], [None] * 4
PUBLISHED: dict[str, tuple[str, list[int | None], dict[str, Any]]] = {
    "SmolLM3-3B": ("smollm3", NONE, {
        "max_position_embeddings": 65536, "max_window_layers": 28, "no_rope_layers": [1, 1, 1, 0],
        "no_rope_layer_interval": 4, "layer_types": [FULL] * 4, "pretraining_tp": 2,
        "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None,
        "use_sliding_window": False}),
    "OLMo-2-1124-7B": ("olmo2", NONE, {
        "max_position_embeddings": 4096, "rope_scaling": None, "rope_theta": 500000}),
    "Olmo-3-7B": ("olmo3", THREE_OF_FOUR, {
        "max_position_embeddings": 65536, "layer_types": [SLIDES] * 3 + [FULL],
        "sliding_window": 4096, "rope_theta": 500000, "rope_scaling": {
            "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0,
            "factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "yarn"}}),
    "granite-3.1-8b": ("granite", NONE, {
        "attention_multiplier": 0.0078125, "embedding_multiplier": 12.0, "logits_scaling": 16.0,
        "residual_multiplier": 0.22, "max_position_embeddings": 131072, "rope_scaling": None}),
    "GLM-4-9B-0414": ("glm4", NONE, {
        "attention_bias": False, "head_dim": 16, "eos_token_id": [1, 2, 3],
        "max_position_embeddings": 32768, "partial_rotary_factor": 0.5, "rope_theta": 10000.0}),
    "c4ai-command-r7b-12-2024": ("cohere2", THREE_OF_FOUR, {
        "cache_implementation": "hybrid", "head_dim": 16, "layer_switch": 4, "logit_scale": 0.25,
        "max_position_embeddings": 132096, "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj", "rotary_pct": 1.0, "sliding_window": 4096,
        "sliding_window_pattern": 4, "use_embedding_sharing": True, "use_gated_activation": True,
        "use_parallel_block": True, "use_parallel_embedding": False, "use_qk_norm": False}),
    "Seed-OSS-36B": ("seed_oss", NONE, {
        "attention_bias": True, "attention_dropout": 0.1, "attention_out_bias": False,
        "head_dim": 16, "max_position_embeddings": 524288, "residual_dropout": 0.1,
        "rope_scaling": {"rope_type": "default"}, "rope_theta": 10000000.0}),
    "EXAONE-4.0-32B": ("exaone4", THREE_OF_FOUR, {
        "head_dim": 16, "max_position_embeddings": 131072, "sliding_window": 4096,
        "sliding_window_pattern": "LLLG", "layer_types": [SLIDES] * 3 + [FULL],
        "rope_theta": 1000000, "rope_scaling": {
            "factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"}}),
    "EXAONE-4.0-1.2B": ("exaone4", NONE, {
        "head_dim": 16, "sliding_window": None, "sliding_window_pattern": None,
        "layer_types": [FULL] * 4, "tie_word_embeddings": True}),
    "ERNIE-4.5-0.3B": ("ernie4_5", NONE, {
        "head_dim": 16, "max_position_embeddings": 131072, "use_bias": False,
        "compression_ratio": 1.0}),
    "Hunyuan-7B-Instruct": ("hunyuan_v1_dense", NONE, {
        "attention_head_dim": 16, "head_dim": 16, "cla_share_factor": 2, "mlp_bias": False,
        "max_position_embeddings": 262144, "norm_type": "rms", "num_experts": 1, "use_cla": False,
        "use_qk_norm": True, "use_rotary_pos_emb": True, "rope_scaling": {
            "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0,
            "mscale_all_dim": 0.0, "type": "dynamic"}}),
    "falcon-40b": ("falcon", NONE, {
        "alibi": False, "apply_residual_connection_post_layernorm": False, "multi_query": True,
        "new_decoder_architecture": True, "num_kv_heads": 2, "parallel_attn": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_is_read(name: str, tmp_path: Path) -> None:
    family, seen, given = PUBLISHED[name]
    config = COMMON | {"num_hidden_layers": 4, "model_type": family} | given
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    decoder = dummy_index(tmp_path).load(CPU, torch.float32)
    assert type(decoder) is FAMILIES[family]
    assert decoder.shape.max_positions == config["max_position_embeddings"]
    assert [rule.window for rule in decoder.shape.rules] == seen


@pytest.mark.parametrize(("beta", "context"), [(0.1, 48), (0.0, 96)])
def test_where_queries_grow_the_context_is_the_original_one(beta: float, context: int) -> None:
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 48}
    config = COMMON | {"rope_parameters": rope | {"llama_4_scaling_beta": beta}}
    assert config_of("ministral3", config).shape.max_positions == context


def test_yarn_without_a_factor_takes_the_ratio_of_the_contexts() -> None:
    rope = {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 24.0}
    scaling = config_of("llama", {**COMMON, "rope_scaling": rope}).rope_scaling
    assert (scaling.factor, scaling.original_max_position_embeddings) == (96 / 24, 24)


GPT = {"n_embd": 60, "n_layer": 1, "n_head": 2}
# of each family: a change of a small config that it does not compute, and the field that is named
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "llama": ({"hidden_act": "swiglu"}, "hidden_act"),
    "qwen2": ({"layer_types": [SLIDES] * 3}, "window"),  # none, because the switch is off
    "qwen3": ({"layer_types": ["chunked_attention"] * 3}, "chunked_attention"),
    "ministral": ({"layer_types": [SLIDES] * 3, "sliding_window": None}, "window"),
    "gemma2": ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    "gemma3_text": ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    "phi3": ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "longrope"),
    "starcoder2": ({"norm_type": "rms_norm"}, "norm_type"),
    "phi": ({"qk_layernorm": True}, "qk_layernorm"),
    "stablelm": ({"qk_layernorm": True}, "qk_layernorm"),
    "olmo3": ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "olmo3 has objects for"),
    "smollm3": ({"no_rope_layers": [1, 0]}, "2 layers of"),
    "cohere2": ({"use_parallel_block": False}, "parallel_block"),
    "exaone4": ({"layer_types": [FULL]}, "1 layer of"),
    "ernie4_5": ({"compression_ratio": 2.0}, "compression_ratio"),
    "falcon": ({"alibi": True}, "alibi"),
    "hunyuan_v1_dense": ({"use_cla": True}, "use_cla"),
    "olmoe": ({"clip_qkv": 8.0}, "clip_qkv"),
    "gpt_oss": ({"swiglu_limit": 5.0}, "swiglu_limit"),
    "gpt2": (GPT | {"add_cross_attention": True}, "add_cross_attention"),
}


@pytest.mark.parametrize("family", REFUSED)
def test_what_a_family_does_not_compute_is_refused(family: str) -> None:
    change, says = REFUSED[family]
    with pytest.raises(CheckpointError, match=says):
        config_of(family, COMMON | change)
