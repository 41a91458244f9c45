"""Between the lengths and the verdict the host is not needed: the whole step is one CUDA graph, and its replay is the step."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

import bass
from bass.attention import SDPA
from bass.caches import CACHES, PaddedCache
from bass.drafters import Ensemble, ModelDraft, ModelDrafter, Ngram, Replay, SelfDraft
from bass.engine.bench import OwnDraw
from bass.engine.scorer import ModelScorer
from bass.engine.step import SpeculativeStep
from bass.errors import BassError
from bass.interfaces import Verifier
from bass.models.fused import FusedPreNorm
from bass.models.llama import Llama, LlamaConfig
from bass.records import Room, Sequences
from bass.sampling import Sampling
from bass.testing.drafters import Scripted
from bass.testing.policies import OwnPast
from bass.verifiers import VERIFIERS
from unit.checkpoints import write_checkpoint

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


DRAFTERS = {
    "model": "model",
    "ngram": "ngram",
    "self": SelfDraft(1),
    "replay": Replay([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]]),
    "ensemble": Ensemble((Ngram(), SelfDraft(1), ModelDraft())),
}


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_generating_with_graphs_gives_the_tokens_of_generating_without(drafter: str, cache: str, tmp_path: Path) -> None:
    """More prompts than rows, mixed lengths, twice with one engine, then with options for which it has to make another one."""
    target = write_checkpoint(tmp_path / "target", None, 32, 3, 53, context=256)
    draft = write_checkpoint(tmp_path / "draft", None, 16, 1, 53, context=256) if drafter in ("model", "ensemble") else None
    rule = "confidence" if drafter not in ("ngram", "replay") else None
    options = {"drafter": DRAFTERS[drafter], "cache": cache, "stop_rule": rule, "policy": OwnPast(), "max_batch_size": 3, "device": "cuda"}
    both = [bass.load(target, draft, cuda_graphs=graphs, dtype="float32", **options) for graphs in (True, False)]
    prompts = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7], [9, 3], [2, 3, 8]]
    for request in ({"temperature": 0}, {"temperature": 0}, {"temperature": 1.0, "seed": 5}, {"temperature": 1.0, "max_new_tokens": 90}):
        graphed, plain = (llm.generate(prompts, **{"max_new_tokens": 12, "num_return_sequences": 2} | request) for llm in both)
        assert [c.token_ids for c in graphed.completions] == [c.token_ids for c in plain.completions]
        assert all(c.token_ids for c in graphed.completions)


def test_a_drafter_that_reads_on_the_host_cannot_be_captured_and_says_so(tmp_path: Path) -> None:
    target = write_checkpoint(tmp_path / "target", None, 32, 2, 53, context=256)
    llm = bass.load(target, drafter=Scripted({}, lambda *_: False, 53), num_speculative_tokens=2, device="cuda", cuda_graphs=True)
    with pytest.raises(BassError, match=r"cannot be captured as a CUDA graph .* give `cuda_graphs=False`"):
        llm.generate([[3, 1, 4]], max_new_tokens=6)


def test_two_generations_at_once_have_engines_of_their_own(tmp_path: Path) -> None:
    target = write_checkpoint(tmp_path / "target", None, 32, 2, 53, context=256)
    llm = bass.load(target, drafter="ngram", policy=OwnPast(), device="cuda", cuda_graphs=True, dtype="float32")
    options = {"max_new_tokens": 20, "temperature": 1.0}
    alone = [llm.generate(prompt, **options).completions[0].token_ids for prompt in ([1, 2, 3], [4, 5])]
    streams = [llm.stream(prompt, **options) for prompt in ([1, 2, 3], [4, 5])]
    for _ in itertools.zip_longest(*streams):
        pass
    assert [stream.result().completions[0].token_ids for stream in streams] == alone


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_fused_pair_generates_in_every_dtype(dtype: str, tmp_path: Path) -> None:
    """In float32 the tokens are those of the plain blocks on a CPU."""
    target, draft = (write_checkpoint(tmp_path / name, None, 32, layers, 53, context=256) for name, layers in (("a", 3), ("b", 2)))
    made = {device: bass.load(target, draft, device=device, dtype=dtype, policy=OwnPast()) for device in ("cuda", "cpu")}
    assert all(isinstance(block, FusedPreNorm) for block in made["cuda"].models.target.blocks)
    results = {d: llm.generate([[3, 1, 4], [1, 5]], max_new_tokens=24, temperature=0).completions for d, llm in made.items()}
    assert all(c.finish_reason for c in results["cuda"])
    if dtype == "float32":
        assert [c.token_ids for c in results["cuda"]] == [c.token_ids for c in results["cpu"]]
