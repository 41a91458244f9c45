"""gpt-oss as it is published, its experts in MXFP4, computes what a dequantized copy computes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from bass.checkpoints.weights import load_decoder, read_index, save_decoder
from bass.engine.cost import pass_cost
from bass.errors import CheckpointError
from bass.ops.quantize import dequantized
from models.cases import CASES, Case
from models.reference import deviation, make

# of the codes of four bits: sign, two bits of exponent, one of mantissa
VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
VALUES = torch.cat((VALUES, -VALUES))
BIAS = 127  # of the scales' exponents


def written(folder: Path, inner: int, hidden: int) -> tuple[Case, PreTrainedModel]:
    """gpt-oss with experts of these sizes in MXFP4, and the same dequantized."""
    first = next(case for case in CASES if case.family == "gpt_oss")
    sizes = {"intermediate_size": inner, "hidden_size": hidden}
    case = replace(first, arguments=first.arguments | sizes)
    model = make(case)
    stored, random = {}, torch.Generator().manual_seed(0)
    for i, layer in enumerate(model.model.layers):
        for name in ("gate_up_proj", "down_proj"):
            weight = getattr(layer.mlp.experts, name)  # [experts, in, out]
            count, size, out = weight.shape
            codes = torch.randint(0, 16, (count, out, size // 32, 32), generator=random)
            exponents = torch.randint(-5, -2, (count, out, size // 32), generator=random)
            values = VALUES[codes] * torch.exp2(exponents.float())[..., None]
            weight.copy_(values.flatten(2).mT)
            prefix = f"model.layers.{i}.mlp.experts.{name}"
            low, high = codes.unflatten(-1, (16, 2)).unbind(-1)
            stored[f"{prefix}_blocks"] = (low | high << 4).to(torch.uint8)
            stored[f"{prefix}_scales"] = (exponents + BIAS).to(torch.uint8)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    kept = {n: t for n, t in tensors.items() if not n.endswith(("up_proj", "down_proj"))}
    save_file(kept | stored, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    method = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": method}))
    return case, model


@pytest.mark.parametrize(
    ("inner", "hidden", "kept"), [(64, 128, (True, True)), (32, 64, (True, False))], ids=str
)
def test_experts_in_mxfp4_equal_a_dequantized_copy(
    inner: int, hidden: int, kept: tuple[bool, bool], tmp_path: Path
) -> None:
    """Matrices with whole groups in each half of their inputs stay in 4 bits."""
    case, model = written(tmp_path, inner, hidden)
    assert deviation(case, tmp_path, model) < 1e-4
    decoder = load_decoder(tmp_path, torch.device("cpu"), torch.bfloat16)
    ours, theirs = decoder.blocks[1].mlp.experts, model.model.layers[1].mlp.experts
    assert (ours.gate_up_scale is not None, ours.down_scale is not None) == kept
    gates, ups = theirs.gate_up_proj.mT.unflatten(1, (-1, 2)).unbind(2)
    found = dequantized(ours.gate_up, ours.gate_up_scale, None, 32, torch.float32)
    assert torch.equal(found, torch.cat((gates, ups), 1).flatten(0, 1))
    found = ours.down
    if ours.down_scale is not None:
        found = dequantized(found, ours.down_scale, None, 32, torch.bfloat16)
    assert torch.equal(found, theirs.down_proj.mT.flatten(0, 1).bfloat16())


def test_experts_in_four_bits_count_as_stored(tmp_path: Path) -> None:
    _, model = written(tmp_path, 64, 128)
    index = read_index(tmp_path)
    decoder = index.load(torch.device("cpu"), torch.bfloat16)
    layers = model.config.num_hidden_layers
    weights = layers * 6 * 3 * 64 * 128
    biases = layers * 6 * (2 * 64 + 128)
    assert pass_cost(decoder).expert_bytes == weights * 17 // 32 + 2 * biases  # 4.25 bits
    assert sum(p.nbytes for p in decoder.parameters()) == index.weight_bytes(torch.bfloat16)
    with pytest.raises(CheckpointError, match="The decoder is quantized or otherwise changed"):
        save_decoder(decoder, tmp_path / "saved")
