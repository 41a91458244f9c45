"""gpt-oss as it is published, its experts in MXFP4, computes what a dequantized copy computes."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from bass.checkpoints.weights import load_decoder
from models.cases import CASES
from models.reference import deviation, make

# of the codes of four bits: sign, two bits of exponent, one of mantissa
VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
VALUES = torch.cat((VALUES, -VALUES))
BIAS = 127  # of the scales' exponents


def test_experts_in_mxfp4_equal_a_dequantized_copy(tmp_path: Path) -> None:
    first = next(case for case in CASES if case.family == "gpt_oss")
    case = replace(first, arguments=first.arguments | {"intermediate_size": 32})  # whole groups
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
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    kept = {n: t for n, t in tensors.items() if not n.endswith(("up_proj", "down_proj"))}
    save_file(kept | stored, tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    method = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": method}))
    assert deviation(case, tmp_path, model) < 1e-4
    decoder = load_decoder(tmp_path, torch.device("cpu"), torch.bfloat16)
    assert decoder.blocks[0].mlp.experts.down.dtype == torch.bfloat16
