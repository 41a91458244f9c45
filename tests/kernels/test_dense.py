"""Tier 3: products, norms and turns equal their twins; a fused decoder is the decoder, in the engine too."""

from copy import deepcopy

import pytest
import torch

from bass.kernels import dense, reference, stream
from bass.models.fused import FusedPreNorm, Stream, fuse
from bass.policies import Fixed
from bass.sampling import Sampling
from bass.testing.worlds import LlamaWorld
from support.engines import Setup, mixed_requests
from support.oracle import greedy

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
SHAPES = [(1, 64, 64), (3, 70, 40), (5, 24, 1100), (17, 130, 96), (64, 66, 72)]  # rows, out, in


def drawn(*shape: int, dtype: torch.dtype, device: torch.device, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device, dtype)


def assert_near(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """Relative to the whole: single sums may cancel."""
    assert found.isfinite().all()
    assert (found.double() - expected).norm() <= TOLERANCE[dtype] * expected.norm()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_of_few_rows_equals_its_twin_however_it_is_divided(
    shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> None:
    rows, out, inner = shape
    x, w = drawn(rows, inner, dtype=dtype, device=device), drawn(out, inner, dtype=dtype, device=device, seed=1)
    bias = drawn(out, dtype=dtype, device=device, seed=2)
    for splits in (1, 2, 4, None):
        for b in (None, bias):
            y = dense.linear(x, w, b, splits)
            assert y.dtype == (dtype if len(y) == 1 else torch.float32)
            assert_near(y.sum(0), reference.linear(x, w, b), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_tanh"])
def test_a_gated_product_equals_its_twin(act: str, dtype: torch.dtype, device: torch.device) -> None:
    for rows, twice, inner in ((1, 64, 64), (3, 70, 40), (17, 260, 96)):
        x, w = drawn(rows, inner, dtype=dtype, device=device), drawn(twice, inner, dtype=dtype, device=device, seed=1)
        assert_near(dense.gated(x, w, act), reference.gated(x, w, act), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("splits", [0, 1, 3])
def test_the_sum_and_norm_of_the_stream_equal_their_twin(splits: int, dtype: torch.dtype, device: torch.device) -> None:
    for rows, size in ((1, 48), (5, 130)):
        base, weight = drawn(rows, size, dtype=dtype, device=device), drawn(size, dtype=dtype, device=device, seed=1)
        parts = drawn(splits, rows, size, dtype=torch.float32, device=device, seed=2) if splits else None
        found, expected = stream.add_norm(base, parts, weight, 1e-3), reference.add_norm(base, parts, weight, 1e-3)
        for ours, theirs in zip(found, expected, strict=True):
            assert_near(ours, theirs.double(), dtype)
        assert (found[0] is base) == (splits == 0)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("splits", [1, 2])
def test_the_turn_of_heads_equals_its_twin(splits: int, dtype: torch.dtype, device: torch.device) -> None:
    for rows, heads, turning, dim in ((1, 3, 2, 8), (5, 6, 4, 20)):
        y = drawn(splits, rows, heads, dim, dtype=dtype, device=device)
        cos, sin = (drawn(rows, dim, dtype=dtype, device=device, seed=seed) for seed in (1, 2))
        assert_near(stream.turn(y, turning, cos, sin, dtype), reference.turn(y, turning, cos, sin), dtype)


def fused(world: LlamaWorld, device: torch.device) -> LlamaWorld:
    for role, model in world.models.items():
        world.models[role] = fuse(deepcopy(model).to(device))
        assert all(isinstance(block, FusedPreNorm) for block in world.models[role].blocks)
    return world


@pytest.mark.parametrize("batch", [1, 3])
def test_fused_blocks_emit_the_oracles_tokens(batch: int, device: torch.device) -> None:
    plain, world = LlamaWorld(), fused(LlamaWorld(), device)
    requests = mixed_requests(plain, count=3, longest=7) if device.type == "cpu" else mixed_requests(plain)
    outcome = Setup(world, device, policy=Fixed(2), warp=Sampling(temperature=0), batch=batch).outcome(requests)
    assert outcome.tokens == [greedy(plain, request.prompt, request.limit) for request in requests]
    assert 0 < outcome.acceptance()[1] < outcome.acceptance()[0]


def test_a_stream_adds_up_to_what_a_plain_block_wants(device: torch.device) -> None:
    base, parts = drawn(6, 4, dtype=torch.float32, device=device), drawn(2, 6, 4, dtype=torch.float32, device=device, seed=1)
    waiting = Stream(base, parts, torch.Size((2, 3, 4)))
    torch.testing.assert_close(waiting.added(), (base + parts[0] + parts[1]).view(2, 3, 4))
