"""The experts that `bass bench` counts are those that the target's routers choose for its text."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bass
from bass.attention.sdpa import SDPA
from bass.caches.padded import PaddedCache
from bass.checkpoints.weights import save_decoder
from bass.cli import bench as command
from bass.engine.cost import expected_experts
from bass.engine.scorer import ModelScorer
from bass.experiments.bench.experts import MOST_STEPS, experts_read, recorded_routers
from bass.experiments.bench.measure import Bench
from bass.experiments.bench.record import ExpertsRead, Machine
from bass.models.layers import SparseMLP
from bass.models.qwen3_moe import Qwen3Moe, Qwen3MoeConfig
from bass.ops.linear import Linear
from bass.records import CacheBudget, Window
from unit.checkpoints import Said

LENGTH, NEW, EXPERTS = 6, 24, 16
REQUEST: dict[str, Any] = {"max_new_tokens": NEW, "temperature": 0.0, "ignore_eos": True}
MACHINE = Machine("a machine", 1e9, 2e9, 1e12, 4e9)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with experts in two of its three layers."""
    folder = tmp_path_factory.mktemp("mixture")
    config = Qwen3MoeConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=EXPERTS,
        num_experts_per_tok=3, moe_intermediate_size=16, mlp_only_layers=(1,),
        max_position_embeddings=64,
    )  # fmt: skip
    decoder, generator = Qwen3Moe(config), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in decoder.parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn * 0.3 + (parameter.dim() == 1))
    save_decoder(decoder, folder, torch.float32)
    return folder


def of_text(bench: Bench, rows: list[list[int]], k: int, lengths: range) -> float:
    """The mean number of distinct experts in the windows of these texts, by one pass over them."""
    target, batch = bench.llm.models.target, len(rows)
    device = target.embed.device
    tokens = torch.tensor(rows, device=device)
    cache = PaddedCache.allocate(
        target.shape, CacheBudget.of(np.full(batch, len(rows[0]))), device, torch.float32
    )
    positions = torch.arange(tokens.shape[1], device=device).expand_as(tokens)
    layers = [module for module in target.modules() if isinstance(module, SparseMLP)]
    with torch.inference_mode(), recorded_routers(layers) as routers:
        ModelScorer(target, cache, SDPA(), batch)(Window(tokens, positions, tokens.shape[1]))
    choices = [router.choices[0].view(batch, -1, 3) for router in routers]
    counts = [
        len(choice[:, length - 1 : length + k].unique()) for length in lengths for choice in choices
    ]
    return sum(counts) / len(counts)


@pytest.mark.parametrize(("batch", "k"), [(1, 0), (3, 0), (2, 3)])
def test_it_counts_what_the_routers_choose_for_the_text(mixture: Path, batch: int, k: int) -> None:
    """The draft is the target, so that its greedy drafts are the text."""
    llm = bass.load(
        str(mixture), str(mixture) if k else None, num_speculative_tokens=k, max_batch_size=batch
    )
    prompts = [[3 * row + i for i in range(LENGTH)] for row in range(batch)]
    bench = Bench(llm, [prompts], REQUEST)
    bench.warm_up(0)
    bench.call(1)
    generation = bench._last
    assert generation is not None
    rows = generation.run.sequences
    text = rows.tokens[:, : LENGTH + NEW].tolist()
    lengths = range(LENGTH + 2, LENGTH + 2 + MOST_STEPS)
    assert lengths[-1] + k < LENGTH + NEW
    found = experts_read(llm.models.target, generation.run.step, rows, k, lengths)
    assert found is not None
    expected = expected_experts(EXPERTS, 3, batch * (k + 1))
    assert (found.k, found.experts, found.chosen) == (k, EXPERTS, 3)
    assert found.expected == pytest.approx(expected)
    assert found.measured == pytest.approx(of_text(bench, text, k, lengths))
    routers = [m.router for m in llm.models.target.modules() if isinstance(m, SparseMLP)]
    assert all(type(router) is Linear for router in routers)


def test_tables_and_json_say_it(
    bass_command: Callable[..., Said], mixture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "measure_machine", lambda device, dtype: MACHINE)
    own = ("--target", str(mixture), "--draft", str(mixture), "--methods", "plain", "2")
    sizes = ("--prompt-length", "4", "--max-new-tokens", "8", "--batches", "1", "2")
    said = bass_command("bench", *own, *sizes, "--json")
    assert said.status == 0, said.err
    line = json.loads(said.out)
    by = {(one["method"], one["batch"]): one["experts"] for one in line["settings"]}
    assert by["plain", 1] == asdict(ExpertsRead(0, EXPERTS, 3, 3.0, 3.0))
    assert by["k=2", 2]["expected"] == pytest.approx(expected_experts(EXPERTS, 3, 6))
    assert 3 <= by["k=2", 2]["measured"] <= EXPERTS
    assert "experts touched" in said.err
    assert any("experts touched are not those of texts" in one for one in line["warnings"])


def test_a_dense_target_has_none(
    bass_command: Callable[..., Said], pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "measure_machine", lambda device, dtype: MACHINE)
    sizes = ("--prompt-length", "4", "--max-new-tokens", "4", "--batches", "1")
    said = bass_command("bench", "--target", str(pair.target), *sizes, "--methods=plain", "--json")
    assert [one["experts"] for one in json.loads(said.out)["settings"]] == [None]
    assert "experts touched" not in said.err
