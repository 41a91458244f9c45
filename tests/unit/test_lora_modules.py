"""Which modules an adapter has to hold, how it may name them, and embeddings that it saves."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bass.checkpoints.folder import ADAPTER, ADAPTER_CONFIG, SINGLE
from bass.checkpoints.lora import Adapter
from bass.checkpoints.weights import read_index, save_decoder
from bass.errors import CheckpointError
from bass.models.qwen3_moe import Qwen3Moe, Qwen3MoeConfig
from unit.test_lora import adapter, loaded, merged
from unit.test_weights import same, tied, untied

__all__ = ["tied", "untied"]  # fixtures
START = "base_model.model."
LAYERS = "model.layers."
FIRST = f"{START}{LAYERS}0.self_attn.q_proj"


def without(lora: Path, part: str) -> Path:
    """The adapter without the tensors whose name has this part."""
    tensors = {name: t for name, t in load_file(lora / ADAPTER).items() if part not in name}
    save_file(tensors, lora / ADAPTER)
    return lora


def more(lora: Path, **tensors: torch.Tensor) -> Path:
    """The adapter with further tensors, whose names have `__` for dots."""
    named = {START + name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file(load_file(lora / ADAPTER) | named, lora / ADAPTER)
    return lora


def read(base: Path, lora: Path) -> Adapter:
    found = read_index(base, adapter=Adapter.read(lora)).adapter
    assert found is not None
    return found


Q0, Q1 = f"{LAYERS}0.self_attn.q_proj", f"{LAYERS}1.self_attn.q_proj"
# configs by which the adapter lacks nothing without layer 1, and those by which it does
WITHOUT_LAYER_1: dict[str, dict[str, Any]] = {
    "full names": {"target_modules": [Q0]},
    "a pattern": {"target_modules": r"(model\.)?layers\.[0]\.\w+\.(q|c)_\w+"},
    "one layer": {"target_modules": ["q_proj"], "layers_to_transform": 0},
    "layers": {
        "target_modules": ["q_proj"], "layers_to_transform": [0, 7], "layers_pattern": "layers",
    },
    "other layers": {
        "target_modules": ["self_attn.q_proj"], "layers_to_transform": [0],
        "layers_pattern": ["h", "layers"],
    },
    "excluded": {"target_modules": ["q_proj"], "exclude_modules": [Q1]},
    "excluded by a pattern": {"target_modules": ["q_proj"], "exclude_modules": r".*\.1\..*"},
    "another model's names": {"target_modules": [Q0, "c_attn", "query_key_value"]},
}  # fmt: skip
LACKING: dict[str, dict[str, Any]] = {
    "ends": {"target_modules": ["q_proj"]},
    "full names and other layers": {"target_modules": [Q0, Q1], "layers_to_transform": [0]},
    "a pattern": {"target_modules": r".*\.q_proj"},
    "other layers": {"target_modules": ["q_proj"], "layers_to_transform": [0, 1]},
    "layers of other names": {"target_modules": [Q0, Q1], "layers_pattern": "h"},
    "excluded in part": {"target_modules": ["q_proj"], "exclude_modules": ["0.self_attn.q_proj"]},
    "no targets": {"target_modules": None},
    "saved modules elsewhere": {"target_modules": ["q_proj"], "modules_to_save": ["norm"]},
}


@pytest.mark.parametrize("case", WITHOUT_LAYER_1)
def test_modules_that_the_config_leaves_out_need_no_matrices(
    untied: Path, tmp_path: Path, case: str
) -> None:
    lora = adapter(untied, tmp_path / "lora", [Q0], **WITHOUT_LAYER_1[case])
    assert [*read(untied, lora).updates] == [f"{Q0}.weight"]


@pytest.mark.parametrize("case", LACKING)
def test_the_matrices_of_every_module_that_the_config_names_are_there(
    untied: Path, tmp_path: Path, case: str
) -> None:
    lora = adapter(untied, tmp_path / "lora", [Q0], **LACKING[case])
    if "modules_to_save" in LACKING[case]:
        more(lora, model__norm__weight=torch.ones(16))
    with pytest.raises(CheckpointError) as caught:
        read(untied, lora)
    assert str(caught.value) == (
        f"`{lora}` lacks the matrices of 1 module that its target_modules names, first "
        f"`{START}{Q1}.lora_A.weight`: download the adapter again, or save it again with `peft`."
    )


def test_all_linear_layers_are_those_but_the_head(untied: Path, tmp_path: Path) -> None:
    names = [n.removesuffix(".weight") for n in load_file(untied / SINGLE) if "_proj" in n]
    lora = adapter(untied, tmp_path / "lora", names, target_modules="all-linear")
    assert len(read(untied, lora).updates) == 14
    without(lora, "1.mlp")
    with pytest.raises(CheckpointError, match=r"of 3 modules .* `\S+1\.mlp\.gate_proj\.lora_A"):
        read(untied, lora)


def test_modules_within_a_saved_module_are_not_adapted(untied: Path, tmp_path: Path) -> None:
    names = [f"{LAYERS}{i}.mlp.{part}_proj" for i in range(2) for part in ("up", "gate", "down")]
    targets = ["q_proj", "up_proj", "gate_proj", "down_proj"]
    lora = adapter(untied, tmp_path / "lora", names, target_modules=targets)
    with pytest.raises(CheckpointError, match="lacks the matrices of 2 modules"):
        read(untied, lora)
    attention = {START + n: t for n, t in load_file(untied / SINGLE).items() if "self_attn" in n}
    save_file(load_file(lora / ADAPTER) | attention, lora / ADAPTER)
    change(lora, modules_to_save=["self_attn"])
    assert len(read(untied, lora).updates) == 6 + 8


def change(lora: Path, **settings: Any) -> None:
    held = json.loads((lora / ADAPTER_CONFIG).read_text())
    (lora / ADAPTER_CONFIG).write_text(json.dumps(held | settings))


@pytest.mark.parametrize(
    ("pattern", "says"),
    [("(q_proj", "is no regular expression"), ("(.*)*(.*)*(.*)*!", "takes more than 2 seconds")],
)
def test_a_pattern_that_cannot_be_matched_is_an_error(
    untied: Path, tmp_path: Path, pattern: str, says: str
) -> None:
    lora = adapter(untied, tmp_path / "lora", [Q0], target_modules=pattern)
    with pytest.raises(CheckpointError, match=f"has the target_modules .*, which {says}"):
        read(untied, lora)


def test_experts_are_linear_layers_in_some_versions_alone(tmp_path: Path) -> None:
    """In `transformers` 5 the matrices of all experts are one tensor, which is no target."""
    config = Qwen3MoeConfig(
        vocab_size=20, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, num_experts=2,
        num_experts_per_tok=1, moe_intermediate_size=8, max_position_embeddings=64,
    )  # fmt: skip
    base = tmp_path / "base"
    save_decoder(Qwen3Moe(config), base, torch.float32)
    held = [n.removesuffix(".weight") for n in load_file(base / SINGLE)]
    attention = [name for name in held if name.endswith("q_proj")]
    targets = {"target_modules": ["q_proj", "gate_proj", "up_proj", "down_proj"]}
    read(base, adapter(base, tmp_path / "lora", attention, **targets))
    experts = [name for name in held if ".experts." in name]
    lora = adapter(base, tmp_path / "lora", attention + experts, **targets)
    read(base, lora)
    with pytest.raises(CheckpointError, match=r"of 1 module .*0\.mlp\.experts\.1\.up_proj"):
        read(base, without(lora, "0.mlp.experts.1.up_proj"))


@pytest.mark.parametrize("start", ["_orig_mod.", START, f"{START}_orig_mod."])
def test_prefixes_of_wrappers_are_removed(untied: Path, tmp_path: Path, start: str) -> None:
    targets = ["q_proj", "v_proj", f"{start}{LAYERS}0.mlp.down_proj", f"{LAYERS}1.mlp.down_proj"]
    scales = {f"{start}{LAYERS}0.self_attn.q_proj": 12}
    lora = adapter(untied, tmp_path / "lora", target_modules=targets, alpha_pattern=scales)
    whole = merged(untied, lora, tmp_path / "whole", lambda m: 4.0 if m == Q0 else 2.0)
    tensors = load_file(lora / ADAPTER)
    renamed = {START + start + n.removeprefix(START): tensor for n, tensor in tensors.items()}
    save_file(renamed, lora / ADAPTER)
    assert same(loaded(untied, lora), loaded(whole))
    with pytest.raises(CheckpointError, match=f"first `{START}{start}{Q1}.lora_A.weight`"):
        read(untied, without(lora, "1.self_attn.q_proj"))
    save_file(renamed | {n: t + 1 for n, t in tensors.items()}, lora / ADAPTER)
    with pytest.raises(CheckpointError, match="several tensors for one place"):
        read(untied, lora)


def test_a_checkpoint_without_the_prefix_of_its_family(untied: Path, tmp_path: Path) -> None:
    lora = adapter(untied, tmp_path / "lora", target_modules=[Q0, "v_proj", "down_proj"])
    bare = {n.removeprefix("model."): t for n, t in load_file(untied / SINGLE).items()}
    save_file(bare, untied / SINGLE)
    read(untied, without(lora, "1.self_attn.q_proj"))
    with pytest.raises(CheckpointError, match=f"of 1 module .*first `{START}{Q0}.lora_A.weight`"):
        read(untied, without(lora, "self_attn.q_proj"))


def test_embeddings_are_saved_without_being_listed(untied: Path, tmp_path: Path) -> None:
    lora = adapter(untied, tmp_path / "lora")
    head, embed = torch.randn(20, 16), torch.randn(20, 16)
    more(lora, lm_head__weight=head, model__embed_tokens__weight=embed)
    found = loaded(untied, lora)
    assert torch.equal(found["head.weight"], head)
    assert torch.equal(found["embed"], embed)
    more(lora, lm_head__weight=torch.ones(24, 16))
    with pytest.raises(CheckpointError, match=r"has \[24, 16\] for `lm_head.weight`"):
        read(untied, lora)


def test_a_saved_module_is_every_one_whose_name_ends_so(untied: Path, tmp_path: Path) -> None:
    lora = adapter(untied, tmp_path / "lora", modules_to_save=["norm"])
    norms = {START + n: t + 1 for n, t in load_file(untied / SINGLE).items() if "norm" in n}
    save_file(load_file(lora / ADAPTER) | norms, lora / ADAPTER)
    assert len(read(untied, lora).updates) == 6 + 5


ENDS = ["q_proj", "lm_head"]


def test_a_head_is_saved_next_to_its_update(untied: Path, tmp_path: Path) -> None:
    lora = adapter(untied, tmp_path / "lora", [Q0, Q1, "lm_head"], target_modules=ENDS)
    whole = merged(untied, lora, tmp_path / "whole", lambda m: 2.0)
    more(lora, lm_head__base_layer__weight=load_file(untied / SINGLE)["lm_head.weight"])
    assert same(loaded(untied, lora), loaded(whole))
    more(lora, lm_head__base_layer__weight=torch.zeros(20, 16))
    parts = load_file(lora / ADAPTER)
    product = parts[f"{START}lm_head.lora_B.weight"] @ parts[f"{START}lm_head.lora_A.weight"]
    assert torch.equal(loaded(untied, lora)["head.weight"], 2 * product)
    more(lora, lm_head__weight=torch.zeros(20, 16))
    with pytest.raises(CheckpointError, match="several tensors for one place"):
        read(untied, lora)


# what peft 0.21 writes, the last with `ensure_weight_tying`
SAVED = (None, ["embed_tokens", "lm_head"], ["embed_tokens", "model.embed_tokens"])


@pytest.mark.parametrize("saved", SAVED)
@pytest.mark.parametrize("second", [False, True])
def test_an_embedding_and_its_tied_head_are_replaced_together(
    tied: Path, tmp_path: Path, saved: list[str] | None, second: bool
) -> None:
    if second:  # stored, and different: the model is loaded as untied
        held = load_file(tied / SINGLE)
        save_file(held | {"lm_head.weight": torch.ones(20, 16)}, tied / SINGLE)
    lora = adapter(tied, tmp_path / "lora", modules_to_save=saved)
    value = torch.randn(20, 16)
    more(lora, lm_head__weight=value.clone(), model__embed_tokens__weight=value)
    found = loaded(tied, lora)
    assert torch.equal(found["embed"], value)
    assert not second or torch.equal(found["head.weight"], value)
    more(lora, lm_head__weight=value + 1)
    with pytest.raises(CheckpointError) as caught:
        loaded(tied, lora)
    assert str(caught.value) == (
        f"`{lora}` has other values in `{START}lm_head.weight` than in "
        f"`{START}model.embed_tokens.weight`, and the config.json of its base model ties them: "
        "merge it with `peft`, and set tie_word_embeddings to false in the merged config.json."
    )


def test_a_tied_matrix_may_have_either_name(tied: Path, tmp_path: Path) -> None:
    lora = adapter(tied, tmp_path / "lora")
    value = torch.randn(20, 16)
    more(lora, model__embed_tokens__weight=value)  # not listed: that of the tied model
    assert torch.equal(loaded(tied, lora)["embed"], value)
    held = load_file(tied / SINGLE)
    held["lm_head.weight"] = held.pop("model.embed_tokens.weight")
    save_file(held, tied / SINGLE)
    assert torch.equal(loaded(tied, lora)["embed"], value)
    more(lora, lm_head__weight=value)
    assert torch.equal(loaded(tied, lora)["embed"], value)


Change = Callable[[dict[str, torch.Tensor]], Any]
INFINITE: dict[str, tuple[Change, dict[str, Any], str]] = {
    "NaN": (
        lambda t: t[f"{FIRST}.lora_A.weight"].__setitem__((0, 0), float("nan")),
        {},
        f"has NaN or infinity in `{FIRST}.lora_A.weight`: download the adapter again.",
    ),
    "infinity": (
        lambda t: t[f"{FIRST}.lora_B.weight"].__setitem__((0, 0), float("-inf")),
        {},
        f"has NaN or infinity in `{FIRST}.lora_B.weight`: ",
    ),
    "a saved tensor": (
        lambda t: t.update({f"{START}lm_head.weight": torch.full((20, 16), float("nan"))}),
        {"modules_to_save": ["lm_head"]},
        f"has NaN or infinity in `{START}lm_head.weight`: ",
    ),
    "the factor": (
        lambda t: None,
        {"lora_alpha": 1e300},
        f"has an infinite product of `{FIRST}.lora_A.weight, {FIRST}.lora_B.weight` and",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", INFINITE)
def test_an_update_that_is_not_finite_is_an_error_at_load(
    untied: Path, tmp_path: Path, case: str
) -> None:
    damage, settings, words = INFINITE[case]
    lora = adapter(untied, tmp_path / "lora", **settings)
    tensors = load_file(lora / ADAPTER)
    damage(tensors)
    save_file(tensors, lora / ADAPTER)
    with pytest.raises(CheckpointError) as caught:
        loaded(untied, lora)
    assert str(caught.value).startswith(f"`{lora}` {words}")
