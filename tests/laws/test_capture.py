"""Between the lengths and the verdict the host is not needed: the whole step is one CUDA graph, and its replay is the step."""

import numpy as np
import pytest
import torch

from bass.attention import SDPA
from bass.caches import PaddedCache
from bass.drafters import ModelDrafter
from bass.engine.bench import OwnDraw
from bass.engine.scorer import ModelScorer
from bass.engine.step import SpeculativeStep
from bass.interfaces import Verifier
from bass.models.llama import Llama, LlamaConfig
from bass.records import Room, Sequences
from bass.sampling import Sampling
from bass.verifiers import VERIFIERS

pytestmark = pytest.mark.gpu
BATCH, SPAN, K, STEPS = 3, 64, 3, 6


def random_model(seed: int, device: torch.device) -> Llama:
    model = Llama(LlamaConfig(53, 32, 48, 2, 4, 2, 8, max_position_embeddings=SPAN, tie_word_embeddings=True), device)
    for i, parameter in enumerate(model.parameters()):
        values = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(100 * seed + i))
        parameter.data.copy_(0.3 * values + (parameter.dim() == 1))
    return model.requires_grad_(False)


def fresh(device: torch.device, warp: Sampling, verifier: Verifier) -> tuple[SpeculativeStep, Sequences]:
    """A step over empty caches, and three rows with prompts of one token."""
    extents = np.full(BATCH, SPAN)
    scorers = [
        ModelScorer(model, PaddedCache.allocate(model.shape, Room.of(extents), device, torch.float32), SDPA(), BATCH)
        for model in (random_model(1, device), random_model(2, device))
    ]
    sequences = Sequences.empty(BATCH, SPAN, [0], device)
    sequences.tokens[:, 0] = torch.arange(5, 5 + BATCH, device=device)
    sequences.lens.fill_(1)
    sequences.limits.fill_(SPAN)
    sequences.keys.copy_(torch.arange(BATCH, device=device))
    sequences.active.fill_(True)
    return SpeculativeStep(scorers[0], ModelDrafter(scorers[1], warp, OwnDraw()), verifier, warp), sequences


@pytest.mark.parametrize("warp", [Sampling(0.0), Sampling(1.0), Sampling(0.8, 20, 0.9, 0.01, 1.2)], ids=["greedy", "plain", "all warps"])
@pytest.mark.parametrize("verifier", VERIFIERS)
@torch.inference_mode()
def test_a_replayed_graph_of_the_step_gives_the_tokens_of_the_step(verifier: str, warp: Sampling) -> None:
    device = torch.device("cuda")
    lengths = torch.tensor([K, 0, 2], device=device)
    step, eager = fresh(device, warp, VERIFIERS[verifier]())
    for _ in range(STEPS):
        step.on_device(eager, lengths, K, SPAN)

    step, captured = fresh(device, warp, VERIFIERS[verifier]())
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step.on_device(captured, lengths, K, SPAN)  # the first step warms up
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.on_device(captured, lengths, K, SPAN)
    for _ in range(STEPS - 1):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured.lens, eager.lens)
    assert torch.equal(captured.tokens, eager.tokens)
    assert (eager.lens > 1).all()
