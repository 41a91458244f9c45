"""Fused kernels serve the decoders of Llama's kind, which say the same with them; all others stay
as they are.
"""

from pathlib import Path

import pytest
import torch

from bass.engine.cost import model_cost
from bass.interfaces import Quantization
from bass.models.fused import FusedPreNorm, fuse
from bass.models.quantized import Fp8, Int8, Int8Weight, quantize, quantize_head
from bass.models.weights import load_decoder
from models.cases import CASES
from models.reference import causal_logits, make

FIRST = {case.family: case for case in reversed(CASES)}
FUSED = {"llama", "mistral", "phi3", "qwen2"}


@pytest.mark.parametrize("family", sorted(FIRST))
def test_a_fused_decoder_gives_the_logits_of_the_plain_one(family: str, tmp_path: Path) -> None:
    make(FIRST[family]).save_pretrained(tmp_path)
    decoder = load_decoder(tmp_path, torch.device("cpu"), torch.float32)
    tokens = torch.randint(0, 90, (2, 9), generator=torch.Generator().manual_seed(0))
    plain = causal_logits(decoder, tokens)
    found = fuse(decoder)
    assert [isinstance(block, FusedPreNorm) for block in found.blocks] == [family in FUSED] * len(
        found.blocks
    )
    if family in FUSED:
        assert (causal_logits(found, tokens) - plain).abs().max() <= 1e-5 * plain.abs().max()


NIGHTLY = [pytest.param(q, marks=pytest.mark.nightly) for q in (Fp8(), Int8Weight())]


@pytest.mark.parametrize("quantization", [Int8(), *NIGHTLY], ids=lambda q: type(q).__name__)
def test_a_quantized_head_stays_as_it_is(quantization: Quantization, tmp_path: Path) -> None:
    make(FIRST["llama"]).save_pretrained(tmp_path)
    decoder = load_decoder(tmp_path, torch.device("cpu"), torch.float32)
    decoder = quantize_head(quantize(decoder, quantization), quantization)
    tokens = torch.randint(0, 90, (2, 9), generator=torch.Generator().manual_seed(0))
    plain, cost, head = causal_logits(decoder, tokens), model_cost(decoder), decoder.head
    found = fuse(decoder)
    assert found.head is head
    assert model_cost(found) == cost
    assert (causal_logits(found, tokens) - plain).abs().max() <= 1e-2 * plain.abs().max()
