"""Tier 3: a decoder by kernels is the decoder, in the engine too."""

from pathlib import Path

import pytest
import torch

from bass.attention import BACKENDS, ON_CUDA
from bass.caches import CACHES
from bass.checkpoints.weights import load_decoder
from bass.interfaces import Quantization
from bass.policies import Fixed
from bass.quantization import Fp8, Int8, Int8Weight
from bass.quantization.apply import quantize, quantize_head
from bass.sampling_params import Sampling
from bass.testing.small_models import SmallLlama
from kernels.conftest import Choose
from models.cases import FIRST
from models.reference import causal_logits, make
from support.engines import Setup, mixed_requests
from support.matrix import by_day
from support.oracle import greedy

NIGHTLY = [pytest.param(q, marks=pytest.mark.nightly) for q in (Fp8(), Int8Weight())]
TOKENS = torch.randint(0, 90, (2, 9), generator=torch.Generator().manual_seed(0))


# one of each kind of norm, block and attention
BY_DAY = ("llama", "codegen", "cohere2", "falcon", "gemma2", "gpt2", "gpt_oss", "olmo2", "phi",
          "qwen3")  # fmt: skip


@pytest.mark.parametrize("family", by_day(sorted(FIRST), BY_DAY))
def test_a_decoder_by_kernels_gives_the_logits_of_torch(
    family: str, tmp_path: Path, kernels: Choose, device: torch.device
) -> None:
    make(FIRST[family]).save_pretrained(tmp_path)
    decoder = load_decoder(tmp_path, device, torch.float32)
    found = []
    for on in (False, True):
        kernels(on)
        found.append(causal_logits(decoder, TOKENS.to(device)))
    assert not torch.equal(*found)
    assert (found[1] - found[0]).abs().max() <= 1e-5 * found[0].abs().max()


@pytest.mark.parametrize("quantization", [Int8(), *NIGHTLY], ids=lambda q: type(q).__name__)
def test_a_quantized_decoder_by_kernels_gives_the_logits_of_torch(
    quantization: Quantization, tmp_path: Path, kernels: Choose, device: torch.device
) -> None:
    make(FIRST["llama"]).save_pretrained(tmp_path)
    decoder = load_decoder(tmp_path, device, torch.float32)
    decoder = quantize_head(quantize(decoder, quantization), quantization)
    found = []
    for on in (False, True):
        kernels(on)
        found.append(causal_logits(decoder, TOKENS.to(device)))
    assert not torch.equal(*found)
    assert (found[1] - found[0]).abs().max() <= 1e-2 * found[0].abs().max()


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.nightly), 3])
def test_blocks_by_kernels_emit_the_oracles_tokens(
    batch: int, kernels: Choose, device: torch.device
) -> None:
    world = SmallLlama()
    requests = (
        mixed_requests(world, count=3, longest=7) if device.type == "cpu" else mixed_requests(world)
    )
    kernels(True)
    pairing = CACHES["padded"], BACKENDS[ON_CUDA[0]]
    outcome = Setup(
        world, device, pairing, policy=Fixed(2), warp=Sampling(temperature=0), batch=batch
    ).outcome(requests)
    assert outcome.tokens == [greedy(world, request.prompt, request.limit) for request in requests]
    assert 0 < outcome.acceptance()[1] < outcome.acceptance()[0]
