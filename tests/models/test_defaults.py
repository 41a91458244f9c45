"""What a config.json leaves out means to `bass` what it means to `transformers`."""

import json
import math
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from bass.checkpoints.weights import load_decoder
from bass.errors import CheckpointError
from bass.models import FAMILIES
from bass.models.config import RotaryConfig
from models.cases import COMMON

ROTARY = [name for name, family in FAMILIES.items() if issubclass(family.config_type, RotaryConfig)]


@pytest.mark.parametrize("name", ROTARY)
def test_an_absent_field_has_the_default_of_transformers(name: str) -> None:
    family = FAMILIES[name].config_type
    needed = {f.name: COMMON[f.name] for f in fields(family) if f.default is MISSING}
    # which all default numbers of key heads divide
    needed |= {"num_attention_heads": 32} if "num_attention_heads" in needed else {}
    theirs: Any = AutoConfig.for_model(name, **needed)
    ours: Any = family.from_json({"model_type": name, **needed})
    rope = theirs.rope_parameters
    assert ours.rope_theta == rope.get("full_attention", rope)["rope_theta"]
    elsewhere = {
        "rope_theta",
        "rope_scaling",
        "rope_local_base_freq",
        "partial_rotary_factor",
        "layer_types",
        "no_rope_layers",
        "sliding_window_pattern",
        "sliding_window",
    }
    for field in (
        f.name for f in fields(family) if f.name not in elsewhere and hasattr(theirs, f.name)
    ):
        their = getattr(theirs, field)
        their = tuple(their) if isinstance(their, list) else their
        assert getattr(ours, field) == (derived(ours, field) if their is None else their), field
    assert [rule.window for rule in ours.rules] == windows(theirs, len(ours.rules))


def derived(ours: Any, field: str) -> int | None:
    """The value of a size that `transformers` computes elsewhere."""
    heads = ours.num_attention_heads
    sizes = {"head_dim": ours.hidden_size // heads, "num_key_value_heads": heads}
    return sizes.get(field)


def windows(theirs: Any, layers: int) -> list[int | None]:
    """The window of each layer, by a config of `transformers`."""
    window, kinds = getattr(theirs, "sliding_window", None), getattr(theirs, "layer_types", None)
    return [
        window if kinds is None or kinds[layer] == "sliding_attention" else None
        for layer in range(layers)
    ]


# As files have them: `transformers` writes another form than it reads.
WINDOWS: list[tuple[str, dict[str, Any]]] = [
    ("qwen2", {"use_sliding_window": False, "sliding_window": 4, "max_window_layers": 1}),
    ("qwen3", {"sliding_window": 4, "max_window_layers": 0}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 1}),
    ("mistral", {"sliding_window": None}),
    ("ministral", {"sliding_window": 7}),
    (
        "ministral",
        {
            "sliding_window": 7,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
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


def test_layers_without_rotary_embedding_are_those_of_the_file() -> None:
    positions = torch.arange(5)[None]

    def rotated(name: str, given: dict[str, Any]) -> list[bool]:
        family: Any = FAMILIES[name]
        config = family.config_type.from_json({**COMMON, "num_hidden_layers": 4, **given})
        return [rotation is not None for rotation in family(config).rotations(positions)]

    assert rotated("smollm3", {}) == [True, True, True, False]
    assert rotated("smollm3", {"no_rope_layer_interval": 2}) == [True, False, True, False]
    assert rotated("smollm3", {"no_rope_layers": [0, 1, 1, 1]}) == [False, True, True, True]
    assert rotated("cohere2", {}) == [True, True, True, False]
    assert rotated("exaone4", {"sliding_window_pattern": "LG"}) == [True, False, True, False]
    assert all(rotated("exaone4", {"sliding_window": None, "sliding_window_pattern": None}))


@pytest.mark.parametrize(("name", "given"), WINDOWS, ids=str)
def test_the_windows_of_a_file_are_those_that_transformers_reads_in_it(
    name: str, given: dict[str, Any]
) -> None:
    raw = {**COMMON, **given}
    ours: Any = FAMILIES[name].config_type.from_json({"model_type": name, **raw})
    assert [rule.window for rule in ours.rules] == windows(
        AutoConfig.for_model(name, **raw), raw["num_hidden_layers"]
    )


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": None,
            "layer_types": ["sliding_attention"] * 3,
        },
        "window",
    ),
    # none, because the switch is off
    ("qwen2", {"layer_types": ["sliding_attention"] * 3}, "window"),
    ("qwen3", {"layer_types": ["full_attention"] * 2}, "2 layers"),
    ("qwen3", {"layer_types": ["chunked_attention"] * 3}, "chunked_attention"),
    ("gemma2", {"sliding_window": 0}, "window of 0"),
    ("gemma2", {"layer_types": [["full_attention"]] * 3}, "full_attention"),
    ("gemma2", {"attn_logit_softcapping": 0.0}, "attn_logit_softcapping"),
    ("gemma2", {"final_logit_softcapping": -1}, "final_logit_softcapping"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma2", {"hidden_activation": "swiglu"}, "hidden_activation"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ("phi3", {"partial_rotary_factor": 1.5}, "rotary"),
    ("phi3", {"partial_rotary_factor": 0.0}, "rotary"),
    ("phi3", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "longrope"),
    ("phi3", {"sliding_window": 0}, "window"),
    ("starcoder2", {"sliding_window": 0}, "window"),
    ("gemma3_text", {"rope_local_base_freq": -1.0}, "rope base"),
    ("llama", {"rope_theta": 0}, "rope base"),
    ("llama", {"num_attention_heads": 0}, "heads"),
    *(
        ("llama", {"rms_norm_eps": value}, "rms_norm_eps")
        for value in (math.nan, math.inf, 10**400, True, "1")
    ),
    ("ministral", {"layer_types": ["chunked_attention"] * 3}, "chunked_attention"),
    ("ministral", {"layer_types": ["full_attention"] * 2}, "2 layers"),
    ("ministral", {"layer_types": ["sliding_attention"] * 3, "sliding_window": None}, "window"),
    (
        "ministral3",
        {"rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1}},
        "llama_4_scaling_beta",
    ),
    ("phi", {"qk_layernorm": True}, "qk_layernorm"),
    ("phi", {"hidden_act": "tanh"}, "hidden_act"),
    ("phi", {"partial_rotary_factor": 1.5}, "rotary"),
    ("nemotron", {"hidden_act": "tanh"}, "hidden_act"),
    ("nemotron", {"partial_rotary_factor": 0.0}, "rotary"),
    ("stablelm", {"qk_layernorm": True}, "qk_layernorm"),
    ("olmo3", {"sliding_window": None}, "window"),
    ("olmo3", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "olmo3 names them"),
    (
        "olmo3",
        {
            "rope_parameters": {
                "full_attention": {"rope_theta": 500.0},
                "sliding_attention": {"rope_theta": 70.0},
            }
        },
        "rope bases 500.0 and 70.0",
    ),
    ("smollm3", {"no_rope_layers": [1, 0]}, "2 `no_rope_layers`"),
    ("smollm3", {"no_rope_layer_interval": 0}, "no_rope_layer_interval=0"),
    ("smollm3", {"layer_types": ["sliding_attention"] * 3}, "window"),
    ("granite", {"logits_scaling": 0}, "logits_scaling=0"),
    ("glm4", {"partial_rotary_factor": 1.5}, "rotary"),
    ("cohere2", {"use_qk_norm": True}, "use_qk_norm"),
    ("cohere2", {"use_parallel_block": False}, "use_parallel_block"),
    ("cohere2", {"position_embedding_type": "rope"}, "position_embedding_type"),
    ("cohere2", {"rotary_pct": 0.5}, "rotary_pct"),
    ("cohere2", {"order_of_interleaved_layers": "x"}, "order_of_interleaved_layers"),
    ("cohere2", {"sliding_window": None}, "window"),
    ("exaone4", {"layer_types": ["full_attention"]}, "1 layer of"),
    ("exaone4", {"sliding_window_pattern": 2.5}, "sliding_window_pattern"),
    ("ernie4_5", {"compression_ratio": 2.0}, "compression_ratio"),
    ("falcon", {"alibi": True}, "`alibi=True`"),
    ("falcon", {"multi_query": False}, "multi_query"),
    ("falcon", {"parallel_attn": False}, "parallel_attn"),
    ("hunyuan_v1_dense", {"use_cla": True}, "use_cla"),
    ("hunyuan_v1_dense", {"rope_scaling": {"type": "dynamic", "alpha": -1.0}}, "rope base"),
    ("hunyuan_v1_dense", {"rope_scaling": {"type": "dynamic", "alpha": "x"}}, "rope_alpha"),
    ("seed_oss", {"hidden_act": "swiglu"}, "hidden_act"),
    ("starcoder2", {"norm_type": "rms_norm"}, "norm_type"),
    ("starcoder2", {"mlp_type": "gated"}, "mlp_type"),
]


@pytest.mark.parametrize(("name", "change", "says"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_a_family_does_not_compute_is_refused(
    name: str, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(CheckpointError, match=says):
        FAMILIES[name].config_type.from_json({**COMMON, "model_type": name, **change})


def test_a_model_for_more_than_text_is_refused_as_such(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gemma3n", "text_config": {"model_type": "gemma3n_text"}})
    )
    with pytest.raises(CheckpointError, match=r"`gemma3n`, a multimodal model, .* gemma3_text"):
        load_decoder(tmp_path, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize(("beta", "context"), [(0.1, 48), (0.0, 96)])
def test_where_queries_grow_the_context_is_the_original_one(beta: float, context: int) -> None:
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 48}
    config = COMMON | {"rope_parameters": rope | {"llama_4_scaling_beta": beta}}
    assert FAMILIES["ministral3"].config_type.from_json(config).shape.max_positions == context


def test_yarn_without_a_factor_takes_the_ratio_of_the_contexts() -> None:
    rope = {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 24.0}
    scaling = FAMILIES["llama"].config_type.from_json({**COMMON, "rope_scaling": rope}).rope_scaling  # type: ignore[attr-defined]
    assert (scaling.factor, scaling.original_max_position_embeddings) == (96 / 24, 24)
