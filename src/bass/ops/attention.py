"""Attention of a window's queries over the positions that a view holds.

    out[b, w, h] = Σ_p softmax_p(cap(scale q[b, w, h] · k[b, p, h // G])) v[b, p, h // G]

B = batch, W = window, G = query heads per key head, S = span. A query at position p sees the
positions 0..p of its row, of these the last `window` if that is given. One at -1 sees nothing; its
output is zero.

`reference` is torch in float64, the reference of all backends.
"""

from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from bass.kernels import hopper
from bass.kernels import triton as kernels
from bass.kernels.values import Blocks, Padded, Positions, Queries
from bass.ops import dispatch
from bass.ops.norms import kernel_norm
from bass.records import AttentionRule, PackedRows, PaddedView, PagedView, Projection, RaggedView

View = PaddedView | RaggedView | PagedView
Sinks = Float[Tensor, " heads"] | None  # a learned score of each query head


def attend(
    q: Queries, k: Padded, v: Padded, positions: Positions, rule: AttentionRule, sinks: Sinks = None
) -> Queries:
    """softmax(cap(scale q kᵀ)) v over the visible positions, in the inputs' own dtype; cap(x) =
    softcap tanh(x / softcap). A sink adds exp(sink) to the sum of its head's softmax.
    """
    softcap, kv_heads = rule.softcap, k.shape[2]
    place, own = torch.arange(k.shape[1], device=k.device), positions[..., None]
    hidden = place > own
    if rule.window is not None:
        hidden |= place <= own - rule.window
    hidden = hidden[:, None, None]
    grouped = q.unflatten(2, (kv_heads, -1))
    # h: key heads, g: the query heads of each
    scores = rule.scale * torch.einsum("bwhgd, bshd -> bhgws", grouped, k)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    # A finite floor: a softmax of nothing but -inf is NaN.
    weights = with_sinks(
        scores.masked_fill(hidden, torch.finfo(scores.dtype).min),
        None if sinks is None else sinks.view(kv_heads, -1, 1, 1),
    ).masked_fill(hidden, 0)
    return torch.einsum("bhgws, bshd -> bwhgd", weights, v).flatten(2, 3)


def with_sinks(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """softmax over the last axis; a sink, which broadcasts over it, takes a share of it."""
    if sinks is None:
        return scores.softmax(-1)
    one = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, one), -1).softmax(-1)[..., :-1]


def reference(
    q: Queries,
    view: View,
    positions: Positions,
    span: int,
    rule: AttentionRule,
    sinks: Sinks = None,
) -> Queries:
    """`attend` in float64, over the first `span` positions of any layout."""
    k, v = (rows(x, view, positions, span).double() for x in (view.k, view.v))
    return attend(q.double(), k, v, positions, rule, sinks).to(q.dtype)


def rows(
    x: Tensor, view: View, positions: Positions, span: int
) -> Float[Tensor, "batch span kv_heads dim"]:
    """The first `span` positions of each row, of a view's keys or values."""
    if isinstance(view, PaddedView):
        return x[:, :span]
    if isinstance(view, PagedView):
        return gather(x, view.table, span)
    # Slots beyond a row's last query belong to other rows, or are stale: read the last one instead.
    last = positions.amax(1, keepdim=True).clamp(min=0)
    own = torch.minimum(torch.arange(span, device=x.device), last)
    return x[(view.starts[:, None] + own).clamp(max=len(x) - 1)]


def gather(
    pool: Blocks, table: Int[Tensor, "batch entries"], span: int
) -> Float[Tensor, "batch span kv_heads dim"]:
    """The first `span` positions of each row, in order."""
    blocks = pool[table[:, : -(-span // pool.shape[1])]]
    return rearrange(blocks, "batch entries block ... -> batch (entries block) ...")[:, :span]


def triton(
    q: Queries,
    view: View,
    positions: Positions,
    span: int,
    rule: AttentionRule,
    sinks: Sinks,
    each_row: bool = False,
) -> Queries:
    """By a Triton kernel, in one launch for the batch, or one for each row.

    A padded row reads all `span` positions, any other ends at its own last position.
    """
    return kernels.attention.attend(
        q, view.k, view.v, _place(view), positions, span, *_limits(rule), sinks, each_row=each_row
    )


def triton_packed(
    q: Float[Tensor, "1 tokens heads dim"],
    view: View,
    packed: PackedRows,
    span: int,
    rule: AttentionRule,
    sinks: Sinks,
) -> Float[Tensor, "1 tokens heads dim"]:
    """As `triton`, of a packed window, whose keys and values are stored."""
    return kernels.attention.attend_packed(
        q, view.k, view.v, _place(view), packed.positions, packed.offsets, packed.longest, span,
        *_limits(rule), sinks,
    )  # fmt: skip


def store(
    projection: Projection,
    positions: Positions,
    k: Float[Tensor, "*slots kv_heads dim"],
    v: Float[Tensor, "*slots kv_heads dim"],
    place: Int[Tensor, "batch ..."] | None = None,
    page: int | None = None,
) -> Queries | None:
    """Complete a projection, store its keys and values in one launch, and return its queries. None:
    no kernel supports it, as `KVCache.store` does, the torch version.

    Position p of row b goes to k[b, p]; with `place` to k[place[b] + p] of a pool; with `page` to
    k[place[b, p // page] + p % page]. Nothing is written for position -1.
    """
    parts = projection.partial_sums
    supported = dispatch.use_kernels(k) and k.dtype in dispatch.DTYPES and parts.shape[4] % 2 == 0
    if not supported or _unknown(projection.qk_norm):
        return None
    return kernels.kv_store.rotate_and_store(
        parts, _tables(projection), kernel_norm(projection.qk_norm), positions, k, v, place, page
    )


def by_hopper(
    projection: Projection, view: RaggedView, positions: Positions, span: int, rule: AttentionRule
) -> Queries | None:
    """Complete a projection, store its keys and values, and attend, in one launch; None: Hopper's
    kernel does not support it.
    """
    parts = projection.partial_sums
    if (
        not dispatch.hopper(view.k)
        or _unknown(projection.qk_norm)
        or not hopper.attention.supports(parts, view.k, view.v, span)
    ):
        return None
    return hopper.attention.ragged(
        parts, kernel_norm(projection.qk_norm), _tables(projection), view.k, view.v, view.starts,
        positions, *_limits(rule), projection.sinks,
    )  # fmt: skip


def by_cpu(
    projection: Projection,
    view: PaddedView,
    positions: Positions,
    span: int,
    rule: AttentionRule,
    offsets: Int[Tensor, " rows_and_one"] | None = None,
) -> Queries | None:
    """The same on a CPU, also for a packed window; None: its kernel does not support it."""
    y, tables = projection.partial_sums, _tables(projection)
    cpu = dispatch.cpu_step_kernels(y.flatten(3))
    if (
        cpu is None
        or len(y) > 1
        or projection.sinks is not None
        or not cpu.attention.supports(y[0], view.k, view.v)
        # a row of angles for every position of the view
        or (tables and (tables[0].dtype != y.dtype or len(tables[0]) < view.k.shape[1]))
        or _unknown(projection.qk_norm)
    ):
        return None
    norm = kernel_norm(projection.qk_norm)
    return cpu.attention.store_and_attend(
        y[0], norm, tables, positions, offsets, view.k, view.v, span, *_limits(rule)
    )


def _place(view: View) -> Tensor | None:
    """Where the positions of rows are; None: padded."""
    if isinstance(view, PaddedView):
        return None
    return view.table if isinstance(view, PagedView) else view.starts


def _unknown(norm: Any) -> bool:
    """Whether kernels do not compute a norm of heads; None: there is none."""
    return norm is not None and kernel_norm(norm) is None


def _tables(projection: Projection) -> tuple[Tensor, Tensor] | None:
    """Cosines and signed sines of all positions."""
    return None if projection.rotation is None else projection.rotation.tables


def _limits(rule: AttentionRule) -> tuple[float, int | None, float | None]:
    return rule.scale, rule.window, rule.softcap
