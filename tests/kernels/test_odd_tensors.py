"""Tier 3: kernels read tensors by their strides or make them dense, and nothing where a token is
none.
"""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bass.engine.graphs import GraphedStep
from bass.engine.shapes import StepShape
from bass.engine.step import StepReport
from bass.kernels import support
from bass.kernels.triton import (
    attention,
    batch_state,
    rejection_sampling,
    residual_norm,
    small_m_gemm,
    validity,
)
from bass.kernels.values import Norm
from bass.ops.residual import embedding
from bass.records import Sequences
from kernels.conftest import Choose
from kernels.layouts import Problem


def drawn(*shape: int, device: torch.device, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def every_other(x: torch.Tensor) -> torch.Tensor:
    """The same rows, with others between them that are not numbers."""
    return torch.stack((x, torch.full_like(x, torch.nan)), 1)[:, 0]


ROWS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "linear": lambda x, w: small_m_gemm.linear(x, w),
    "gated": lambda x, w: small_m_gemm.gated(x, w, "silu"),
    "norm": lambda x, w: residual_norm.add_norm(x, w[None, : len(x)].clone(), Norm(w[0], 1e-5))[1],
    "gate": lambda x, w: small_m_gemm.gate(x[None], "silu", x.dtype),
    "head": lambda x, w: small_m_gemm.linear(x, w).sum(0),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_may_lie_apart(name: str, device: torch.device) -> None:
    """As the last of each window do, where only these go on."""
    x, w = drawn(3, 40, device=device), drawn(24, 40, device=device, seed=1)
    assert torch.equal(ROWS[name](every_other(x), w), ROWS[name](x, w))


def columns(x: torch.Tensor) -> torch.Tensor:
    return torch.stack((x, x + 50), 1)[:, 0]


@pytest.mark.parametrize(
    "kind",
    [columns, lambda x: columns(x.to(torch.int32)), lambda x: x[:1].expand(len(x))],
    ids=["a", "b", "c"],
)
def test_a_number_for_each_row_may_be_a_column_narrow_or_one_for_all(
    kind: Callable[[torch.Tensor], torch.Tensor], device: torch.device
) -> None:
    counts, lens = torch.tensor([2, 1, 0], device=device), torch.tensor([5, 3, 4], device=device)
    odd, active = kind(counts), torch.tensor([True, True, True], device=device)
    even = odd.to(torch.int64).contiguous()
    draft, probs, uniforms = (
        drawn(3, 3, device=device).abs().to(torch.int64),
        drawn(3, 4, 9, device=device).abs(),
        drawn(3, 4, device=device),
    )
    kept, tokens = draft < 2, torch.arange(36, device=device).view(3, 12)

    def all_of(n: torch.Tensor) -> list[torch.Tensor]:
        committed = [x.clone() for x in (tokens, lens, lens + 4, active, lens)]
        window = torch.cat((draft, draft[:, :1]), 1)
        told = lens, active, n, n, lens, n, window, probs[:, :, 0], draft, probs[:, :3]
        return [
            batch_state.draft_positions(lens, n, 3),
            *validity.valid_part(lens, n, draft, probs[:, :3], 9),
            *validity.valid_part(lens, n, draft, None, 9),
            *batch_state.window(tokens, lens, active, draft, n),
            batch_state.leading(kept, n),
            batch_state.commit(*committed, draft[:, :0], window, n, 9),
            batch_state.clipped(n, lens, lens + 4, active),
            *committed,
            batch_state.pack_report(*told),
            rejection_sampling.emit(draft, n, probs[:, 0], uniforms.abs().clamp(max=0.9)),
            *rejection_sampling.verdict(
                draft, probs[:, :3], n, probs, uniforms[:, :3].abs(), uniforms.abs().clamp(max=0.9)
            ),
        ]

    for ours, theirs in zip(all_of(odd), all_of(even), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_a_length_is_cut_to_the_columns_that_there_are(device: torch.device) -> None:
    lengths, tokens = (
        torch.tensor([9, 1], device=device),
        torch.ones(2, 3, dtype=torch.int64, device=device),
    )
    assert validity.valid_part(lengths, lengths, tokens, None, 9)[0].tolist() == [3, 1]


def test_a_drafted_token_that_is_none_is_reported_without_a_probability(
    device: torch.device,
) -> None:
    """And without a look at what lies outside its distribution."""
    numbers, active = (
        torch.zeros(2, dtype=torch.int64, device=device),
        torch.ones(2, dtype=torch.bool, device=device),
    )
    tokens, logprobs = (
        torch.zeros(2, 3, dtype=torch.int64, device=device),
        torch.zeros(2, 3, device=device),
    )
    probs = torch.full((2, 2, 5), 0.25, device=device)
    drafted = torch.tensor([[4, 5], [-1, 10**9]], device=device)
    told = numbers, active, *(numbers,) * 4, tokens, logprobs, drafted, probs
    found = StepReport.of(batch_state.pack_report(*told).cpu().numpy(), ())
    np.testing.assert_array_equal(found.text.draft_probs, [[0.25, np.nan], [np.nan, np.nan]])


def test_a_table_that_is_trained_gets_its_gradient(kernels: Choose, device: torch.device) -> None:
    kernels(True)
    table, tokens = (
        nn.Parameter(drawn(7, 5, device=device)),
        torch.tensor([[3, 0], [3, 6]], device=device),
    )
    embedding(tokens, table).square().sum().backward()
    (expected,) = torch.autograd.grad(F.embedding(tokens, table).square().sum(), table)
    assert table.grad is not None
    assert torch.equal(table.grad, expected)
    with torch.no_grad():
        assert torch.equal(embedding(tokens, table), F.embedding(tokens, table))


def test_more_tiles_than_there_are_counts_are_not_split(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many rows of long contexts, which would be."""
    monkeypatch.setattr(attention, "LONGEST_SPLIT", 16)
    monkeypatch.setattr(attention, "SPLIT_KEYS", 16)
    problem = Problem.draw([[70], [50], [3]], 2, 1, 8, torch.float32, device)
    for most in (6, 5):
        monkeypatch.setattr(attention, "MOST_TILES", most)
        torch.testing.assert_close(
            problem.kernel("ragged", (0.3, None, None)),
            problem.twin("ragged", (0.3, None, None)),
            rtol=2e-5,
            atol=2e-5,
        )


def test_a_gpu_whose_shared_memory_is_too_small_is_left_to_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A T4 has 64 KB. What torch compiles takes what there is."""
    monkeypatch.setattr(support.torch.cuda, "is_available", lambda: True)
    for size, refused in ((64, True), (100, False), (164, False), (228, False)):
        properties = SimpleNamespace(shared_memory_per_multiprocessor=size << 10)
        monkeypatch.setattr(
            support.torch.cuda, "get_device_properties", lambda _, found=properties: found
        )
        support.shared_memory.cache_clear()
        said = support.unsupported(torch.device("cuda"))
        assert (said is not None) == refused
        assert said is None or said.reason.startswith(f"its programs have {size - 1} KB")
        assert support.triton_unsupported(torch.device("cuda")) is None
    support.shared_memory.cache_clear()


def test_the_lengths_of_an_abandoned_step_are_read_before_the_next_ones_are_written() -> None:
    """The device may be behind: what a graph copies from the host must stay until it has."""
    happened: list[object] = []
    step: Any = object.__new__(GraphedStep)
    sequences = Sequences.empty(2, 8, [], torch.device("cpu"))
    report = torch.zeros((2, 11), dtype=torch.int64)
    reports = report.clone(), report.clone()
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: happened.append("waited"))
    graph: Any = SimpleNamespace(replay=lambda: happened.append(step.host_lengths.tolist()))
    lengths = torch.zeros(2, dtype=torch.int64)
    vars(step).update(
        sequences=sequences, host_lengths=lengths, host_array=lengths.numpy(), lengths=lengths,
        staged=[0, 0], here=nullcontext(), ends=(event, event), in_flight=None, turn=0,
        captured={StepShape(1, 8): SimpleNamespace(graph=graph, packed=report, passes=(),
            prompts=None, reports=reports, arrays=tuple(report.numpy() for report in reports))},
    )  # fmt: skip
    step.launch(sequences, [1, 0], StepShape(1, 8))
    step.launch(sequences, [0, 1], StepShape(1, 8))()
    step.launch(sequences, [1, 1], StepShape(1, 8))
    assert happened == [[1, 0], "waited", [0, 1], "waited", [1, 1]]
    happened.clear()
    for _ in range(2):  # the same lengths need no waiting
        step.launch(sequences, [1, 1], StepShape(1, 8))
    assert happened == [[1, 1], [1, 1]]
