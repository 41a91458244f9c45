"""Quantized checkpoints are read as they are: each method computes what its tensors stand for."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bass.checkpoints.weights import load_decoder, read_index, save_decoder
from bass.models.decoder import CausalDecoder
from bass.models.llama import Llama, LlamaConfig
from bass.models.qwen2 import Qwen2, Qwen2Config
from bass.ops.group_quantized import GroupQuantizedLinear
from bass.ops.linear import QuantizedLinear
from models.reference import causal_logits
from unit.stored_quantizations import METHODS, write_quantized

CPU = torch.device("cpu")
# methods that quantize activations, too, which the matrices alone do not show
ACTIVATIONS = {"fp8 tensor": 0.1, "fp8 rows": 0.1, "int8 rows": 0.03}
TOKENS = torch.tensor([[5, 17, 3, 40, 8, 2, 61, 30]])


def original(folder: Path, kind: type[CausalDecoder] = Llama) -> Path:
    fields: dict[str, Any] = {
        "vocab_size": 67,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    config = {Llama: LlamaConfig, Qwen2: Qwen2Config}[kind](**fields)
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
