"""Attention of a window's queries over the positions that a view holds.

    out[b, w, h] = Σ_p softmax_p(cap(scale q[b, w, h] · k[b, p, h // G])) v[b, p, h // G]

B = batch, W = window, G = query heads per key head, S = span. A query at position p sees the
positions 0..p of its row, of these the last `window` if that is given. One at -1 sees nothing; its
output is zero.

`padded`, `ragged` and `paged` are torch in float64, the reference of all backends; the names that
begin with `triton_` are the Triton kernels.
"""

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from bass.kernels import hopper
from bass.kernels import triton as kernels
from bass.kernels.shapes import FUSED_DIMS as FUSED_DIMS
from bass.kernels.shapes import Blocks, Padded, Pool, Positions, Queries
from bass.ops import dispatch, kv_store
from bass.records import AttentionRule, PaddedView, PagedView, Projection, RaggedView

Sinks = Float[Tensor, " heads"] | None  # a learned score of each query head


def attend(
    q: Queries,
    k: Padded,
    v: Padded,
    positions: Positions,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Sinks = None,
) -> Queries:
    """softmax(cap(scale q kᵀ)) v over the visible positions, in the inputs' own dtype; cap(x) =
    softcap tanh(x / softcap). A sink adds exp(sink) to the sum of its head's softmax.
    """
    kv_heads, place, own = (
        k.shape[2],
        torch.arange(k.shape[1], device=k.device),
        positions[..., None],
    )
    hidden = place > own
    if window is not None:
        hidden |= place <= own - window
    hidden = hidden[:, None, None]
    q = rearrange(
        q, "batch window (kv_heads group) dim -> batch window kv_heads group dim", kv_heads=kv_heads
    )
    scores = scale * einsum(
        q,
        k,
        "batch window kv_heads group dim, batch span kv_heads dim "
        "-> batch kv_heads group window span",
    )
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    # A finite floor: a softmax of nothing but -inf is NaN.
    weights = with_sinks(
        scores.masked_fill(hidden, torch.finfo(scores.dtype).min),
        None if sinks is None else rearrange(sinks, "(kv group) -> kv group 1 1", kv=kv_heads),
    ).masked_fill(hidden, 0)
    out = einsum(
        weights,
        v,
        "batch kv_heads group window span, batch span kv_heads dim "
        "-> batch window kv_heads group dim",
    )
    return rearrange(out, "batch window kv_heads group dim -> batch window (kv_heads group) dim")


def with_sinks(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """softmax over the last axis; a sink, which broadcasts over it, takes a share of it."""
    if sinks is None:
        return scores.softmax(-1)
    one = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, one), -1).softmax(-1)[..., :-1]


def padded(
    q: Queries,
    k: Padded,
    v: Padded,
    positions: Positions,
    span: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Sinks = None,
) -> Queries:
    """Attention over rows of equal capacities, with the first `span` positions in use."""
    return attend(
        q.double(),
        k[:, :span].double(),
        v[:, :span].double(),
        positions,
        scale,
        window,
        softcap,
        sinks,
    ).to(q.dtype)


def ragged(
    q: Queries,
    k: Pool,
    v: Pool,
    starts: Int[Tensor, " batch"],
    positions: Positions,
    span: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Sinks = None,
) -> Queries:
    """Attention over a flat pool, in which position p of row b is at `starts[b] + p`."""
    # Slots beyond a row's last query belong to other rows, or are stale: read the last one instead.
    last = positions.amax(1, keepdim=True).clamp(min=0)
    places = (starts[:, None] + torch.minimum(torch.arange(span, device=k.device), last)).clamp(
        max=len(k) - 1
    )
    return padded(q, k[places], v[places], positions, span, scale, window, softcap, sinks)


def paged(
    q: Queries,
    k: Blocks,
    v: Blocks,
    table: Int[Tensor, "batch entries"],
    positions: Positions,
    span: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Sinks = None,
) -> Queries:
    """Attention over a pool of blocks, in which position p of row b is in block `table[b, p //
    block]` at `p % block`.
    """
    return padded(
        q,
        gather(k, table, span),
        gather(v, table, span),
        positions,
        span,
        scale,
        window,
        softcap,
        sinks,
    )


def gather(
    pool: Blocks, table: Int[Tensor, "batch entries"], span: int
) -> Float[Tensor, "batch span kv_heads dim"]:
    """The first `span` positions of each row, in order."""
    blocks = pool[table[:, : -(-span // pool.shape[1])]]
    return rearrange(blocks, "batch entries block ... -> batch (entries block) ...")[:, :span]


def triton_padded(
    q: Queries, view: PaddedView, positions: Positions, span: int, rule: AttentionRule, sinks: Sinks
) -> Queries:
    """One launch for the batch; each row reads all `span` positions."""
    return kernels.attention.padded(q, view.k, view.v, positions, span, *_parts(rule), sinks)


def triton_ragged(
    q: Queries,
    view: RaggedView,
    positions: Positions,
    span: int,
    rule: AttentionRule,
    sinks: Sinks,
    each_row: bool = False,
) -> Queries:
    """One launch for the batch, or one for each row; a row ends at its own last position."""
    return kernels.attention.ragged(
        q, view.k, view.v, view.starts, positions, span, *_parts(rule), sinks, each_row=each_row
    )


def triton_paged(
    q: Queries, view: PagedView, positions: Positions, span: int, rule: AttentionRule, sinks: Sinks
) -> Queries:
    """As `triton_ragged`; keys are found through the block table."""
    return kernels.attention.paged(
        q, view.k, view.v, view.table, positions, span, *_parts(rule), sinks
    )


def supports_projection(projection: Projection, view: RaggedView, span: int) -> bool:
    """Whether Hopper's attention supports the projection: it completes, stores and attends."""
    return (
        dispatch.hopper(view.k)
        and kv_store.known_norm(projection.qk_norm)
        and hopper.attention.supports(projection.partial_sums, view.k, view.v, span)
    )


def hopper_projection(
    projection: Projection, view: RaggedView, positions: Positions, rule: AttentionRule
) -> Queries:
    """Complete a supported projection, store its keys and values, and attend."""
    rotation = projection.rotation
    return hopper.attention.ragged(
        projection.partial_sums,
        kv_store.norm_of(projection.qk_norm),
        None if rotation is None else rotation.tables,
        view.k,
        view.v,
        view.starts,
        positions,
        *_parts(rule),
        projection.sinks,
    )


def supports_projection_on_cpu(projection: Projection, view: PaddedView) -> bool:
    """Whether the CPU's kernel supports the projection: it completes, stores and attends."""
    y, rotation = projection.partial_sums, projection.rotation
    cpu = dispatch.cpu_step_kernels(y.flatten(3))
    return (
        cpu is not None
        and len(y) == 1
        and projection.sinks is None
        and cpu.attention.supports(y[0], view.k, view.v)
        and (rotation is None or _covers(rotation.tables[0], y, view))
        and kv_store.known_norm(projection.qk_norm)
    )


def _covers(table: Tensor, y: Tensor, view: PaddedView) -> bool:
    """Whether a table of angles has y's type and a row for every position of the view."""
    return table.dtype == y.dtype and len(table) >= view.k.shape[1]


def cpu_projection(
    projection: Projection, view: PaddedView, positions: Positions, span: int, rule: AttentionRule
) -> Queries:
    """Complete a supported projection, store its keys and values, and attend."""
    rotation = projection.rotation
    return dispatch.cpu_kernels().attention.store_and_attend(
        projection.partial_sums[0],
        kv_store.norm_of(projection.qk_norm),
        None if rotation is None else rotation.tables,
        positions,
        view.k,
        view.v,
        span,
        *_parts(rule),
    )


def _parts(rule: AttentionRule) -> tuple[float, int | None, float | None]:
    return rule.scale, rule.window, rule.softcap
