"""Checks the distributions of draft and target on the device, without a host read.

    valid_part         cuts a draft to the requested lengths and flags what is invalid
    with_target_flags  adds the flags of the target's distributions to a row's flag

    masses             per chunk of each distribution that counts: its sum and its least
                       probability
    flag               the flags of a row from the sums of its chunks

The first launch reads the distributions once, with many programs; the second combines their
results. `bass.ops.batch_state` defines both operations.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from bass.kernels import values
from bass.kernels.triton.batch_state import launch_rows
from bass.kernels.triton.launch import dense, dependent, wait_for_inputs

CHUNK, WARPS = 4096, 4  # of a distribution, in tokens

NOT_FINITE, NEGATIVE, NOT_ONE, UNKNOWN_TOKEN, NEGATIVE_LENGTH, IMPOSSIBLE_TOKEN = map(
    tl.constexpr, values.BITS
)
TARGET, TOLERANCE = tl.constexpr(values.TARGET), tl.constexpr(values.TOLERANCE)


@triton.jit(do_not_specialize=["k", "prob_row", "prob_slot"])
@no_type_check
def _masses(
    requested, lengths, probs, sums, least, k, vocab, prob_row, prob_slot,
    SIZE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Per chunk of each distribution within its row's length: its sum and its least probability."""
    row, slot, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    wait_for_inputs(PDL)
    if slot < tl.minimum(tl.load(requested + row), tl.load(lengths + row)):
        i = chunk * SIZE + tl.arange(0, SIZE)
        at = probs + row * prob_row + slot * prob_slot + i
        p = tl.load(at, mask=i < vocab, other=0.0).to(tl.float32)
        place = (row * k + slot) * tl.num_programs(2) + chunk
        tl.store(sums + place, tl.sum(p, 0))
        tl.store(least + place, tl.min(p, 0))


@triton.jit
@no_type_check
def _flag(sums, least, row, counts, i, k, chunks, CHUNKS: tl.constexpr):
    """The flags of the distributions that `counts` selects in a row."""
    c = tl.arange(0, CHUNKS)
    place = (row * k + i)[:, None] * chunks + c[None, :]
    mask = counts[:, None] & (c < chunks)[None, :]
    total = tl.sum(tl.load(sums + place, mask=mask, other=0.0), 1)
    lowest = tl.min(tl.load(least + place, mask=mask, other=0.0), 1)
    finite = tl.abs(total) < float("inf")  # a sum that contains NaN is NaN
    off = finite & (lowest >= 0) & (tl.abs(total - 1) > TOLERANCE)
    flag = tl.max(tl.where(counts & (finite == 0), NOT_FINITE, 0), 0)
    flag += tl.max(tl.where(counts & finite & (lowest < 0), NEGATIVE, 0), 0)
    return flag + tl.max(tl.where(counts & off, NOT_ONE, 0), 0)


@triton.jit(do_not_specialize=["k", "token_row", "prob_row", "prob_slot"])
@no_type_check
def _valid_part(
    requested, lengths, tokens, probs, sums, least, cut, out, flags, k, vocab, chunks, token_row,
    prob_row, prob_slot,
    SURE: tl.constexpr, CHUNKS: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    wait_for_inputs(PDL)
    room, own = tl.load(requested + row), tl.load(lengths + row).to(tl.int64)
    length = tl.maximum(tl.minimum(tl.minimum(room, own), k), 0)
    counts = i < length
    token = tl.load(tokens + row * token_row + i, mask=counts, other=0).to(tl.int64)
    known = (token >= 0) & (token < vocab)
    flag = tl.where((own < 0) & (room > 0), NEGATIVE_LENGTH, 0)
    flag += tl.max(tl.where(known, 0, UNKNOWN_TOKEN), 0)
    if not SURE:
        flag += _flag(sums, least, row, counts, i, k, chunks, CHUNKS)
        at = probs + row * prob_row + i * prob_slot + token
        chance = tl.load(at, mask=counts & known, other=1.0)
        flag += tl.max(tl.where(chance == 0, IMPOSSIBLE_TOKEN, 0), 0)
    tl.store(cut + row, length)
    tl.store(out + row * k + i, tl.where(known, token, 0), mask=i < k)
    tl.store(flags + row, flag.to(tl.int64))


@triton.jit(do_not_specialize=["k"])
@no_type_check
def _with_target_flags(
    counted, sums, least, flags, out, k, chunks,
    CHUNKS: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    wait_for_inputs(PDL)
    counts = i < tl.minimum(tl.load(counted + row), k)
    flag = _flag(sums, least, row, counts, i, k, chunks, CHUNKS)
    tl.store(out + row, tl.load(flags + row) + TARGET * flag.to(tl.int64))


def valid_part(
    requested: Tensor, lengths: Tensor, tokens: Tensor, probs: Tensor | None, vocab: int
) -> tuple[Int[Tensor, " batch"], Int[Tensor, "batch k"], Int[Tensor, " batch"]]:
    """The lengths, the tokens and the flags of `bass.ops.batch_state.valid_part`.

    Two launches, or one without distributions.
    """
    tokens, k = dense(tokens), tokens.shape[1]
    requested, lengths = requested.contiguous(), lengths.contiguous()
    cut, flags = torch.empty_like(requested), torch.empty_like(requested)
    out = torch.empty(tokens.shape, dtype=torch.int64, device=tokens.device)
    probs = probs if k else None
    sums, least, chunks, strides = None, None, 1, (0, 0)
    if probs is not None:
        probs = dense(probs)
        sums, least = _summed(requested, lengths, probs)
        chunks, strides = sums.shape[2], probs.stride()[:2]
    rows = (
        requested, lengths, tokens, probs, sums, least, cut, out, flags, k, vocab, chunks,
        tokens.stride(0), *strides,
    )  # fmt: skip
    options = {"SURE": probs is None, "CHUNKS": triton.next_power_of_2(chunks)}
    launch_rows(_valid_part, tokens, rows, k, **options)
    return cut, out, flags


def with_target_flags(flags: Tensor, probs: Tensor, counted: Tensor) -> Int[Tensor, " batch"]:
    """`bass.ops.batch_state.with_target_flags`, in two launches."""
    flags, counted, out = flags.contiguous(), counted.contiguous(), torch.empty_like(flags)
    sums, least = _summed(counted, counted, dense(probs))
    window, chunks = sums.shape[1:]
    rows = counted, sums, least, flags, out, window, chunks
    launch_rows(_with_target_flags, flags, rows, window, CHUNKS=triton.next_power_of_2(chunks))
    return out


def _summed(
    requested: Tensor, lengths: Tensor, probs: Tensor
) -> tuple[Float[Tensor, "batch k chunks"], Float[Tensor, "batch k chunks"]]:
    """The sum and the least probability of each chunk of the distributions within both lengths."""
    batch, k, vocab = probs.shape
    shape = 2, batch, k, -(-vocab // CHUNK)
    sums, least = torch.empty(shape, dtype=torch.float32, device=probs.device)
    launch: Any = _masses[shape[1:]]
    with torch.cuda.device_of(probs):
        launch(
            requested, lengths, probs, sums, least, k, vocab, *probs.stride()[:2],
            SIZE=CHUNK, num_warps=WARPS, **dependent(probs),
        )  # fmt: skip
    return sums, least
