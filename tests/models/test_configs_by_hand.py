"""Fields of config.json as people write them, against what `transformers` reads of the file."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bass.checkpoints.weights import dummy_index, load_decoder
from bass.errors import CheckpointError
from models.cases import CASES
from models.reference import causal_logits

CPU = torch.device("cpu")
# by what is unusual: the family, and fields of its file
WRITTEN: dict[str, tuple[str, dict[str, Any]]] = {
    "kinds of layers in mistral": (
        "mistral",
        {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    ),
    "no kinds in mistral": ("mistral", {"layer_types": None}),
    "yarn by default": ("ministral3", {"rope_parameters": None}),
    "yarn by default with a base": ("ministral3", {"rope_parameters": None, "rope_theta": 55.0}),
    "as many heads of keys": ("qwen2", {"num_key_value_heads": None}),
    "heads of keys and their size": ("seed_oss", {"num_key_value_heads": None, "head_dim": None}),
    "size of heads": ("ernie4_5", {"head_dim": None}),
    "two names of the base": (
        "gpt_neox",
        {"rope_parameters": None, "rotary_emb_base": 300.0, "rope_theta": 55.0},
    ),
    "two names of the share": (
        "gpt_neox",
        {"rope_parameters": None, "rotary_pct": 0.5, "partial_rotary_factor": 0.25},
    ),
    "causal": ("qwen2", {"is_causal": True}),
}


def write(folder: Path, family: str, change: dict[str, Any]) -> dict[str, Any]:
    case = next(c for c in CASES if c.family == family)
    raw = AutoConfig.for_model(family, **case.arguments).to_dict() | {"model_type": family}
    raw |= change
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    return raw


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
