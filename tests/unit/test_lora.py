"""LoRA adapters are merged into the weights at load, in float32, and rounded once."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers import GPT2Config as TheirConfig

import bass
from bass.checkpoints.folder import ADAPTER, ADAPTER_CONFIG, SINGLE
from bass.checkpoints.lora import Adapter
from bass.checkpoints.weights import read_index
from bass.errors import CheckpointError
from unit.checkpoints import Pair, Said
from unit.test_bad_input import refuses
from unit.test_weights import same, tied, untied

__all__ = ["tied", "untied"]  # fixtures
Command = Callable[..., Said]
CPU = torch.device("cpu")
MODULES = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")


def adapter(
    base: Path, to: Path, names: list[str] | None = None, rank: int = 3, **config: Any
) -> Path:
    """A random adapter of some matrices of a checkpoint, as `peft` saves it."""
    held = load_file(base / SINGLE)
    names = names or [n.removesuffix(".weight") for n in held if any(m in n for m in MODULES)]
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for name in names:
        rows, columns = held[f"{name}.weight"].shape
        if config.get("fan_in_fan_out"):
            rows, columns = columns, rows
        start = f"base_model.model.{name}"
        tensors[f"{start}.lora_A.weight"] = torch.randn(rank, columns, generator=generator)
        tensors[f"{start}.lora_B.weight"] = torch.randn(rows, rank, generator=generator)
    to.mkdir(exist_ok=True)
    save_file(tensors, to / ADAPTER)
    settings = {
        "peft_type": "LORA", "base_model_name_or_path": "org/base", "r": rank, "lora_alpha": 6,
        "bias": "none", "use_dora": False, "use_rslora": False, "modules_to_save": None,
        "target_modules": [*MODULES], "init_lora_weights": True, "alpha_pattern": {},
    } | config  # fmt: skip
    (to / ADAPTER_CONFIG).write_text(json.dumps(settings))
    return to


def merged(base: Path, lora: Path, to: Path, scale: Callable[[str], float]) -> Path:
    """The base model's folder with the adapter merged by its definition."""
    to.mkdir(exist_ok=True)
    (to / "config.json").write_bytes((base / "config.json").read_bytes())
    tensors, parts = load_file(base / SINGLE), load_file(lora / ADAPTER)
    turned = json.loads((lora / ADAPTER_CONFIG).read_text()).get("fan_in_fan_out")
    for name in [n for n in parts if n.endswith("lora_A.weight")]:
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        product = parts[name.replace("lora_A", "lora_B")] @ parts[name]
        product = product.T if turned else product
        whole = tensors[f"{module}.weight"].float() + scale(module) * product
        tensors[f"{module}.weight"] = whole.contiguous()
    save_file(tensors, to / SINGLE)
    return to


def loaded(
    base: Path, lora: Path | None = None, dtype: torch.dtype = torch.float32, **options: Any
) -> dict[str, torch.Tensor]:
    index = read_index(base, adapter=None if lora is None else Adapter.read(lora))
    return dict(index.load(CPU, dtype, **options).named_parameters())


SCALES: dict[str, tuple[dict[str, Any], Callable[[str], float]]] = {
    "alpha / r": ({}, lambda module: 2.0),
    "rslora": ({"use_rslora": True}, lambda module: 6 / math.sqrt(3)),
    "by module": (
        {"alpha_pattern": {"mlp.down_proj": 9, "^model.layers.0.self_attn.q_proj$": 12}},
        lambda m: 3.0 if "down" in m else 4.0 if m == "model.layers.0.self_attn.q_proj" else 2.0,
    ),
}


@pytest.mark.parametrize("case", SCALES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapter_is_merged_and_rounded_once(
    untied: Path, tmp_path: Path, case: str, dtype: torch.dtype
) -> None:
    config, scale = SCALES[case]
    lora = adapter(untied, tmp_path / "lora", **config)
    whole = merged(untied, lora, tmp_path / "merged", scale)
    found, expected = loaded(untied, lora, dtype), loaded(whole, None, dtype)
    assert same(found, expected)
    assert not same(found, loaded(untied, None, dtype))


def test_weights_in_16_bits_are_merged_in_float32(untied: Path, tmp_path: Path) -> None:
    tensors = {name: t.to(torch.bfloat16) for name, t in load_file(untied / SINGLE).items()}
    save_file(tensors, untied / SINGLE)
    lora = adapter(untied, tmp_path / "lora")
    whole = merged(untied, lora, tmp_path / "merged", lambda module: 2.0)
    for dtype in (torch.float32, torch.bfloat16):
        assert same(loaded(untied, lora, dtype), loaded(whole, None, dtype))


def test_matrices_that_are_stored_transposed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = TheirConfig(vocab_size=40, n_positions=32, n_embd=16, n_layer=2, n_head=2)
    base = tmp_path / "base"
    AutoModelForCausalLM.from_config(config).save_pretrained(base)
    names = [f"transformer.h.{i}.{n}" for i in range(2) for n in ("attn.c_attn", "attn.c_proj")]
    lora = adapter(base, tmp_path / "lora", names, fan_in_fan_out=True)
    whole = merged(base, lora, tmp_path / "merged", lambda module: 2.0)
    assert same(loaded(base, lora), loaded(whole))
    bare = {n.removeprefix("transformer."): t for n, t in load_file(base / SINGLE).items()}
    save_file(bare, base / SINGLE)
    assert same(loaded(base, lora), loaded(whole))


def test_target_and_draft_have_adapters_in_python_and_in_commands(
    bass_command: Command, pair: Pair, tmp_path: Path
) -> None:
    ours, theirs = adapter(pair.target, tmp_path / "a"), adapter(pair.draft, tmp_path / "b")
    llm = bass.load(pair.target, pair.draft, lora=ours, draft_lora=str(theirs), device="cpu")
    assert same(dict(llm.models.target.named_parameters()), loaded(pair.target, ours))
    assert llm.models.draft is not None
    assert same(dict(llm.models.draft.named_parameters()), loaded(pair.draft, theirs))
    expected = llm.generate("x", max_new_tokens=8, temperature=0).completions[0].token_ids
    options = [*pair.options, "--lora", str(ours), "--temperature", "0", "--json", "x"]
    said = bass_command("generate", *options)  # another draft changes no greedy token
    assert said.lines[0]["token_ids"] == expected
    both = ["--draft", str(pair.draft), "--lora", str(ours), "--draft_lora", str(theirs)]
    said = bass_command("info", str(pair.target), *both, "--json")
    assert [one["LoRA"] for one in said.lines[0]["checkpoints"]] == ["6 tensors", "3 tensors"]
    refuses(bass_command("info", str(pair.target), "--draft_lora", str(theirs)), "`--draft`")


def test_an_adapter_in_the_place_of_a_model_is_named(
    bass_command: Command, pair: Pair, tmp_path: Path
) -> None:
    lora = adapter(pair.target, tmp_path / "lora")
    words = ("is a LoRA adapter", "give `org/base` as the checkpoint", f"`--lora {lora}`")
    refuses(
        bass_command("generate", "--target", str(lora), "--draft", str(pair.draft), "x"), *words
    )
    refuses(bass_command("info", str(lora)), *words)
    (lora / "config.json").write_bytes((pair.target / "config.json").read_bytes())
    refuses(bass_command("info", str(lora)), *words)


def test_ranks_and_scales_differ_by_module(untied: Path, tmp_path: Path) -> None:
    pattern = {"v_proj": 5, "^q_proj": 7, "^model.layers.0.self_attn.q_proj": 3}
    lora = adapter(untied, tmp_path / "lora", rank_pattern=pattern, r=3, use_rslora=True)
    tensors = load_file(lora / ADAPTER)
    for name in [name for name in tensors if "v_proj" in name]:
        tensors[name] = torch.randn([5 if size == 3 else size for size in tensors[name].shape])
    save_file(tensors, lora / ADAPTER)
    whole = merged(
        untied, lora, tmp_path / "merged", lambda m: 6 / math.sqrt(5 if "v_proj" in m else 3)
    )
    assert same(loaded(untied, lora), loaded(whole))


RESIZED = "was trained with 27 tokens, and .* has 20: .* merge the adapter with `peft`"
# more tensors behind `base_model.model.`, and what is said of them
STRANGE: dict[str, tuple[dict[str, tuple[int, int]], str]] = {
    "another module": (
        {"x.lora_A.weight": (3, 3), "x.lora_B.weight": (3, 3)},
        r"1 tensor that .* does not have \(x\.weight\)",
    ),
    "a head that was saved whole": (
        {"lm_head.weight": (20, 16)}, "in no pair of LoRA matrices .* merge it with `peft`",
    ),
    "a resized embedding": ({"model.embed_tokens.weight": (27, 16)}, RESIZED),
    "a resized head": (
        {"lm_head.lora_A.weight": (3, 16), "lm_head.lora_B.weight": (27, 3)}, RESIZED,
    ),
    "an embedding in pairs": ({"model.embed_tokens.lora_embedding_A": (3, 27)}, RESIZED),
}  # fmt: skip


@pytest.mark.parametrize("case", STRANGE)
def test_tensors_that_do_not_fit_are_an_error(untied: Path, tmp_path: Path, case: str) -> None:
    more, words = STRANGE[case]
    lora = adapter(untied, tmp_path / "lora")
    tensors = {f"base_model.model.{name}": torch.ones(shape) for name, shape in more.items()}
    save_file(load_file(lora / ADAPTER) | tensors, lora / ADAPTER)
    with pytest.raises(CheckpointError, match=words):
        loaded(untied, lora)
