"""Tier 3: one kernel that completes, rotates and stores equals the steps taken one by one; it
writes the window and nothing else.
"""

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch

from bass.caches import CACHES, PagedCache
from bass.ops.norms import HeadNorm
from bass.records import (
    Angles,
    AttentionRule,
    CacheBudget,
    DecoderShape,
    Projection,
    Rotation,
    RowAssignment,
)
from kernels.conftest import Choose
from support.matrix import matrix

TOLERANCE = {torch.float32: 2e-5, torch.float16: 6e-3, torch.bfloat16: 4e-2}
# The window's positions by row, query heads, key heads, dimension, parts.
WINDOWS = {
    "one token each": ([[17], [0], [5]], 2, 2, 8, 1),
    "a verify window": ([[5, 6, 7, 8], [69, 70, -1, -1], [-1, -1, -1, -1]], 3, 1, 20, 2),
    "the last two": ([[-1, 0], [64, 65], [9, 10]], 4, 2, 16, 3),
    "33 tokens": ([list(range(40, 73))], 4, 1, 12, 2),
}
# What becomes of a key: is it normed, by 1 + the weights, is it rotated?
KEPT = {
    "rotary": (False, False, True),
    "norm and rotary": (True, False, True),
    "norm": (True, True, False),
}


def poisoned(kind: Any, window: torch.Tensor, kv_heads: int, dim: int, dtype: torch.dtype) -> Any:
    """An allocated cache, for rows that reach two positions beyond the window."""
    room = CacheBudget.of(window.amax(1).clamp(min=0).cpu().numpy() + 2)
    cache = kind.allocate(
        DecoderShape(9, kv_heads, kv_heads, dim, 99, (AttentionRule(1.0),) * 2),
        room,
        window.device,
        dtype,
    )
    cache.reserve(RowAssignment.of(room.longest))
    cache.k.fill_(1e4)
    cache.v.fill_(-1e4)
    return cache


def without_spare(kind: Any, x: torch.Tensor) -> torch.Tensor:
    """The last slot, or block of slots, holds anything."""
    return (x[:, :-1] if kind is PagedCache else x[..., :-1, :, :]).double()


@dataclass(frozen=True)
class Tables:
    cos: torch.Tensor
    sin: torch.Tensor

    @property
    def tables(self) -> Angles:
        return self.cos, self.sin

    def angles(self, positions: torch.Tensor) -> Angles:
        at = positions.clamp(min=0)
        return self.cos[at][:, :, None], self.sin[at][:, :, None]


@matrix(cache=CACHES, name=WINDOWS, dtype=TOLERANCE, kept=KEPT)
def test_completing_and_storing_at_once_equals_one_after_the_other(
    cache: str, name: str, dtype: torch.dtype, kept: str, kernels: Choose, device: torch.device
) -> None:
    kind, (normed, offset, rotated) = CACHES[cache], KEPT[kept]
    positions, heads, kv_heads, dim, parts = WINDOWS[name]
    window, every = torch.tensor(positions, device=device), heads + 2 * kv_heads
    draw = torch.Generator().manual_seed(0)
    qkv = torch.randn(parts, *window.shape, every, dim, generator=draw).to(
        device, dtype if parts == 1 else torch.float32
    )
    tables = Tables(*(torch.randn(99, dim, generator=draw).to(device, dtype) for _ in range(2)))
    norm = HeadNorm(heads + kv_heads, dim, 1e-3, device, torch.float32, offset)
    norm.requires_grad_(False).weight.copy_(torch.randn(norm.weight.shape, generator=draw))
    qk_norm = norm if normed else None
    rotation = Rotation(tables, window) if rotated else None
    projection = Projection(qkv, heads, kv_heads, dtype, qk_norm, rotation)
    ours = poisoned(kind, window, kv_heads, dim, dtype)
    theirs, wide = deepcopy(ours), replace(projection, partial_sums=qkv.float())
    q, k, v = wide.rotated()
    expected = q.to(dtype)
    theirs.write(1, k.to(dtype), v.to(dtype), window)

    kernels(True)
    q = ours.store(1, projection, window)
    tolerance = TOLERANCE[dtype]
    used = window >= 0
    torch.testing.assert_close(q[used], expected[used], rtol=tolerance, atol=tolerance)
    for mine, other in ((ours.k, theirs.k), (ours.v, theirs.v)):
        torch.testing.assert_close(
            without_spare(kind, mine), without_spare(kind, other), rtol=tolerance, atol=tolerance
        )


def test_a_block_that_rows_share_is_not_written(kernels: Choose, device: torch.device) -> None:
    window = torch.tensor([[2, 3], [2, 3]], device=device)
    cache = poisoned(PagedCache, window, 1, 8, torch.float32)
    cache.writable[:, 0] = (cache.k.shape[1] - 1) * cache.k.shape[2]
    qkv = torch.randn(1, 2, 2, 3, 8, generator=torch.Generator().manual_seed(0)).to(device)
    ones = torch.ones(9, 8, device=device)
    rotation = Rotation(Tables(ones, 0 * ones), window)
    for on in (True, False):
        kernels(on)
        cache.store(0, Projection(qkv, 1, 1, torch.float32, rotation=rotation), window)
        assert (cache.k[:, :-1] == 1e4).all()
