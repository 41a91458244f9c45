"""What stands in folders of weights: pointers, shards without an index, prefixes, unused tensors,
and families that are missing or come from outside.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import pytest
import torch

import bass
from bass.checkpoints.folder import INDEX
from bass.checkpoints.weights import dummy_index, read_index
from bass.errors import CheckpointError
from bass.models.config import FamilyConfig
from bass.models.llama import Llama, LlamaConfig
from bass.ops.norms import RMSNorm
from unit.checkpoints import Pair, Said, shard
from unit.distributions import Offer
from unit.test_bad_input import refuses
from unit.test_weights import parameters, rewrite, same, tied, untied

__all__ = ["tied", "untied"]  # fixtures
Command = Callable[..., Said]


@pytest.mark.parametrize("stem", ["model", "pytorch_model"])
def test_shards_need_no_index(tied: Path, stem: str) -> None:
    whole = parameters(tied)
    (shard(tied, 3) / INDEX).unlink()
    for path in tied.glob("model-*"):
        path.rename(tied / path.name.replace("model", stem))
    (tied / "consolidated-00001-of-00002.safetensors").write_bytes(b"")
    assert same(parameters(tied), whole)
    last = tied / f"{stem}-00003-of-00003.safetensors"
    last.rename(tied / "other.safetensors")
    with pytest.raises(CheckpointError, match=r"does not hold the tensors .* missing \("):
        read_index(tied)


PREFIXES = ["base_model.model.", "_orig_mod.", "module.", "model.", "module._orig_mod.", "llm."]


@pytest.mark.parametrize("start", PREFIXES)
def test_prefixes_of_wrappers_are_removed(tied: Path, untied: Path, start: str) -> None:
    for folder in (tied, untied):
        whole = parameters(folder)
        rewrite(folder, lambda tensors: {f"{start}{name}": t for name, t in tensors.items()})
        assert same(parameters(folder), whole)
        assert read_index(folder).removed


HARMLESS = [
    "score.weight", "v_head.summary.weight", "model.embed_tokens.position_ids",
    "model.layers.0.self_attn.rotary_emb.inv_freq", "vision_tower.blocks.0.attn.qkv.weight",
    "model.visual.patch_embed.proj.weight", "multi_modal_projector.linear_1.bias",
]  # fmt: skip


@pytest.mark.parametrize("start", ["", "language_model."])
def test_tensors_that_change_nothing_are_reported_and_unused(
    bass_command: Command, untied: Path, start: str
) -> None:
    whole = parameters(untied)
    more = {name: torch.ones(3, 5, dtype=torch.int64) for name in HARMLESS}
    rewrite(untied, lambda tensors: {f"{start}{name}": t for name, t in tensors.items()} | more)
    assert same(parameters(untied), whole)
    [found] = bass_command("info", str(untied), "--json").lines[0]["checkpoints"]
    assert found["unused tensors"].startswith(f"{len(HARMLESS)} (model.embed_tokens.position_ids, ")
    assert found.get("prefix of names", "") == ("`language_model.`, removed" if start else "")


@pytest.mark.parametrize(
    "name",
    ["model.layers.0.score.weight", "model.layers.0.self_attn.q_norm.weight", "scores.weight",
     "model.layers.0.mlp.visual.weight", "lm_head.bias"],
)  # fmt: skip
def test_tensors_that_could_change_the_result_are_an_error(untied: Path, name: str) -> None:
    rewrite(untied, lambda tensors: tensors | {name: torch.ones(3)})
    with pytest.raises(CheckpointError, match=rf"1 unexpected \({name}\)"):
        read_index(untied)


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# name: what it is, fields of its config.json, some of its tensors
HEADS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "class of EAGLE-3": ("EAGLE-3", {"architectures": ["LlamaForCausalLMEagle3"]}, []),
    "fields of EAGLE-3": ("EAGLE-3", {"draft_vocab_size": 10}, []),
    "tensors of EAGLE-3": ("EAGLE-3", {}, ["fc.weight", "midlayer.hidden_norm.weight", "d2t"]),
    "speculators": ("EAGLE-3", {"model_type": None, "speculators_model_type": "eagle3"}, []),
    "tensors of EAGLE": ("EAGLE", {}, ["fc.weight", "layers.0.self_attn.q_proj.weight"]),
    "class of DFlash": ("DFlash", {"architectures": ["DFlashDraftModel"]}, []),
    "tensors of DFlash": ("DFlash", {}, ["fc.weight", "hidden_norm.weight"]),
    "class of DSpark": ("DSpark", {"architectures": ["Qwen3DSparkModel"]}, []),
    "tensors of DSpark": ("DSpark", {}, ["fc.weight", "markov_head.markov_w1.weight"]),
    "fields of Medusa": ("Medusa", {"model_type": None, "medusa_num_heads": 3}, []),
    "tensors of Medusa": ("Medusa", {}, ["medusa_heads.0.0.linear.weight"]),
}


@pytest.mark.parametrize("case", HEADS)
def test_a_head_that_reads_hidden_states_is_named(tied: Path, case: str) -> None:
    name, fields, tensors = HEADS[case]
    edit(tied, **fields)
    if tensors:
        rewrite(tied, lambda _: {tensor: torch.ones(16, 32) for tensor in tensors})
    for read in (read_index,) if tensors else (read_index, dummy_index):
        with pytest.raises(CheckpointError, match=f"no whole model but a head of {name}, which"):
            read(tied)


@dataclass(frozen=True)
class OwnConfig(LlamaConfig):
    model_type: ClassVar[str] = "own_llama"


@final
class Own(Llama):
    config_type: ClassVar[type[FamilyConfig]] = OwnConfig

    def norm_type(size: int, *arguments: Any) -> RMSNorm:  # called on no object
        return RMSNorm(size, *arguments)

    def unembed(self, hidden: Any) -> Any:
        return -super().unembed(hidden)


def outside(pair: Pair, to: Path) -> Pair:
    """A pair whose target has a family of its own."""
    own = pair.copy(to)
    edit(own.target, model_type="own_llama")
    return own


def test_a_family_from_outside_is_given_to_load_and_to_commands(
    bass_command: Command, pair: Pair, offer: Offer, tmp_path: Path
) -> None:
    own = outside(pair, tmp_path)
    llm = bass.load(own.target, own.draft, family=Own, device="cpu")
    assert (type(llm.models.target), type(llm.models.draft)) == (Own, Llama)
    expected = llm.generate("x", max_new_tokens=8, temperature=0).completions[0].token_ids
    family = ["--family", "unit.test_folders:Own"]
    said = bass_command("generate", *own.options, *family, "--temperature", "0", "--json", "x")
    assert said.lines[0]["token_ids"] == expected
    said = bass_command("info", str(own.target), *family, "--json")
    assert said.lines[0]["checkpoints"][0]["family"] == "own_llama"
    refuses(bass_command("info", str(own.target)), "own_llama", "docs/extend/model.md")
    offer("bass.families", own_llama="unit.test_folders:Own")
    assert read_index(own.target).removed == ""
    offer("bass.families", "broken", own_llama="offered:NoStrategy")
    refuses(bass_command("info", str(own.target)), "`own_llama` of an", "is no model family")


STACKED = {
    "qwen3_moe": {"moe_intermediate_size": 16, "num_experts": 4, "head_dim": 8},
    "mixtral": {"num_local_experts": 4},
    "olmoe": {"num_experts": 4, "eos_token_id": 1},
    "granitemoe": {"num_local_experts": 4},
}


@pytest.mark.parametrize("family", STACKED)
def test_stacks_of_experts_are_read_as_the_matrices_of_each(family: str, tmp_path: Path) -> None:
    """What `transformers` 5 saves with `save_original_format=False`; state dicts have these names,
    and may have the prefix of a wrapper.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_experts_per_tok": 2}
    config = AutoConfig.for_model(family, **sizes | STACKED[family])
    model = AutoModelForCausalLM.from_config(config)
    for original in (True, False):
        model.save_pretrained(tmp_path / str(original), save_original_format=original)
    expected = parameters(tmp_path / "True")
    assert same(parameters(tmp_path / "False"), expected)
    rewrite(tmp_path / "False", lambda tensors: {f"module.{n}": t for n, t in tensors.items()})
    assert same(parameters(tmp_path / "False"), expected)
