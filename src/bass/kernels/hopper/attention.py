"""A window's attention in one kernel, on Hopper: normalises and rotates its queries and keys,
stores its keys and values, and prefetches old keys.

    q, k, v = Σ_i parts_i ;  the heads of q and k normalised and rotated by their positions, if the
    model does either; k and v to their slots, as `kv_store.rotate_and_store` does ;  then as
    `attention.ragged`:
    out[b, w, h] = Σ_p softmax_p(cap(scale q[b, w, h] · k[b, p, h // G])) v[b, p, h // G]

Keys and values from earlier passes do not depend on the previous kernel. So a program, one for each
row and key head, prefetches the first old keys and values before it waits for the window's product.
It stores the window's own keys and values, and uses them from registers.

    program     prefetch old keys | wait | sum, rotate, store | window's and first old keys | others

Keys are the rows of the first product and dimensions of values those of the second: an instruction
multiplies 16 rows by 8 queries, and drafts often have no more (heads of a group, of one token). All
loads of partial sums are vectors, so `part_size` must be known as a multiple of 16 numbers.

Rows are not split, so the span is at most MOST_SPAN. Positions of a row's window are consecutive.

The old keys, the positions and places are complete at the prefetch: each pass begins with a kernel
that lets the next one start only when all previous ones have ended (`residual_norm.embedded`, or a
kernel of torch), and no kernel of the pass writes them.
"""

from typing import Any, no_type_check

import torch
from jaxtyping import Float, Int
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from bass.kernels.hopper.gemm import descriptor, multiprocessors, rows_in_block
from bass.kernels.triton.attention import capped
from bass.kernels.values import Norm, Pool, Positions, Queries

KINDS = (torch.float16, torch.bfloat16)
FUSED_DIMS = (64, 128, 256)  # of a head
# queries times heads of a group, by dimensions of a head; of more, three kernels take less time
MOST_ROWS = {64: 32, 128: 32, 256: 8}
MOST_SPAN = 512
KEYS = 64  # at a time
MOST_REGISTERS = 192  # of a thread, so that a product fits on the multiprocessor too
# warps of programs that fit in a multiprocessor's registers; a later program prefetches nothing
AT_ONCE = 8
# Tiles of old keys and values in flight, by dimensions of a head. Of large models, what a product
# of up to 8 rows leaves on a multiprocessor; with one, logits were not finite (docs/log).
STAGES = {64: 4, 128: 2, 256: 2}
SMALL_STAGES = {64: 4, 128: 4, 256: 2}  # products of small models leave more
SMALL = 2048  # numbers in all queries of a token


@gluon.jit
@no_type_check
def _angles(cos, sin, at, i, HALF: gl.constexpr):
    """Cosines and sines for both halves of heads at the positions."""
    angle = gl.maximum(at, 0)[:, None] * (2 * HALF) + i[None, :]
    low_cos = gl.load(cos + angle).to(gl.float32)
    high_cos = gl.load(cos + angle + HALF).to(gl.float32)
    return (
        low_cos,
        high_cos,
        gl.load(sin + angle).to(gl.float32),
        gl.load(sin + angle + HALF).to(gl.float32),
    )


@gluon.jit
@no_type_check
def _normed(low, high, low_by, high_by, eps, OFFSET: gl.constexpr):
    """Both halves of each head, divided by its root mean square, times the norm's weights."""
    unit = gl.rsqrt((gl.sum(low * low, 1) + gl.sum(high * high, 1)) / (2 * low.shape[1]) + eps)
    if OFFSET:
        low_by, high_by = low_by + 1.0, high_by + 1.0
    return low * unit[:, None] * low_by[None, :], high * unit[:, None] * high_by[None, :]


@gluon.jit
@no_type_check
def _summed(parts, at, part_size, live, PARTS: gl.constexpr):
    """The partial sums at these offsets."""
    value = gl.load(parts + at, mask=live, other=0.0).to(gl.float32)
    for part in gl.static_range(1, PARTS):
        value += gl.load(parts + at + part * part_size, mask=live, other=0.0).to(gl.float32)
    return value


@gluon.jit
@no_type_check
def _for_each(x, SHARES: gl.constexpr, LAYOUT: gl.constexpr):
    """The same operand for every share of the warps."""
    value = x.load(gl.SliceLayout(0, LAYOUT))[None, :, :]
    alike, _ = gl.broadcast(
        value, gl.zeros([SHARES, value.shape[1], value.shape[2]], value.dtype, LAYOUT)
    )
    return alike


@gluon.jit
@no_type_check
def _scores(
    k_low, k_high, q_low, q_high, seen, SCALE: gl.constexpr, SOFTCAP: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    """The scores of each share's keys, [share, key, query]; -inf where a query does not see it."""
    nothing = gl.zeros([k_low.shape[0], k_low.shape[1], q_low.shape[2]], gl.float32, LAYOUT)
    scores = (mma_v2(k_low, q_low, nothing) + mma_v2(k_high, q_high, nothing)) * SCALE
    if SOFTCAP is not None:
        scores = capped(scores, SOFTCAP)
    return gl.where(seen, scores, float("-inf"))


@gluon.jit
@no_type_check
def _weights(scores, top, LAYOUT: gl.constexpr, KIND: gl.constexpr):
    """exp(scores - top), their sums, and the operand of the product with the values."""
    # no key so far: -inf - -inf is NaN
    weights = gl.exp(scores - gl.where(top > float("-inf"), top, 0.0)[:, None, :])
    operand = gl.convert_layout(weights.to(KIND), gl.DotOperandLayout(1, LAYOUT, 2))
    return gl.sum(weights, 1), operand


@gluon.jit
@no_type_check
def _old(
    k_lows, k_highs, v_lows, v_highs, slot, key, value_key, line_at, first, old,
    SHARES: gl.constexpr, WINDOW: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """A tile of old keys and values that begins at position `first`, and who sees which key."""
    keys: gl.constexpr = k_lows.shape[1]
    half: gl.constexpr = k_lows.shape[2]
    each: gl.constexpr = keys // SHARES
    operand: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 2)
    seen = (first + key < old)[:, :, None] & (line_at >= 0)[None, None, :]
    if WINDOW is not None:
        seen = seen & ((first + key)[:, :, None] > line_at[None, None, :] - WINDOW)
    k_low = k_lows.index(slot).reshape([SHARES, each, half]).load(operand)
    k_high = k_highs.index(slot).reshape([SHARES, each, half]).load(operand)
    v_low = v_lows.index(slot).reshape([SHARES, each, half]).permute((0, 2, 1)).load(operand)
    v_high = v_highs.index(slot).reshape([SHARES, each, half]).permute((0, 2, 1)).load(operand)
    if first + keys > old:  # stale values beyond the old keys may be NaN
        there = (first + value_key < old)[:, None, :]
        v_low = gl.where(there, v_low, gl.zeros_like(v_low))
        v_high = gl.where(there, v_high, gl.zeros_like(v_high))
    return k_low, k_high, v_low, v_high, seen


@gluon.jit
@no_type_check
def _prefetch(
    k_map, v_map, bar, k_low, k_high, v_low, v_high, slot, head, live, KEYS: gl.constexpr,
    HALF: gl.constexpr, SIZE: gl.constexpr
):  # fmt: skip
    mbarrier.expect(bar, 4 * KEYS * HALF * SIZE, live)
    tma.async_copy_global_to_shared(k_map, [slot, head * 2 * HALF], bar, k_low, live)
    tma.async_copy_global_to_shared(k_map, [slot, head * 2 * HALF + HALF], bar, k_high, live)
    tma.async_copy_global_to_shared(v_map, [slot, head * 2 * HALF], bar, v_low, live)
    tma.async_copy_global_to_shared(v_map, [slot, head * 2 * HALF + HALF], bar, v_high, live)


@gluon.jit(
    do_not_specialize=["queries", "position_row"],
    do_not_specialize_on_alignment=["starts"],  # of the rows from any first one
)
@no_type_check
def attend_projection(
    k_map, v_map, parts, norm, cos, sin, sinks, k, v, starts, positions, out, queries, part_size,
    k_key, v_key, position_row, position_query, eps,
    NORM: gl.constexpr, OFFSET: gl.constexpr, ROTARY: gl.constexpr, SINKS: gl.constexpr,
    SCALE: gl.constexpr, WINDOW: gl.constexpr, SOFTCAP: gl.constexpr, GROUPS: gl.constexpr,
    HALF: gl.constexpr, ROWS: gl.constexpr,
    OWN: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr,
    SIZE: gl.constexpr,
):  # fmt: skip
    """See `attention.py`; one program for each key head and row."""
    kind: gl.constexpr = k_map.dtype
    dim: gl.constexpr = 2 * HALF
    # of the keys of a tile; warps of one share divide the queries, or the dimensions of values
    shares: gl.constexpr = KEYS // 16
    each_share: gl.constexpr = 16
    across: gl.constexpr = ROWS // 16 if ROWS == 32 and HALF < 128 else 1
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        [2, 0], [shares, gl.num_warps() // (shares * across), across], [1, 16, 8]
    )
    q_layout: gl.constexpr = gl.DotOperandLayout(1, layout, 2)
    k_layout: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    of_lines: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, layout))
    of_columns: gl.constexpr = gl.SliceLayout(2, layout)
    flat: gl.constexpr = gl.BlockedLayout(
        [1, 8], [256 // HALF, HALF // 8], [gl.num_warps(), 1], [1, 0]
    )
    head, row, kv_heads = gl.program_id(0), gl.program_id(1), gl.num_programs(0)
    heads = kv_heads * (GROUPS + 2)
    k_lows = gl.allocate_shared_memory(kind, [STAGES, KEYS, HALF], k_map.layout)
    k_highs = gl.allocate_shared_memory(kind, [STAGES, KEYS, HALF], k_map.layout)
    v_lows = gl.allocate_shared_memory(kind, [STAGES, KEYS, HALF], v_map.layout)
    v_highs = gl.allocate_shared_memory(kind, [STAGES, KEYS, HALF], v_map.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)

    # The window's own positions, in the layout of each part of the kernel; lower ones are old. The
    # loads bypass the L1 cache, which may hold an earlier pass's.
    where = positions + row * position_row
    i, own = gl.arange(0, HALF, gl.SliceLayout(0, flat)), gl.arange(0, OWN, gl.SliceLayout(1, flat))
    own_at = gl.load(
        where + own * position_query, mask=own < queries, other=-1, cache_modifier=".cg"
    ).to(gl.int32)
    old = gl.min(gl.where(own_at < 0, 2147483647, own_at), 0)
    old = gl.where(old == 2147483647, 0, old)
    start = gl.load(starts + row, cache_modifier=".cg").to(gl.int32)
    begin = 0
    if WINDOW is not None:
        begin = gl.maximum(old - WINDOW + 1, 0)
    tiles = (old - begin + KEYS - 1) // KEYS
    for stage in gl.static_range(STAGES):
        at = start + begin + stage * KEYS
        _prefetch(
            k_map, v_map, full.index(stage), k_lows.index(stage), k_highs.index(stage),
            v_lows.index(stage), v_highs.index(stage),
            at, head, stage < tiles, KEYS, HALF, SIZE,
        )  # fmt: skip
    # query by query, the heads of a group side by side
    each = gl.arange(0, ROWS, gl.SliceLayout(1, flat))
    each_at = gl.load(
        where + each // GROUPS * position_query,
        mask=each // GROUPS < queries,
        other=-1,
        cache_modifier=".cg",
    ).to(gl.int32)
    line, share = gl.arange(0, ROWS, of_lines), gl.arange(0, shares, gl.SliceLayout(1, of_columns))
    column = gl.arange(0, OWN, gl.SliceLayout(0, of_columns))
    line_at = gl.load(
        where + line // GROUPS * position_query,
        mask=line // GROUPS < queries,
        other=-1,
        cache_modifier=".cg",
    ).to(gl.int32)
    column_at = gl.load(
        where + column * position_query, mask=column < queries, other=-1, cache_modifier=".cg"
    ).to(gl.int32)
    if NORM:
        q_low_by, q_high_by = gl.load(norm + i), gl.load(norm + HALF + i)
        k_norm = norm + kv_heads * GROUPS * dim
        k_low_by, k_high_by = gl.load(k_norm + i), gl.load(k_norm + HALF + i)
    if ROTARY:
        q_low_cos, q_high_cos, q_low_sin, q_high_sin = _angles(cos, sin, each_at, i, HALF)
        k_low_cos, k_high_cos, k_low_sin, k_high_sin = _angles(cos, sin, own_at, i, HALF)
    gdc_launch_dependents()
    gdc_wait()

    first_head = parts + row * queries * heads * dim
    place = (each // GROUPS * heads + head * GROUPS + each % GROUPS)[:, None] * dim + i[None, :]
    live = (each // GROUPS < queries)[:, None]
    low = _summed(first_head, place, part_size, live, PARTS)
    high = _summed(first_head + HALF, place, part_size, live, PARTS)
    k_place = (own * heads + kv_heads * GROUPS + head)[:, None] * dim + i[None, :]
    k_live = (own < queries)[:, None]
    k_low = _summed(first_head, k_place, part_size, k_live, PARTS)
    k_high = _summed(first_head + HALF, k_place, part_size, k_live, PARTS)
    v_place = k_place + kv_heads * dim
    v_live = (own_at >= 0)[:, None]  # values at -1 may be NaN
    v_low = _summed(first_head, v_place, part_size, v_live, PARTS)
    v_high = _summed(first_head + HALF, v_place, part_size, v_live, PARTS)
    v_low, v_high = v_low.to(kind), v_high.to(kind)
    if NORM:
        low, high = _normed(
            low, high, q_low_by.to(gl.float32), q_high_by.to(gl.float32), eps, OFFSET
        )
        k_low, k_high = _normed(
            k_low, k_high, k_low_by.to(gl.float32), k_high_by.to(gl.float32), eps, OFFSET
        )
    if ROTARY:
        low, high = low * q_low_cos + high * q_low_sin, high * q_high_cos + low * q_high_sin
        k_low, k_high = (
            k_low * k_low_cos + k_high * k_low_sin,
            k_high * k_high_cos + k_low * k_high_sin,
        )
    turned_low, turned_high = low.to(kind), high.to(kind)
    stored_low, stored_high = k_low.to(kind), k_high.to(kind)
    q_shape: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, HALF], kind)
    k_shape: gl.constexpr = gl.NVMMASharedLayout.get_default_for([OWN, HALF], kind)
    # all of them before any is read: one barrier
    q_lows = gl.allocate_shared_memory(kind, [ROWS, HALF], q_shape, turned_low)
    q_highs = gl.allocate_shared_memory(kind, [ROWS, HALF], q_shape, turned_high)
    own_lows = gl.allocate_shared_memory(kind, [OWN, HALF], k_shape, stored_low)
    own_highs = gl.allocate_shared_memory(kind, [OWN, HALF], k_shape, stored_high)
    own_v_lows = gl.allocate_shared_memory(kind, [OWN, HALF], k_shape, v_low)
    own_v_highs = gl.allocate_shared_memory(kind, [OWN, HALF], k_shape, v_high)
    to = (start + gl.maximum(own_at, 0)).to(gl.int64)[:, None]
    at = head * dim + i[None, :]
    gl.store(k + to * k_key + at, stored_low, mask=v_live)
    gl.store(k + to * k_key + at + HALF, stored_high, mask=v_live)
    gl.store(v + to * v_key + at, v_low, mask=v_live)
    gl.store(v + to * v_key + at + HALF, v_high, mask=v_live)

    # The window's own keys belong to the first share. Each share then has its own old keys, so that
    # warps do not wait for each other. The first old keys are multiplied with the window's.
    own_seen = (column_at[None, :, None] >= 0) & (
        column_at[None, :, None] <= line_at[None, None, :]
    )
    if WINDOW is not None:
        own_seen = own_seen & (column_at[None, :, None] > line_at[None, None, :] - WINDOW)
    own_seen = own_seen & (share == 0)[:, None][:, :, None]
    q_low = _for_each(q_lows.permute((1, 0)), shares, q_layout)
    q_high = _for_each(q_highs.permute((1, 0)), shares, q_layout)
    key = (
        share[:, None] * each_share
        + gl.arange(0, each_share, gl.SliceLayout(0, of_columns))[None, :]
    )
    of_keys: gl.constexpr = gl.SliceLayout(1, k_layout)
    share_v = gl.arange(0, shares, gl.SliceLayout(1, of_keys))
    value_key = (
        share_v[:, None] * each_share
        + gl.arange(0, each_share, gl.SliceLayout(0, of_keys))[None, :]
    )
    own_scores = _scores(
        _for_each(own_lows, shares, k_layout), _for_each(own_highs, shares, k_layout), q_low,
        q_high, own_seen, SCALE, SOFTCAP, layout,
    )  # fmt: skip
    if tiles > 0:
        mbarrier.wait(full.index(0), 0)
    k_low, k_high, v_low, v_high, seen = _old(
        k_lows, k_highs, v_lows, v_highs, 0, key, value_key, line_at, begin, old, shares, WINDOW,
        layout,
    )  # fmt: skip
    scores = _scores(k_low, k_high, q_low, q_high, seen, SCALE, SOFTCAP, layout)
    top = gl.maximum(gl.max(own_scores, 1), gl.max(scores, 1))
    own_total, own_operand = _weights(own_scores, top, layout, kind)
    total, operand = _weights(scores, top, layout, kind)
    total += own_total
    nothing = gl.zeros([shares, HALF, ROWS], gl.float32, layout)
    low = mma_v2(_for_each(own_v_lows.permute((1, 0)), shares, k_layout), own_operand, nothing)
    high = mma_v2(_for_each(own_v_highs.permute((1, 0)), shares, k_layout), own_operand, nothing)
    low, high = mma_v2(v_low, operand, low), mma_v2(v_high, operand, high)
    if tiles > STAGES:
        _prefetch(
            k_map, v_map, full.index(0), k_lows.index(0), k_highs.index(0), v_lows.index(0),
            v_highs.index(0), start + begin + STAGES * KEYS, head, True, KEYS, HALF, SIZE,
        )  # fmt: skip
    for tile in range(1, tiles):
        slot = tile % STAGES
        here = full.index(slot)
        mbarrier.wait(here, tile // STAGES & 1)
        first = begin + tile * KEYS
        k_low, k_high, v_low, v_high, seen = _old(
            k_lows, k_highs, v_lows, v_highs, slot, key, value_key, line_at, first, old, shares,
            WINDOW, layout,
        )  # fmt: skip
        scores = _scores(k_low, k_high, q_low, q_high, seen, SCALE, SOFTCAP, layout)
        higher = gl.maximum(top, gl.max(scores, 1))
        rescale = gl.exp(top - gl.where(higher > float("-inf"), higher, 0.0))
        more, operand = _weights(scores, higher, layout, kind)
        top, total = higher, total * rescale + more
        low = mma_v2(v_low, operand, low * rescale[:, None, :])
        high = mma_v2(v_high, operand, high * rescale[:, None, :])
        if tile + STAGES < tiles:
            _prefetch(
                k_map, v_map, here, k_lows.index(slot), k_highs.index(slot), v_lows.index(slot),
                v_highs.index(slot),
                start + first + STAGES * KEYS, head, True, KEYS, HALF, SIZE,
            )  # fmt: skip

    # Combine the shares: all of them are stored before any is read, one barrier.
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    flat_shares: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    of_sums: gl.constexpr = gl.BlockedLayout(
        [shares, 1, 4], [1, 128 // ROWS, ROWS // 4], [1, gl.num_warps(), 1], [2, 1, 0]
    )
    lows = gl.allocate_shared_memory(gl.float32, [shares, HALF, ROWS], plain, low)
    highs = gl.allocate_shared_memory(gl.float32, [shares, HALF, ROWS], plain, high)
    tops = gl.allocate_shared_memory(gl.float32, [shares, ROWS], flat_shares, top)
    totals = gl.allocate_shared_memory(gl.float32, [shares, ROWS], flat_shares, total)
    top = tops.load(gl.SliceLayout(1, of_sums))
    best = gl.max(top, 0)
    if SINKS:  # a score without a value
        line = gl.arange(0, ROWS, gl.SliceLayout(0, gl.SliceLayout(1, of_sums)))
        sink = gl.load(sinks + head * GROUPS + line % GROUPS).to(gl.float32)
        best = gl.maximum(best, sink)
    factor = gl.exp(top - gl.where(best > float("-inf"), best, 0.0)[None, :])
    total = gl.sum(totals.load(gl.SliceLayout(1, of_sums)) * factor, 0)
    if SINKS:
        total += gl.exp(sink - best)
    factor = (factor / gl.where(total > 0, total, 1.0)[None, :])[:, None, :]
    low, high = gl.sum(lows.load(of_sums) * factor, 0), gl.sum(highs.load(of_sums) * factor, 0)
    i = gl.arange(0, HALF, gl.SliceLayout(1, gl.SliceLayout(0, of_sums)))
    line = gl.arange(0, ROWS, gl.SliceLayout(0, gl.SliceLayout(0, of_sums)))
    place = (
        (row * queries + line // GROUPS) * (kv_heads * GROUPS) + head * GROUPS + line % GROUPS
    )[None, :] * dim + i[:, None]
    gl.store(out + place, low.to(kind), mask=(line // GROUPS < queries)[None, :])
    gl.store(out + place + HALF, high.to(kind), mask=(line // GROUPS < queries)[None, :])
    # only here, so that nothing of the above is put where barriers are
    for stage in gl.static_range(STAGES):
        mbarrier.invalidate(full.index(stage))


def supports(
    window: Float[Tensor, "parts batch window every dim"], k: Pool, v: Pool, span: int
) -> bool:
    """Whether the kernel supports this window, and keys and values in this layout."""
    _, batch, queries, every, dim = window.shape
    kv_heads = k.shape[1]
    rows = queries * (every // kv_heads - 2)
    placed = all(
        x.stride(2) == 1
        and x.stride(1) == dim
        and x.stride(0) * x.element_size() % 16 == 0
        and x.data_ptr() % 16 == 0
        for x in (k, v)
    )
    alike = k.dtype == v.dtype and k.shape == v.shape and every % kv_heads == 0
    known = (
        placed
        and alike
        and k.dtype in KINDS
        and dim in FUSED_DIMS
        and 1 <= rows <= MOST_ROWS[dim]
        and span <= MOST_SPAN
    )
    return known and kv_heads * batch * warps_for(rows, dim) <= AT_ONCE * multiprocessors(k.device)


def warps_for(rows: int, dim: int) -> int:
    """Warps of a program, for queries times heads of a group."""
    return 8 if rows > 16 or dim > 128 else 4


def stages_for(programs: int, heads: int, dim: int, processors: int) -> int:
    """Tiles of old keys and values in flight; a multiprocessor has room for two programs or one."""
    small = heads * dim <= SMALL and programs <= processors
    return (SMALL_STAGES if small else STAGES)[dim]


def ragged(
    window: Float[Tensor, "parts batch window every dim"],
    norm: Norm | None,
    angles: tuple[Float[Tensor, "context dim"], Float[Tensor, "context dim"]] | None,
    k: Pool,
    v: Pool,
    starts: Int[Tensor, " batch"],
    positions: Positions,
    scale: float,
    rule_window: int | None,
    softcap: float | None,
    sinks: Float[Tensor, " heads"] | None = None,
) -> Queries:
    """`kv_store.rotate_and_store`, then `attention.ragged`, for inputs that it `supports`.

    Angles, places and positions must be complete before the previous kernel starts. All heads of q
    have the same weights in `norm`, and so have those of k.
    """
    cos, sin = (None, None) if angles is None else angles
    for x in (cos, sin, starts):  # a copy would be read before it is there
        assert x is None or x.is_contiguous()
    window = window.contiguous()
    parts, batch, queries, every, dim = window.shape
    kv_heads = k.shape[1]
    groups = every // kv_heads - 2
    out = k.new_empty(batch, queries, kv_heads * groups, dim)
    rows = rows_in_block(queries * groups)
    launch: Any = attend_projection[(kv_heads, batch)]
    with torch.cuda.device_of(k):
        launch(
            *(descriptor(x.view(len(x), -1), KEYS, dim // 2) for x in (k, v)), window,
            None if norm is None else norm.weight, cos, sin, sinks, k, v, starts, positions, out,
            queries, window[0].numel(), k.stride(0), v.stride(0), *positions.stride(),
            0.0 if norm is None else norm.eps,
            NORM=norm is not None, OFFSET=norm is not None and norm.kind == "offset_rms",
            ROTARY=cos is not None, SINKS=sinks is not None, SCALE=scale, WINDOW=rule_window,
            SOFTCAP=softcap, GROUPS=groups, HALF=dim // 2, ROWS=rows,
            OWN=max(16, rows_in_block(queries)), KEYS=KEYS, PARTS=parts, SIZE=k.element_size(),
            STAGES=stages_for(kv_heads * batch, kv_heads * groups, dim, multiprocessors(k.device)),
            num_warps=warps_for(rows, dim), maxnreg=MOST_REGISTERS, launch_pdl=True,
        )  # fmt: skip
    return out
