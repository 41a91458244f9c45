"""The GPT families and OPT as their checkpoints on the hub are: old names, old buffers, bare
models, fields left out or not served.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from bass.checkpoints.folder import SINGLE
from bass.checkpoints.weights import load_decoder, save_decoder
from bass.errors import CheckpointError
from bass.models import FAMILIES
from bass.models.decoder import CausalDecoder
from models.cases import CASES, FIRST, Case
from support.matrix import by_day

MASK = torch.ones(1, 1, 96, 96, dtype=torch.bool).tril()
BUFFERS: dict[str, dict[str, torch.Tensor]] = {
    "gpt2": {
        "transformer.h.{}.attn.bias": MASK,
        "transformer.h.{}.attn.masked_bias": torch.tensor(-1e4),
    },
    "gpt_bigcode": {
        "transformer.h.{}.attn.bias": MASK,
        "transformer.h.{}.attn.masked_bias": torch.tensor(-1e4),
    },
    "gptj": {
        "transformer.h.{}.attn.bias": MASK,
        "transformer.h.{}.attn.masked_bias": torch.tensor(-1e9),
    },
    "codegen": {"transformer.h.{}.attn.causal_mask": MASK},
    "gpt_neox": {
        "gpt_neox.layers.{}.attention.bias": MASK,
        "gpt_neox.layers.{}.attention.masked_bias": torch.tensor(-1e9),
        "gpt_neox.layers.{}.attention.rotary_emb.inv_freq": torch.ones(2),
    },
    "opt": {},
}
HEADS = {"gpt_neox": "embed_out.weight"}
OLD = by_day(
    [case for case in CASES if case.family in BUFFERS], [FIRST[family] for family in BUFFERS]
)


def written(case: Case, folder: Path) -> tuple[CausalDecoder, dict[str, torch.Tensor]]:
    """A random decoder of the case, and the tensors of the checkpoint that it was written to."""
    family = FAMILIES[case.family]
    decoder: Any = family(family.config_type.from_json(case.arguments))  # pyright: ignore[reportCallIssue]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    save_decoder(decoder, folder, torch.float32)
    return decoder, load_file(folder / SINGLE)


def same(decoder: CausalDecoder, folder: Path) -> bool:
    again = dict(load_decoder(folder, torch.device("cpu"), torch.float32).named_parameters())
    ours = dict(decoder.named_parameters())
    return again.keys() == ours.keys() and all(
        torch.equal(again[name], ours[name]) for name in ours
    )


@pytest.mark.parametrize("case", OLD, ids=str)
def test_the_buffers_of_old_checkpoints_and_a_second_copy_of_a_tied_head_are_ignored(
    case: Case, tmp_path: Path
) -> None:
    decoder, tensors = written(case, tmp_path)
    for layer in range(decoder.shape.layers):
        tensors |= {
            name.format(layer): value.clone() for name, value in BUFFERS[case.family].items()
        }
    if decoder.head is None:
        tensors[HEADS.get(case.family, "lm_head.weight")] = decoder.embed.detach().clone()
    save_file(tensors, tmp_path / SINGLE)
    assert same(decoder, tmp_path)


@pytest.mark.parametrize("case", OLD, ids=str)
def test_a_checkpoint_of_the_bare_model_lacks_the_prefix(case: Case, tmp_path: Path) -> None:
    decoder, tensors = written(case, tmp_path)
    save_file(
        {name.removeprefix(decoder.prefix): tensor for name, tensor in tensors.items()},
        tmp_path / SINGLE,
    )
    assert same(decoder, tmp_path)


def test_a_tensor_that_is_no_buffer_is_still_unexpected(tmp_path: Path) -> None:
    _, tensors = written(FIRST["gpt_neox"], tmp_path)
    save_file(
        tensors | {"gpt_neox.layers.0.attention.gate.bias": torch.zeros(3)}, tmp_path / SINGLE
    )
    with pytest.raises(CheckpointError, match="unexpected"):
        load_decoder(tmp_path, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("family", BUFFERS)
def test_a_field_left_out_means_what_it_means_to_transformers(family: str) -> None:
    theirs = AutoConfig.for_model(family)
    ours = FAMILIES[family].config_type.from_json({}).to_json()
    rotary = {
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "partial_rotary_factor": 0.25,
        "rotary_pct": 0.25,
        "rotary_emb_base": 10000.0,
    }
    derived = {"num_key_value_heads", "head_dim"} | rotary.keys() if family == "gpt_neox" else set()
    for name in ours.keys() - derived - {"architectures"}:
        assert getattr(theirs, name) == ours[name], name
    if family == "gpt_neox":
        assert {name: ours[name] for name in rotary} == rotary
        assert theirs.rope_parameters == {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
        }


@pytest.mark.parametrize(
    "fields",
    [
        {"rotary_pct": 0.5, "rotary_emb_base": 500},
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 500.0,
                "partial_rotary_factor": 0.5,
            }
        },
        {
            "rotary_pct": 0.5,
            "rotary_emb_base": 500,
            "rope_scaling": {"type": "linear", "factor": 2.0},
        },
        {
            "rotary_pct": 0.5,
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
        },
    ],
    ids=str,
)
def test_gpt_neox_says_how_it_turns_in_old_fields_and_in_new_ones(fields: dict[str, Any]) -> None:
    theirs = AutoConfig.for_model("gpt_neox", **fields).rope_parameters
    ours = FAMILIES["gpt_neox"].config_type.from_json(fields).to_json()
    assert (
        (theirs["rope_theta"], theirs["partial_rotary_factor"])
        == (ours["rope_theta"], ours["partial_rotary_factor"])
        == (500.0, 0.5)
    )
    scaling = ours["rope_scaling"] or {"rope_type": "default"}
    assert {name: theirs[name] for name in scaling} == scaling


@pytest.mark.parametrize(
    ("family", "fields", "says"),
    [
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
        ("gpt_bigcode", {"add_cross_attention": True}, "add_cross_attention"),
        ("gpt_bigcode", {"activation_function": "tanh"}, "activation_function"),
        ("opt", {"activation_function": "tanh"}, "activation_function"),
        ("opt", {"hidden_size": 60, "num_attention_heads": 4}, "divide evenly"),
        ("gptj", {"rotary_dim": 7}, "rotary dimensions"),
        ("gptj", {"rotary_dim": 0}, "rotary dimensions"),
        ("gptj", {"n_embd": 64, "n_head": 4, "rotary_dim": 32}, "rotary dimensions"),
        ("codegen", {"n_embd": 60, "n_head": 6, "rotary_dim": 4}, "6 heads"),
        (
            "codegen",
            {"auto_map": {"AutoModelForCausalLM": "modeling_codegen.CodeGenForCausalLM"}},
            "auto_map",
        ),
        ("gpt_neox", {"rotary_pct": 0.0}, "rotary dimensions"),
        ("gpt_neox", {"rotary_pct": 1.5}, "rotary dimensions"),
        ("gpt_neox", {"hidden_act": "tanh"}, "hidden_act"),
    ],
    ids=str,
)
def test_what_is_not_served_is_refused(family: str, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        FAMILIES[family].config_type.from_json(fields)
