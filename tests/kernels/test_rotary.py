"""Tier 3: one kernel that adds up, turns and stores equals the steps taken one by one; it writes
the window and nothing else.
"""

from copy import deepcopy
from typing import Any

import pytest
import torch

from bass.caches import CACHES, PagedCache
from bass.interfaces import RotaryStore
from bass.ops import reference
from bass.records import AttentionRule, CacheBudget, DecoderShape, RowAssignment, Unturned

TOLERANCE = {torch.float32: 2e-5, torch.float16: 6e-3, torch.bfloat16: 4e-2}
# The window's positions by row, query heads, key heads, dimension, parts.
WINDOWS = {
    "one token each": ([[17], [0], [5]], 2, 2, 8, 1),
    "a verify window": ([[5, 6, 7, 8], [69, 70, -1, -1], [-1, -1, -1, -1]], 3, 1, 20, 2),
    "the last two": ([[-1, 0], [64, 65], [9, 10]], 4, 2, 16, 3),
    "33 tokens": ([list(range(40, 73))], 4, 1, 12, 2),
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


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize(
    "kind", [kind for kind in CACHES.values() if issubclass(kind, RotaryStore)]
)
def test_turning_and_storing_at_once_equals_one_after_the_other(
    kind: Any, name: str, dtype: torch.dtype, device: torch.device
) -> None:
    positions, heads, kv_heads, dim, parts = WINDOWS[name]
    window, every = torch.tensor(positions, device=device), heads + 2 * kv_heads
    draw = torch.Generator().manual_seed(0)
    qkv = torch.randn(parts, *window.shape, every, dim, generator=draw).to(
        device, dtype if parts == 1 else torch.float32
    )
    cos, sin = (torch.randn(99, dim, generator=draw).to(device, dtype) for _ in range(2))
    ours = poisoned(kind, window, kv_heads, dim, dtype)
    theirs = deepcopy(ours)

    at = window.flatten().clamp(min=0)
    flat = (qkv.flatten(1, 2), heads + kv_heads, cos[at], sin[at])
    turned = reference.turn(*flat).to(dtype).view(*window.shape, every, dim)
    expected, k, v = turned.split_with_sizes((heads, kv_heads, kv_heads), 2)
    theirs.write(1, k, v, window)

    q = ours.write_turned(1, Unturned(qkv, cos, sin), window)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(q.double(), expected.double(), rtol=tolerance, atol=tolerance)
    for mine, other in ((ours.k, theirs.k), (ours.v, theirs.v)):
        torch.testing.assert_close(
            without_spare(kind, mine), without_spare(kind, other), rtol=tolerance, atol=tolerance
        )


def test_a_block_that_rows_share_is_not_written(device: torch.device) -> None:
    window = torch.tensor([[2, 3], [2, 3]], device=device)
    cache = poisoned(PagedCache, window, 1, 8, torch.float32)
    cache.writable[:, 0] = (cache.k.shape[1] - 1) * cache.k.shape[2]
    qkv = torch.randn(1, 2, 2, 3, 8, generator=torch.Generator().manual_seed(0)).to(device)
    turn = torch.ones(9, 8, device=device)
    cache.write_turned(0, Unturned(qkv, turn, 0 * turn), window)
    assert (cache.k[:, :-1] == 1e4).all()
