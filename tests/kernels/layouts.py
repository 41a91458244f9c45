"""The same keys and values in each of the three layouts, as views into larger storage whose every
other number is poison.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bass.kernels.triton import attention
from bass.ops.attention import reference
from bass.records import AttentionRule, PaddedView, PagedView, RaggedView

# scale, window, soft cap; sinks, if any
Rule = tuple[float, int | None, float | None] | tuple[float, int | None, float | None, Tensor]
BLOCK = 4


@dataclass(frozen=True)
class Stored:
    """What a kernel and its twin are given besides queries and positions."""

    view: PaddedView | RaggedView | PagedView
    options: dict[str, Any]


def inside(shape: tuple[int, ...], like: Tensor, poison: float) -> Tensor:
    """A view of the given shape, no axis but the last contiguous, in storage that is poison before,
    between and after it.
    """
    storage = torch.full([size + 3 for size in shape], poison, dtype=like.dtype, device=like.device)
    return storage[tuple(slice(1, size + 1) for size in shape)]


def of_padded(k: Tensor, v: Tensor, lasts: list[int], poison: float) -> Stored:
    stores = [inside((x.shape[0], x.shape[1] + 2, *x.shape[2:]), x, poison) for x in (k, v)]
    for store, x in zip(stores, (k, v), strict=True):
        for b, last in enumerate(lasts):
            store[b, : last + 1] = x[b, : last + 1]
    return Stored(PaddedView(*stores), {})


def of_ragged(k: Tensor, v: Tensor, lasts: list[int], poison: float, **options: Any) -> Stored:
    """Rows in reverse order, one free slot between them, the last one ending where the pool
    ends.
    """
    starts, used = [0] * len(lasts), 0
    for b in reversed(range(len(lasts))):
        starts[b], used = used, used + lasts[b] + 2
    stores = [inside((used - 1, *x.shape[2:]), x, poison) for x in (k, v)]
    for store, x in zip(stores, (k, v), strict=True):
        for b, last in enumerate(lasts):
            store[starts[b] : starts[b] + last + 1] = x[b, : last + 1]
    return Stored(RaggedView(*stores, torch.tensor(starts, device=k.device)), options)


def of_paged(k: Tensor, v: Tensor, lasts: list[int], poison: float) -> Stored:
    """Blocks in a shuffled order; entries beyond a row's last block name the spare one."""
    batch, entries = len(lasts), -(-k.shape[1] // BLOCK)
    order = torch.randperm(
        batch * entries, generator=torch.Generator().manual_seed(batch * entries)
    ).view(batch, entries)
    stores = [inside((batch * entries + 1, BLOCK, *x.shape[2:]), x, poison) for x in (k, v)]
    table = torch.full((batch, entries), batch * entries)
    for b, last in enumerate(lasts):
        for position in range(last + 1):
            table[b, position // BLOCK] = block = order[b, position // BLOCK]
            for store, x in zip(stores, (k, v), strict=True):
                store[block, position % BLOCK] = x[b, position]
    return Stored(PagedView(*stores, table.to(k.device)), {})


def of_split(k: Tensor, v: Tensor, lasts: list[int], poison: float) -> Stored:
    return of_ragged(k, v, lasts, poison, each_row=True)


LAYOUTS = {"padded": of_padded, "ragged": of_ragged, "paged": of_paged, "split": of_split}
EXACT = ("ragged", "paged", "split")  # they read no more than their own row's visible positions


@dataclass(frozen=True)
class Problem:
    """Queries of any positions, and the keys and values that they may see."""

    q: Tensor
    k: Tensor
    v: Tensor
    positions: Tensor
    span: int

    @classmethod
    def draw(
        cls,
        places: list[list[int]],
        kv_heads: int,
        groups: int,
        dim: int,
        dtype: torch.dtype,
        device: torch.device,
        seed: int = 0,
    ) -> "Problem":
        """Queries at `places` [B, W]; the span is two more than the last of them needs."""
        random = torch.Generator().manual_seed(seed)
        positions = torch.tensor(places, device=device)
        span = int(positions.max()) + 3
        sizes = ((positions.shape[1], kv_heads * groups), (span, kv_heads), (span, kv_heads))
        q, k, v = (
            torch.randn(len(places), *size, dim, generator=random, dtype=torch.float64).to(
                device, dtype
            )
            for size in sizes
        )
        return cls(q.transpose(1, 2).contiguous().transpose(1, 2), k, v, positions, span)

    def stored(self, layout: str, poison: float) -> Stored:
        return LAYOUTS[layout](self.k, self.v, self.positions.amax(1).tolist(), poison)

    def kernel(
        self, layout: str, rule: Rule, splits: int | None = None, poison: float = 1e4
    ) -> Tensor:
        s = self.stored(layout, poison)
        k, v, *place = vars(s.view).values()
        return attention.attend(
            self.q, k, v, place[0] if place else None, self.positions, self.span,
            *(*rule, None)[:4], splits=splits, **s.options,
        )  # fmt: skip

    def packed(self, layout: str, rule: Rule, splits: int | None = None) -> Tensor:
        """As `kernel`, by a packed window with room for two tokens more; 0 at position -1."""
        s, there = self.stored(layout, 1e4), self.positions >= 0
        k, v, *place = vars(s.view).values()
        q, positions = self.q[there], self.positions[there]
        q, positions = (
            torch.cat((q, q[:1], q[:1])),
            torch.cat((positions, positions.new_full((2,), -1))),
        )
        offsets = torch.cat((there.new_zeros(1), there.sum(1))).cumsum(0)
        offsets[-1] += 2
        found = attention.attend_packed(
            q[None], k, v, place[0] if place else None, positions[None], offsets,
            self.positions.shape[1], self.span, *(*rule, None)[:4], splits=splits,
        )[0]  # fmt: skip
        assert not found[-2:].any()
        out = torch.zeros_like(self.q)
        out[there] = found[:-2]
        return out

    def twin(self, layout: str, rule: Rule) -> Tensor:
        view, sinks = self.stored(layout, 1e4).view, (*rule, None)[3]
        return reference(self.q, view, self.positions, self.span, AttentionRule(*rule[:3]), sinks)
