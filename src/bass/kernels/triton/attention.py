"""Attention of a window of queries over a KV cache, with the keys of a row split across blocks
(flash-decoding).

    out[b, w, h] = Σ_p softmax_p(cap(scale q[b, w, h] · k[b, p, h // G])) v[b, p, h // G]

over the visible positions p <= positions[b, w], of these the last `window` if that is given;
cap(x) = softcap tanh(x / softcap). A query at -1 sees nothing; its output is zero. The G query
heads of a key head are stacked along the queries of a block, so keys are read once for all of them.

    rows of a block     query 0: heads 0..G-1 | query 1: heads 0..G-1 | ...      of one key head
    keys of a row       [ split 0 ....... | split 1 ....... | split 2 .... ]     one block each,
                                                                                 KEYS at a time

Each split keeps the largest score, the sum and the weighted values of its own keys (Dao, Haziza,
Massa, Sizov 2023, "Flash-Decoding"; Milakov and Gimelshein 2018 for the running maximum). The split
that ends last combines them in order. Sums are in float32, for float64 in float64.
"""

from dataclasses import dataclass
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from bass.kernels.support import MOST_SHARED, shared_memory
from bass.kernels.triton.launch import (
    INTERPRETED,
    TRITON_DTYPES,
    dependent,
    interpreted_range,
    kept_zeros,
    operand,
    wait_for_inputs,
)
from bass.kernels.values import Blocks, Padded, Pool, Positions, Queries

PROGRAMS = 132  # one for each multiprocessor of an H100 or H200
SPLIT_KEYS = 256  # with fewer keys per split, combining the splits costs more than it saves
WIDE, WIDE_SPLIT_KEYS = 256, 128  # dimensions of a head, and the same of these
LONGEST_SPLIT = 2048
MOST_SPLITS = 32
LEAST_ROWS = 16  # of a block: what a product of blocks wants
# Of a block at a time: most keys, their bytes, tiles in flight (keys and values each); see
# `in_flight`.
ALONE, SHARED, CROWDED = (128, 32768, 3), (64, 16384, 4), (128, 16384, 2)
# the same of a prefill, which has at least MANY_ROWS queries times heads of a group
PREFILL, MANY_ROWS = (128, 32768, 3), 512
MOST_TILES = 65536  # of queries, heads and rows that share their keys
# of a block, by the bytes of a number: what fits in registers at 256 dimensions of a head
MOST_ROWS = {2: 64, 4: 32, 8: 16}
# bytes of shared memory next to the keys and values in flight: queries, scores, exchange
SCRATCH = 48 * 1024
UNROLLED = tl.constexpr(8)  # most splits that are combined without a loop


@triton.jit
@no_type_check  # Triton reads the source, not the function
def capped(scores, SOFTCAP: tl.constexpr):
    """SOFTCAP tanh(scores / SOFTCAP)."""
    # tanh x = sign(x) (1 - e) / (1 + e), e = exp(-2 |x|)
    shrunk = tl.exp(tl.abs(scores) * (-2.0 / SOFTCAP))
    capped = SOFTCAP * (1.0 - shrunk) / (1.0 + shrunk)
    return tl.where(scores < 0, -capped, capped)


@triton.jit
@no_type_check
def _share(parts, tops, split, count, rows, at, level, inside, written, DIM: tl.constexpr):
    """The weighted values of one split, rescaled to the common maximum."""
    weight = tl.exp(
        tl.load(tops + split * count + rows, mask=inside, other=float("-inf"), cache_modifier=".cg")
        - level
    )
    return (
        tl.load(parts + split * count * DIM + at, mask=written, other=0.0, cache_modifier=".cg")
        * weight[:, None]
    )


@triton.jit
@no_type_check
def _more(
    q_tile, own, k_base, v_base, entries, at, end, top, total, acc,
    k_row, k_key, k_dim, v_row, v_key, v_dim, place_entry,
    SCALE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, LAYOUT: tl.constexpr,
    PAGE: tl.constexpr, DIM: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
    OPERAND: tl.constexpr, SUM: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the next KEYS keys, their scores and values, to the running softmax."""
    key, dim = at + tl.arange(0, KEYS), tl.arange(0, WIDTH)
    exists, in_dim = key < end, dim < DIM
    if LAYOUT == "paged":
        block = tl.load(entries + (key // PAGE) * place_entry, mask=exists, other=0).to(tl.int64)
        k_at = block * k_row + (key % PAGE) * k_key
        v_at = block * v_row + (key % PAGE) * v_key
    else:
        k_at = key.to(tl.int64) * k_key
        v_at = key.to(tl.int64) * v_key
    k_places = k_base + k_at[:, None] + dim[None, :] * k_dim
    v_places = v_base + v_at[:, None] + dim[None, :] * v_dim
    loaded = exists[:, None] & in_dim[None, :]
    if MASKED or DIM != WIDTH:
        keys = tl.load(k_places, mask=loaded, other=0.0).to(OPERAND)
    else:
        keys = tl.load(k_places).to(OPERAND)
    scores = tl.dot(q_tile, tl.trans(keys), input_precision="ieee").to(SUM) * SCALE
    if SOFTCAP is not None:
        scores = capped(scores, SOFTCAP)
    if MASKED:
        visible = (key[None, :] <= own[:, None]) & exists[None, :]
        if WINDOW is not None:
            visible = visible & (key[None, :] > own[:, None] - WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    # no key so far: -inf - -inf is NaN
    level = tl.where(higher > float("-inf"), higher, 0.0) if MASKED else higher
    weights = tl.exp(scores - level[:, None])
    rescale = tl.exp(top - level)
    if MASKED or DIM != WIDTH:
        values = tl.load(v_places, mask=loaded, other=0.0).to(OPERAND)
    else:
        values = tl.load(v_places).to(OPERAND)
    acc = acc * rescale[:, None] + tl.dot(weights.to(OPERAND), values, input_precision="ieee").to(
        SUM
    )
    total = total * rescale + tl.sum(weights, 1)
    return higher, total, acc


@triton.jit(
    do_not_specialize=["first", "lines", "span", "queries", "splits", "place_row", "position_row"],
    do_not_specialize_on_alignment=["place"],  # of the rows from any first one
)
@no_type_check
def _attend(
    q, k, v,
    place,  # ragged: starts [B]; paged: table [B, entries]
    positions,
    offsets,  # packed: [B + 1]; else None
    out,  # [B, W, H, D]; packed: [1, tokens, H, D]
    parts, tops, totals,  # with SPLITS > 1 [splits, *out], [splits, *out without D] twice
    counts,  # with SPLITS > 1: zeros, one for each tile of queries, key head and row
    sinks,  # [H] or None
    first,  # the first row
    lines,  # tokens of the window times heads
    queries, span, splits, q_row, q_query, q_head, q_dim,
    k_row,  # padded: of a row; paged: of a block
    k_key, k_head, k_dim, v_row, v_key, v_head, v_dim, place_row, place_entry, position_row,
    position_query,
    SCALE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, LAYOUT: tl.constexpr,
    PAGE: tl.constexpr,
    MOST_SPLITS: tl.constexpr,  # a power of 2, 1 where nothing is split
    GROUPS: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    WIDTH: tl.constexpr, OPERAND: tl.constexpr, SUM: tl.constexpr, MANY: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    wait_for_inputs(PDL)
    split = tl.program_id(0) % splits
    tile = tl.program_id(0) // splits
    if MANY:  # the last queries, which see the most keys, first
        tile = tl.num_programs(0) // splits - 1 - tile
    head = tl.program_id(1)
    row = (first + tl.program_id(2)).to(tl.int64)

    if LAYOUT == "ragged":
        # here, so that it comes together with the positions
        slot = tl.load(place + row * place_row).to(tl.int64)

    each = tile * ROWS + tl.arange(0, ROWS)
    query = each // GROUPS
    heads = head * GROUPS + each % GROUPS
    if offsets is None:
        inside = query < queries
        window, token = row, query
        line = row * queries + query
    else:
        begins, ends = tl.load(offsets + row), tl.load(offsets + row + 1)
        inside = query < tl.minimum(ends - begins, queries)
        window, token = 0, begins + query
        line = token
    own = tl.load(
        positions + window * position_row + token * position_query, mask=inside, other=-1
    ).to(tl.int32)
    dim = tl.arange(0, WIDTH)
    in_dim = dim < DIM
    q_places = (
        window * q_row + token[:, None] * q_query + heads[:, None] * q_head + dim[None, :] * q_dim
    )
    q_tile = tl.load(q + q_places, mask=inside[:, None] & in_dim[None, :], other=0.0).to(OPERAND)

    # The keys that some query of the block sees, or all of the span; this split's share is a whole
    # number of blocks.
    stop = tl.max(own, 0) + 1
    start = 0
    if WINDOW is not None:
        start = tl.maximum(tl.min(tl.where(own >= 0, own, stop), 0) - WINDOW + 1, 0)
    if LAYOUT == "padded":
        stop = span
    share = ((stop - start + KEYS - 1) // KEYS + splits - 1) // splits * KEYS
    begin = start + split * share
    end = tl.minimum(begin + share, stop)

    k_base = k + head * k_head
    v_base = v + head * v_head
    if LAYOUT == "padded":
        k_base += row * k_row
        v_base += row * v_row
    if LAYOUT == "ragged":
        k_base += slot * k_key
        v_base += slot * v_key

    entries = k_base
    if LAYOUT == "paged":
        entries = place + row * place_row
    top = tl.full((ROWS,), float("-inf"), SUM)
    total = tl.full((ROWS,), 0.0, SUM)
    if sinks is not None:  # a score without a value, of the first split
        top = tl.where(split == 0, tl.load(sinks + heads).to(SUM), top)
        total = tl.where(split == 0, 1.0, total)
    acc = tl.full((ROWS, WIDTH), 0.0, SUM)
    if MANY:  # keys that every query of the block sees need no masks
        least = tl.min(tl.where(inside, own, 2147483647), 0) + 1
        if WINDOW is not None:
            least = tl.where(tl.max(own, 0) < WINDOW, least, 0)
        clear = begin + tl.maximum(tl.minimum(least, end) - begin, 0) // KEYS * KEYS
        for at in range(begin, clear, KEYS):
            top, total, acc = _more(
                q_tile, own, k_base, v_base, entries, at, end, top, total, acc,
                k_row, k_key, k_dim, v_row, v_key, v_dim, place_entry, SCALE, WINDOW, SOFTCAP,
                LAYOUT, PAGE, DIM, KEYS, WIDTH, OPERAND, SUM, False,
            )  # fmt: skip
        begin = clear
    for at in range(begin, end, KEYS):
        top, total, acc = _more(
            q_tile, own, k_base, v_base, entries, at, end, top, total, acc,
            k_row, k_key, k_dim, v_row, v_key, v_dim, place_entry, SCALE, WINDOW, SOFTCAP,
            LAYOUT, PAGE, DIM, KEYS, WIDTH, OPERAND, SUM, True,
        )  # fmt: skip

    rows = line * (tl.num_programs(1) * GROUPS) + heads
    written = inside[:, None] & in_dim[None, :]
    at = rows[:, None] * DIM + dim[None, :]
    last = True
    if MOST_SPLITS > 1:
        count = lines.to(tl.int64)
        tl.store(tops + split * count + rows, top, mask=inside)
        tl.store(totals + split * count + rows, total, mask=inside)
        tl.store(parts + split * count * DIM + at, acc, mask=written)
        tl.debug_barrier()  # every thread has stored
        place_of_count = (
            counts
            + ((row - first) * tl.num_programs(1) + head) * (tl.num_programs(0) // splits)
            + tile
        )
        came = tl.atomic_add(place_of_count, 1, sem="acq_rel")
        last = came == splits - 1
        if last:
            tl.store(place_of_count, 0)
            each_split = tl.arange(0, MOST_SPLITS)[:, None]
            known = (each_split < splits) & inside[None, :]
            tops_of_splits = tl.load(
                tops + each_split * count + rows[None, :],
                mask=known,
                other=float("-inf"),
                cache_modifier=".cg",
            )
            top = tl.max(tops_of_splits, 0)
            level = tl.where(top > float("-inf"), top, 0.0)
            sums = tl.load(
                totals + each_split * count + rows[None, :],
                mask=known,
                other=0.0,
                cache_modifier=".cg",
            )
            total = tl.sum(sums * tl.exp(tops_of_splits - level[None, :]), 0)
            acc = tl.full((ROWS, WIDTH), 0.0, SUM)
            if MOST_SPLITS <= UNROLLED:  # so that the loads do not wait for each other
                for other in tl.static_range(MOST_SPLITS):
                    acc += _share(
                        parts,
                        tops,
                        other,
                        count,
                        rows,
                        at,
                        level,
                        inside & (other < splits),
                        written & (other < splits),
                        DIM,
                    )
            else:
                for other in range(0, splits):
                    acc += _share(parts, tops, other, count, rows, at, level, inside, written, DIM)
    if last:
        acc = acc / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out + at, acc.to(out.dtype.element_ty), mask=written)


if INTERPRETED:
    range = interpreted_range


def attend(
    q: Queries,
    k: Padded | Pool | Blocks,
    v: Padded | Pool | Blocks,
    place: Int[Tensor, " batch"] | Int[Tensor, "batch entries"] | None,
    positions: Positions,
    span: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Float[Tensor, " heads"] | None = None,
    splits: int | None = None,
    each_row: bool = False,
) -> Queries:
    """Attention of a batch in one launch.

    place: None: k and v are padded, and each row reads all `span` positions, as in BASS-PAD (Qian
    et al., 2024); the start of each row in a pool; a table of blocks. Rows of the latter two end at
    their own lengths. `each_row`: one launch for each row, as in BASS-SPLIT.
    """
    batch, queries = q.shape[:2]
    limits = scale, window, softcap
    out = q.new_empty(q.shape)
    return _attended(
        q, k, v, place, positions, None, batch, queries, span, limits, sinks, out, splits, each_row
    )


def attend_packed(
    q: Float[Tensor, "1 tokens heads dim"],
    k: Padded | Pool | Blocks,
    v: Padded | Pool | Blocks,
    place: Int[Tensor, "rows ..."] | None,
    positions: Int[Tensor, "1 tokens"],
    offsets: Int[Tensor, " rows_and_one"],
    longest: int,
    span: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Float[Tensor, " heads"] | None = None,
    splits: int | None = None,
) -> Float[Tensor, "1 tokens heads dim"]:
    """As `attend`, of a packed window: the queries of row b are at `offsets[b]` to `offsets[b +
    1]`, at most `longest`. The output of those at -1 is zero.
    """
    limits = scale, window, softcap
    out = q.new_zeros(q.shape)
    rows = len(offsets) - 1
    return _attended(
        q, k, v, place, positions, offsets, rows, longest, span, limits, sinks, out, splits
    )


def _attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    place: Tensor | None,
    positions: Tensor,
    offsets: Tensor | None,
    batch: int,
    queries: int,
    span: int,
    limits: tuple[float, int | None, float | None],
    sinks: Tensor | None,
    out: Tensor,
    splits: int | None,
    each_row: bool = False,
) -> Tensor:
    """`out` with the attention of `batch` rows of up to `queries` queries."""
    scale, window, softcap = limits
    layout = "padded" if place is None else "ragged" if place.ndim == 1 else "paged"
    heads, dim = q.shape[2:]
    kv_heads = k.shape[-2]
    groups, count = heads // kv_heads, 1 if each_row else batch
    keys = span if window is None else min(span, window + queries)
    cut = cut_for(
        queries * groups, keys, dim, q.element_size(), kv_heads * count, shared_memory(q.device),
        splits,
    )  # fmt: skip
    tiles, splits = -(-queries * groups // cut.rows), cut.splits
    sums = torch.promote_types(q.dtype, torch.float32)
    parts, tops, totals, counts = None, None, None, None
    if splits > 1:
        parts = q.new_empty((splits, *q.shape), dtype=sums)
        tops, totals = q.new_empty((2, *parts.shape[:-1]), dtype=sums)
        counts = kept_zeros("attention", MOST_TILES, q.device)
        assert tiles * kv_heads * count <= MOST_TILES, f"{tiles * kv_heads * count} tiles"
    row_stride = () if k.ndim == 4 else (0,)
    place_strides = (0, 0) if place is None else (*place.stride(), 0)[:2]
    launch: Any = _attend[(tiles * splits, kv_heads, count)]
    with torch.cuda.device_of(q):
        for first in range(0, batch, count):
            launch(
                q, k, v, place, positions, offsets, out, parts, tops, totals, counts, sinks,
                first, q[..., 0].numel(), queries, span, splits,
                *q.stride(), *row_stride, *k.stride(), *row_stride, *v.stride(), *place_strides,
                *positions.stride(),
                scale, window, softcap, layout, k.shape[1] if layout == "paged" else 1,
                1 << (splits - 1).bit_length(), groups, dim,
                ROWS=cut.rows, KEYS=cut.keys, WIDTH=power_of_2(dim),
                OPERAND=operand(q.dtype), SUM=TRITON_DTYPES[sums], MANY=cut.many,
                num_warps=cut.warps, num_stages=cut.stages, **dependent(q),
            )  # fmt: skip
    return out


@dataclass(frozen=True)
class AttentionSchedule:
    """Blocks of `rows` queries; `keys` keys at a time, `stages` of these in flight, by `warps`
    warps; a row's keys in `splits`. many: a prefill.
    """

    rows: int
    keys: int
    stages: int
    warps: int
    splits: int
    many: bool


def power_of_2(size: int) -> int:
    """The next power of two, at least `LEAST_ROWS`."""
    return max(LEAST_ROWS, 1 << (size - 1).bit_length())


def cut_for(
    queries: int, span: int, dim: int, size: int, heads: int, shared: int, splits: int | None
) -> AttentionSchedule:
    """How to cut the attention of `queries` queries times heads of a group over up to `span` keys
    of `dim` numbers of `size` bytes.

    heads: those of keys, times the rows of a launch. shared: bytes of a multiprocessor. splits:
    None for what fills the GPU.
    """
    width, rows, many = power_of_2(dim), min(power_of_2(queries), MOST_ROWS[size]), False
    if queries >= MANY_ROWS:
        many = True
        rows *= 2 if size == 2 and width <= 128 else 1
    programs = -(-queries // rows) * heads
    if splits is None:
        longest = span if not many else LONGEST_SPLIT  # its queries fill the GPU
        least = WIDE_SPLIT_KEYS if width >= WIDE else SPLIT_KEYS
        splits = splits_for(programs, min(span, longest), least) if programs <= MOST_TILES else 1
    queue = PREFILL if many else in_flight(programs * splits, rows, shared)
    most_keys, tile_bytes, stages = queue
    keys = min(most_keys, max(16, tile_bytes // (width * size)))
    while keys > 16 and 2 * keys * width * size > shared - SCRATCH:  # two stages do not fit
        keys //= 2
    stages = max(2, min(stages, 1 + (shared - SCRATCH) // (2 * keys * width * size)))
    alone = queue == ALONE and not many
    large = rows > 64 or (alone and (rows == 32 or width >= WIDE))
    return AttentionSchedule(rows, keys, stages, 8 if large else 4, splits, many)


def splits_for(programs: int, keys: int, least: int = SPLIT_KEYS) -> int:
    """The number of splits of `keys` keys, of at least `least` each, for `programs` programs
    without splits.

    Enough splits to fill the GPU, also for one long row among short ones.
    """
    wanted = max(PROGRAMS // programs, -(-keys // LONGEST_SPLIT))
    return max(1, min(wanted, -(-keys // least), MOST_SPLITS))


def in_flight(programs: int, rows: int, shared: int) -> tuple[int, int, int]:
    """ALONE, SHARED or CROWDED, for blocks of `rows` queries on multiprocessors of `shared` bytes
    of memory.

    A single program on a multiprocessor needs large tiles to keep the memory busy. Several programs
    do that together; with more than two programs of few queries, the most possible should fit.
    """
    if rows <= 32 and programs <= PROGRAMS and shared == MOST_SHARED:
        return ALONE
    return CROWDED if rows == LEAST_ROWS and programs > 2 * PROGRAMS else SHARED
