"""Experts of quantized mixtures compute what a dequantized copy computes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bass.checkpoints.weights import load_decoder, read_index
from bass.ops.linear import GroupQuantizedLinear, QuantizedLinear
from models.cases import CASES
from models.reference import causal_logits, make
from unit.stored_quantizations import METHODS, write_quantized

CPU = torch.device("cpu")


STACKS = ["qwen3_moe", "mixtral", "olmoe", "granitemoe"]
QUANTIZED = ["fp8 blocks", "int4 order", "int4 zeros", "gptq order", "awq"]


@pytest.mark.parametrize(
    ("family", "method", "original"),
    [(family, method, True) for family in ("qwen3_moe", "olmoe") for method in QUANTIZED]
    + [(family, "fp8 blocks", False) for family in STACKS]
    + [("qwen3_moe", "fp8 tensor", False)],
)
def test_experts_are_dequantized_at_load(
    family: str, method: str, original: bool, tmp_path: Path
) -> None:
    """`mlp.experts.N.gate_proj`, or stacks of experts with `gate_up_proj_scale_inv`; the linear
    layers of attention stay quantized.
    """
    case = next(case for case in CASES if case.family == family)
    sizes = {"hidden_size", "intermediate_size", "moe_intermediate_size"} & case.arguments.keys()
    model = make(replace(case, arguments=case.arguments | dict.fromkeys(sizes, 64)))
    model.save_pretrained(tmp_path / "original", save_original_format=original)
    quantized, meant = write_quantized(tmp_path / "original", tmp_path, *METHODS[method])
    ours, theirs = (load_decoder(folder, CPU, torch.float32) for folder in (quantized, meant))
    experts = {n: p for n, p in ours.named_parameters() if ".experts." in n}
    for name, parameter in experts.items():
        torch.testing.assert_close(parameter, theirs.get_parameter(name))
    assert experts
    tokens = torch.tensor([[5, 17, 3, 40, 8, 2, 31, 30]])
    if method != "fp8 tensor":  # which quantizes activations, too
        expected = causal_logits(theirs, tokens)
        torch.testing.assert_close(causal_logits(ours, tokens), expected, rtol=1e-4, atol=1e-4)
    kinds = GroupQuantizedLinear, QuantizedLinear
    assert any(isinstance(module, kinds) for module in ours.modules())
    held = sum(p.nbytes for p in ours.parameters())
    assert read_index(quantized).weight_bytes(torch.float32) == held
