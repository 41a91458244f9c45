"""Operations of a step on its rows, each in one launch; `bass.ops.batch_state` defines them and
their shapes.

    last             the last tokens of each row and their positions
    clipped          draft lengths within the room of each row
    draft_positions  the positions at which drafted tokens are fed
    window           a row's last token and its draft, with their positions
    leading          the number of a draft's tokens before the first that is not accepted
    commit           appends a verdict to the rows
    pack_report      the report of a step in one tensor
    uniforms         the noise of a step: Philox4x32-10 (Salmon et al., 2011)

One program per row. The same operations in torch are about seventy launches of 1.5 microseconds on
a GPU.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from bass.kernels.triton.launch import dense, dependent, wait_for_inputs

# least places of a program, so that one compiled kernel serves every usual draft length
WIDTH = 32
SLOTS = 128  # of one program of `uniforms`


@triton.jit(do_not_specialize=["count", "token_row"])
@no_type_check  # Triton reads the source, not the function
def _last(
    tokens, lens, active, out, positions, count, token_row, WIDTH: tl.constexpr, PDL: tl.constexpr
):
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    wait_for_inputs(PDL)
    place = tl.maximum(tl.load(lens + row) - count + i, -1)
    place = tl.where(tl.load(active + row) != 0, place, -1)
    token = tl.load(tokens + row * token_row + tl.maximum(place, 0), mask=i < count, other=0)
    tl.store(out + row * count + i, token, mask=i < count)
    tl.store(positions + row * count + i, place, mask=i < count)


@triton.jit
@no_type_check
def _clipped(lengths, lens, limits, active, out, WIDTH: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    wait_for_inputs(PDL)
    length = tl.load(lengths + row)
    room = tl.load(limits + row) - tl.load(lens + row) - 1
    length = tl.where(tl.load(active + row) != 0, tl.minimum(length, room), 0)
    tl.store(out + row, length)


@triton.jit(do_not_specialize=["k"])
@no_type_check
def _draft_positions(lens, lengths, positions, k, WIDTH: tl.constexpr, PDL: tl.constexpr):
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    wait_for_inputs(PDL)
    place = tl.where(i + 1 < tl.load(lengths + row), tl.load(lens + row) + i, -1)
    tl.store(positions + row * k + i, place, mask=i < k)


@triton.jit(do_not_specialize=["k", "token_row", "draft_row"])
@no_type_check
def _window(
    tokens, lens, active, draft, lengths, out, positions, k, token_row, draft_row,
    WIDTH: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    wait_for_inputs(PDL)
    first = tl.load(lens + row) - 1
    fed = (i <= tl.load(lengths + row)) & (first >= 0) & (tl.load(active + row) != 0)
    last = tl.load(
        tokens + row * token_row + tl.where(tl.load(active + row) != 0, tl.maximum(first, 0), 0)
    )
    drafted = tl.load(draft + row * draft_row + i - 1, mask=(i > 0) & (i <= k), other=0)
    tl.store(out + row * (k + 1) + i, tl.where(i == 0, last, drafted), mask=i <= k)
    tl.store(positions + row * (k + 1) + i, tl.where(fed, first + i, -1), mask=i <= k)


@triton.jit(do_not_specialize=["k", "kept_row", "kept_column"])
@no_type_check
def _leading(kept, lengths, out, k, kept_row, kept_column, WIDTH: tl.constexpr, PDL: tl.constexpr):
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    wait_for_inputs(PDL)
    length = tl.minimum(tl.load(lengths + row), k)
    own = tl.load(kept + row * kept_row + i * kept_column, mask=i < length, other=0) != 0
    tl.store(out + row, tl.minimum(tl.min(tl.where(own, WIDTH, i), 0), length))


@triton.jit(do_not_specialize=["vocab", "size", "ends", "token_row", "verdict_row"])
@no_type_check
def _commit(
    tokens, lens, limits, active, steps, end_tokens, verdict, accepted, emitted, vocab, size, ends,
    token_row, verdict_row,
    WIDTH: tl.constexpr, ENDS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    wait_for_inputs(PDL)
    token = tl.load(verdict + row * verdict_row + i, mask=i < size, other=0)
    token = tl.minimum(tl.maximum(token, 0), vocab - 1)
    e = tl.arange(0, ENDS)
    end = tl.load(end_tokens + row * ends + e, mask=e < ends, other=-1)
    over = tl.max((token[:, None] == end[None, :]).to(tl.int32), 1) > 0
    first_end = tl.min(tl.where(over & (i < size), i, size), 0)
    length, limit, alive = tl.load(lens + row), tl.load(limits + row), tl.load(active + row) != 0
    count = tl.minimum(tl.minimum(tl.load(accepted + row), first_end) + 1, limit - length)
    count = tl.where(alive, count, 0)
    tl.store(tokens + row * token_row + length + i, token, mask=i < count)
    tl.store(lens + row, length + count)
    tl.store(steps + row, tl.load(steps + row) + alive.to(tl.int64))
    tl.store(active + row, alive & (first_end >= count) & (length + count < limit))
    tl.store(emitted + row, count)


@triton.jit(
    do_not_specialize=["k", "token_row", "logprob_row", "draft_row", "prob_row", "prob_slot"]
)
@no_type_check
def _pack_report(
    lens, active, lengths, accepted, emitted, flags, tokens, logprobs, drafted, probs, out, k,
    vocab,
    token_row, logprob_row, draft_row, prob_row, prob_slot, SURE: tl.constexpr, WIDTH: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    wait_for_inputs(PDL)
    place = out + row * (6 + 2 * (2 * k + 1))
    tl.store(place, tl.load(lens + row))
    tl.store(place + 1, tl.load(active + row).to(tl.int64))
    tl.store(place + 2, tl.load(lengths + row))
    tl.store(place + 3, tl.load(accepted + row))
    tl.store(place + 4, tl.load(emitted + row))
    tl.store(place + 5, tl.load(flags + row))
    tl.store(
        place + 6 + i, tl.load(tokens + row * token_row + i, mask=i <= k, other=0), mask=i <= k
    )
    draft = tl.load(drafted + row * draft_row + i, mask=i < k, other=0)
    tl.store(place + 7 + k + i, draft, mask=i < k)
    own = tl.load(logprobs + row * logprob_row + i, mask=i <= k, other=0.0).to(tl.float64)
    tl.store(place + 7 + 2 * k + i, own.to(tl.int64, bitcast=True), mask=i <= k)
    if SURE:
        chance = tl.full((WIDTH,), float("nan"), tl.float64)
    else:
        known = (i < k) & (draft >= 0) & (draft < vocab)
        chance = tl.load(
            probs + row * prob_row + i * prob_slot + draft, mask=known, other=float("nan")
        ).to(tl.float64)
    tl.store(place + 8 + 3 * k + i, chance.to(tl.int64, bitcast=True), mask=i < k)


@triton.jit(do_not_specialize=["slots"])
@no_type_check
def _uniforms(
    keys, steps, out, slots, DOMAIN: tl.constexpr, SLOTS: tl.constexpr, PDL: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.program_id(1) * SLOTS + tl.arange(0, SLOTS)
    wait_for_inputs(PDL)
    step = (tl.load(steps + row) + slot * 0).to(tl.uint32)
    domain = tl.full((SLOTS,), DOMAIN, tl.uint32)
    words = tl.philox(tl.load(keys + row), step, slot.to(tl.uint32), domain, domain * 0)
    at = out + (row * slots + slot) * 4
    for stream in tl.static_range(4):
        # 2^-32, exactly
        tl.store(
            at + stream,
            (words[stream].to(tl.float64) + 0.5) * 2.3283064365386963e-10,
            mask=slot < slots,
        )


def last(
    tokens: Tensor, lens: Tensor, active: Tensor, count: int
) -> tuple[Int[Tensor, "batch count"], Int[Tensor, "batch count"]]:
    """`bass.ops.batch_state.last`."""
    out = tokens.new_empty((2, len(lens), count))
    launch_rows(_last, lens, (tokens, lens, active, *out, count, tokens.stride(0)), count)
    return out[0], out[1]


def clipped(lengths: Tensor, lens: Tensor, limits: Tensor, active: Tensor) -> Int[Tensor, " batch"]:
    """`bass.ops.batch_state.clipped`."""
    out = torch.empty_like(lens)
    launch_rows(_clipped, lens, (lengths.contiguous(), lens, limits, active, out), 1)
    return out


def draft_positions(lens: Tensor, lengths: Tensor, k: int) -> Int[Tensor, "batch k"]:
    """`bass.ops.batch_state.draft_positions`."""
    positions = lens.new_empty(len(lens), k)
    launch_rows(_draft_positions, lens, (lens, lengths.contiguous(), positions, k), k)
    return positions


def window(
    tokens: Tensor, lens: Tensor, active: Tensor, draft: Tensor, lengths: Tensor
) -> tuple[Int[Tensor, "batch window"], Int[Tensor, "batch window"]]:
    """`bass.ops.batch_state.window`."""
    draft, k = dense(draft), draft.shape[1]
    out = tokens.new_empty((2, len(lens), k + 1))
    inputs = (
        tokens, lens, active, draft, lengths.contiguous(), *out, k, tokens.stride(0),
        draft.stride(0),
    )  # fmt: skip
    launch_rows(_window, lens, inputs, k + 1)
    return out[0], out[1]


def leading(kept: Tensor, lengths: Tensor) -> Int[Tensor, " batch"]:
    """`bass.ops.batch_state.leading`."""
    out, k = torch.empty(len(kept), dtype=torch.int64, device=kept.device), kept.shape[1]
    launch_rows(_leading, kept, (kept, lengths.contiguous(), out, k, *kept.stride()), k)
    return out


def commit(
    tokens: Tensor, lens: Tensor, limits: Tensor, active: Tensor, steps: Tensor,
    end_tokens: Tensor, verdict: Tensor, accepted: Tensor, vocab: int,
) -> Int[Tensor, " batch"]:  # fmt: skip
    """`bass.ops.batch_state.commit`, in place; it does not write the spare slots."""
    verdict, accepted, size = dense(verdict), accepted.contiguous(), verdict.shape[1]
    emitted = torch.empty_like(lens)
    inputs = (
        tokens, lens, limits, active, steps, end_tokens, verdict, accepted, emitted, vocab, size,
        end_tokens.shape[1], tokens.stride(0), verdict.stride(0),
    )  # fmt: skip
    ends = triton.next_power_of_2(max(end_tokens.shape[1], 1))
    launch_rows(_commit, lens, inputs, size, ENDS=ends)
    return emitted


def pack_report(
    lens: Tensor, active: Tensor, lengths: Tensor, accepted: Tensor, emitted: Tensor,
    flags: Tensor, tokens: Tensor, logprobs: Tensor, drafted: Tensor, probs: Tensor | None,
) -> Int[Tensor, "batch report"]:  # fmt: skip
    """`bass.ops.batch_state.pack_report`."""
    lengths, accepted, flags = lengths.contiguous(), accepted.contiguous(), flags.contiguous()
    tokens, logprobs, drafted, k = dense(tokens), dense(logprobs), dense(drafted), drafted.shape[1]
    probs, vocab = (None, 0) if probs is None else (dense(probs), probs.shape[2])
    out = torch.empty((len(lens), 6 + 2 * (2 * k + 1)), dtype=torch.int64, device=lens.device)
    inputs = (
        lens, active, lengths, accepted, emitted, flags, tokens, logprobs, drafted, probs, out, k,
        vocab, tokens.stride(0), logprobs.stride(0), drafted.stride(0),
        *((0, 0) if probs is None else probs.stride()[:2]),
    )  # fmt: skip
    launch_rows(_pack_report, lens, inputs, k + 1, SURE=probs is None)
    return out


def uniforms(
    keys: Tensor, steps: Tensor, slots: int, domain: int
) -> Float[Tensor, "batch slots 4"]:
    """float64 uniforms in (0, 1), four per slot of each row; the counter is (step, slot, domain,
    0).
    """
    out = torch.empty((len(keys), slots, 4), device=keys.device, dtype=torch.float64)
    launch: Any = _uniforms[(len(keys), -(-slots // SLOTS))]
    with torch.cuda.device_of(keys):
        launch(
            keys.contiguous(), steps.contiguous(), out, slots, DOMAIN=domain, SLOTS=SLOTS,
            num_warps=4, **dependent(keys),
        )  # fmt: skip
    return out


def launch_rows(
    kernel: Any, like: Tensor, inputs: tuple[Any, ...], width: int, **options: Any
) -> None:
    """Launch one program per row of `like`, with at least `width` places."""
    with torch.cuda.device_of(like):
        kernel[(len(like),)](
            *inputs,
            WIDTH=max(WIDTH, triton.next_power_of_2(width)),
            num_warps=1,
            **options,
            **dependent(like),
        )
