"""Quantized checkpoints are read as they are: each method computes what its tensors stand for."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import bass
from bass.checkpoints.quantized.formats import Layout
from bass.checkpoints.weights import load_decoder, read_index, save_decoder
from bass.errors import CheckpointError
from bass.models.decoder import CausalDecoder
from bass.models.gptj import GPTJ, GPTJConfig
from bass.models.llama import Llama, LlamaConfig
from bass.models.qwen2 import Qwen2, Qwen2Config
from bass.ops import dispatch
from bass.ops.linear import GroupQuantizedLinear, Linear, QuantizedLinear
from bass.ops.quantize import dequantized
from models.reference import causal_logits
from unit.stored_quantizations import (
    E4M3,
    FLOAT8,
    FP4,
    GPTQ4,
    INT4,
    METHODS,
    compressed,
    eight_bits,
    gptq,
    packed,
    write_quantized,
)

CPU = torch.device("cpu")
# methods that quantize activations, too, which the matrices alone do not show
ACTIVATIONS = {"fp8 tensor": 0.1, "fp8 rows": 0.1, "int8 rows": 0.03}
TOKENS = torch.tensor([[5, 17, 3, 40, 8, 2, 61, 30]])


def original(folder: Path, kind: type[CausalDecoder] = Llama) -> Path:
    config = {Llama: LlamaConfig, Qwen2: Qwen2Config}[kind](67, 64, 96, 2, 4, 2)
    decoder = kind(config)  # type: ignore[call-arg]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in decoder.parameters():
            drawn = torch.randn(parameter.shape, generator=generator) * 0.15
            parameter.copy_(drawn + (parameter.dim() == 1))
    save_decoder(decoder, folder / "original", torch.float16)
    return folder / "original"


def logits(folder: Path) -> tuple[CausalDecoder, torch.Tensor]:
    decoder = load_decoder(folder, CPU, torch.float32)
    return decoder, causal_logits(decoder, TOKENS)


@pytest.mark.parametrize("kind", [Llama, Qwen2])
@pytest.mark.parametrize("method", METHODS)
def test_a_quantized_checkpoint_computes_what_its_tensors_stand_for(
    method: str, kind: type[CausalDecoder], tmp_path: Path
) -> None:
    config, store = METHODS[method]
    quantized, meant = write_quantized(original(tmp_path, kind), tmp_path, config, store)
    (ours, found), (_, expected) = logits(quantized), logits(meant)
    assert (found - expected).norm() <= ACTIVATIONS.get(method, 1e-4) * expected.norm()
    if method in ACTIVATIONS:
        assert (found - expected).norm() > 1e-3 * expected.norm()
    layers = [type(m) for n, m in ours.named_modules() if n.endswith(("qkv", "out", "down"))]
    one_scale_for_a_row = method in ACTIVATIONS or method == "int8 weights"
    assert set(layers) == {QuantizedLinear if one_scale_for_a_row else GroupQuantizedLinear}
    stored = sum(p.nbytes for p in ours.parameters())
    assert read_index(quantized).weight_bytes(torch.float32) == stored


FLOAT = compressed(FLOAT8 | {"strategy": "channel"}, "float-quantized")["config_groups"]["group_0"]
OVERLAPPING = {  # the second precedes by the alphabet
    "group_0": FLOAT | {"targets": [r"re:.*layers\.0\..*proj$"], "format": "float-quantized"},
    "group_1": {"targets": ["re:.*_proj$"], "weights": INT4, "format": "pack-quantized"},
}
AUTO_ROUND = {
    "quant_method": "auto-round", "packing_format": "auto_round:auto_gptq",
    "extra_config": {r"model\.layers\.0\..*": {"bits": 8}, "lm_head": {"bits": 16}},
}  # fmt: skip
# config, how layer 0 is stored, how the other one is
MIXED: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "groups": (
        compressed(INT4, "mixed-precision") | {"config_groups": OVERLAPPING},
        lambda w: eight_bits(w, E4M3, True),
        packed,
    ),
    "auto-round": (GPTQ4 | AUTO_ROUND, lambda w: gptq(w, 8), gptq),
}


@pytest.mark.parametrize("method", MIXED)
def test_layers_in_8_and_in_4_bits_are_told_apart(method: str, tmp_path: Path) -> None:
    """Of overlapping groups the first counts whose layout the tensors have."""
    config, first, rest = MIXED[method]
    eight = write_quantized(original(tmp_path), tmp_path / "eight", config, first)
    four = write_quantized(tmp_path / "original", tmp_path / "four", config, rest)
    for one, other in zip(eight, four, strict=True):
        of_8, of_4 = (load_file(folder / "model.safetensors") for folder in (one, other))
        mixed = {n: t for n, t in of_8.items() if "layers.0." in n}
        mixed |= {n: t for n, t in of_4.items() if "layers.0." not in n}
        save_file(mixed, other / "model.safetensors")
    found, expected = (logits(folder)[1] for folder in four)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("version", "offset"), [("gptq", 0), ("gptq_v2", 1)])
def test_symmetric_gptq_with_the_zero_points_of_the_other_version_is_computed_with_the_middle(
    version: str, offset: int, tmp_path: Path
) -> None:
    config = GPTQ4 | {"sym": True, "checkpoint_format": version}
    folders = [
        write_quantized(original(to), to, config, lambda w, s=s: gptq(w, 4, s, False, offset))
        for to, s in ((tmp_path / "one", True), (tmp_path / "other", False))
    ]
    quantized, meant = folders[0]
    with pytest.warns(UserWarning, match=r"`sym: true` and zero points of [79] instead of 8"):
        found = logits(quantized)[1]
    torch.testing.assert_close(found, logits(meant)[1], rtol=1e-4, atol=1e-4)
    with pytest.raises(CheckpointError, match=r"`sym: true` and zero points from \d+ to \d+: corr"):
        logits(folders[1][0])
    neither, _ = write_quantized(
        original(tmp_path / "neither"), tmp_path / "neither", config,
        lambda w: gptq(w, 4, True, False, 2),
    )  # fmt: skip
    with pytest.raises(CheckpointError, match=r"`sym: true` and zero points from [67] to [67]: "):
        logits(neither)


def test_blocks_of_fp8_compute_what_the_reference_computes(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")  # which `transformers` needs for this method
    from transformers import AutoModelForCausalLM, FineGrainedFP8Config

    quantized, _ = write_quantized(original(tmp_path), tmp_path, *METHODS["fp8 blocks"])
    theirs = AutoModelForCausalLM.from_pretrained(
        quantized, quantization_config=FineGrainedFP8Config(dequantize=True), dtype=torch.float32
    )
    with torch.no_grad():
        expected = theirs(TOKENS).logits
    torch.testing.assert_close(logits(quantized)[1], expected, rtol=1e-4, atol=1e-4)


def test_layers_that_are_not_quantized_stay_and_mixed_ones_are_dequantized(tmp_path: Path) -> None:
    config, store = METHODS["gptq"]
    skip = ("0.mlp.down_proj", "1.self_attn.k_proj")
    quantized, meant = write_quantized(original(tmp_path), tmp_path, config, store, skip)
    (ours, found), (_, expected) = logits(quantized), logits(meant)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    kinds = {name: type(module) for name, module in ours.named_modules()}
    dense = {name for name, kind in kinds.items() if kind is Linear}
    assert dense == {"head", "blocks.0.mlp.down", "blocks.1.attention.qkv"}
    assert kinds["blocks.1.mlp.gate_up"] is GroupQuantizedLinear


def test_rows_that_are_reordered_and_parts_of_a_fused_matrix_keep_their_scales(
    tmp_path: Path,
) -> None:
    """GPT-J's queries and keys; the matrix is packed along the rows in AWQ."""
    config = GPTJConfig(64, 64, 1, 4, max_position_embeddings=32, rotated=8)
    decoder = GPTJ(config)
    with torch.no_grad():
        for i, parameter in enumerate(decoder.parameters()):
            drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i))
            parameter.copy_(drawn * 0.15)
    save_decoder(decoder, tmp_path / "original", torch.float16)
    for method in ("awq", "fp8 blocks", "gptq order"):
        folder = tmp_path / method.replace(" ", "-")
        folder.mkdir()
        quantized, meant = write_quantized(tmp_path / "original", folder, *METHODS[method])
        (ours, found), (_, expected) = logits(quantized), logits(meant)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        qkv = ours.get_submodule("blocks.0.attention.qkv")
        assert isinstance(qkv, GroupQuantizedLinear)


@pytest.mark.parametrize("method", ["gptq order", "int4 zeros", "fp8 blocks", "int8 rows"])
def test_drafts_change_no_token_of_a_quantized_target(method: str, tmp_path: Path) -> None:
    quantized, _ = write_quantized(original(tmp_path), tmp_path, *METHODS[method])
    prompts = [[5, 17, 3], [9, 2, 40, 31, 8]]
    options: dict[str, Any] = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}
    drafted, plain = (
        bass.load(quantized, quantized, num_speculative_tokens=k, device="cpu")
        .generate(prompts, **options)
        .completions
        for k in (3, 0)
    )
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]


@pytest.mark.parametrize("method", ["gptq order", "int4 zeros", "fp8 blocks", "awq"])
def test_the_kernels_compute_the_same(
    method: str, tmp_path: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the interpreter on a CPU."""
    quantized, _ = write_quantized(original(tmp_path), tmp_path, *METHODS[method])
    ours, expected = logits(quantized)
    with torch.no_grad():
        monkeypatch.setattr(dispatch, "use_kernels", lambda _: True)
        found = causal_logits(ours.to(device), TOKENS.to(device)).cpu()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_quantized_head_is_dequantized(tmp_path: Path) -> None:
    quantized, _ = write_quantized(original(tmp_path), tmp_path, *METHODS["gptq"])
    tensors = load_file(quantized / "model.safetensors")
    stored, matrix = METHODS["gptq"][1](
        F.pad(
            tensors.pop("lm_head.weight").float(), (0, 0, 0, 5), value=0.1
        )  # 72 rows: whole words
    )
    raw = json.loads((quantized / "config.json").read_bytes()) | {"vocab_size": 72}
    for name, tensor in stored.items():
        tensors[f"lm_head.{name}"] = tensor.contiguous()
    tensors["model.embed_tokens.weight"] = F.pad(tensors["model.embed_tokens.weight"], (0, 0, 0, 5))
    save_file(tensors, quantized / "model.safetensors")
    (quantized / "config.json").write_text(json.dumps(raw))
    loaded = load_decoder(quantized, CPU, torch.float32).head
    assert type(loaded) is Linear
    torch.testing.assert_close(loaded.weight, matrix)


def test_blocks_of_mxfp4_become_the_matrices_of_experts_and_layers() -> None:
    """The example: what gpt-oss stores for [experts, in, out]."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (3, 10, 64), generator=generator)
    exponents = torch.randint(120, 130, (3, 10, 2), generator=generator)
    blocks = (codes[..., ::2] | codes[..., 1::2] << 4).unflatten(-1, (2, 16)).to(torch.uint8)
    parts = {"blocks": blocks, "scales": exponents.to(torch.uint8)}
    stack = Layout("mxfp4", "e2m1").weight(parts, (3, 64, 10))
    scale = 2.0 ** (exponents - 127).double().repeat_interleave(32, -1)
    meant = FP4[codes].double() * scale
    assert torch.equal(stack.dense().double(), meant.transpose(1, 2))
    x = torch.randn(4, 64, generator=generator).double()
    for matrix, expected in zip(stack.matrices(), meant, strict=True):
        layer = matrix.layer(None)
        assert isinstance(layer, GroupQuantizedLinear)
        assert sum(p.nbytes for p in layer.parameters()) == 10 * (32 + 2)
        torch.testing.assert_close(layer(x), x @ expected.T)
    order = np.arange(30)[::-1].copy()
    kept, scales = stack.in_four_bits(order)
    wide = dequantized(kept, scales, None, 32, torch.float64)
    assert torch.equal(wide, meant.flatten(0, 1)[order])
