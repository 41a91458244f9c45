"""Operations of a step on its rows: everything but the models' passes.

    row of `tokens`    [ prompt | committed | free | spare ]
                                   lens - 1 ^

On a GPU each operation is one launch of one kernel instead of about ten.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bass.kernels import triton as kernels
from bass.kernels.values import (
    IMPOSSIBLE_TOKEN,
    NEGATIVE,
    NEGATIVE_LENGTH,
    NOT_FINITE,
    NOT_ONE,
    TARGET,
    TOLERANCE,
    UNKNOWN_TOKEN,
    RowNumbers,
    Scores,
)
from bass.ops import dispatch
from bass.ops.sampling import token_logprobs
from bass.records import Draft, Sequences, Verdict

MOST_LAST = 256  # tokens of a row by the kernel, which is compiled for each power of two
TokensAt = tuple[Int[Tensor, "batch window"], Int[Tensor, "batch window"]]  # and positions


def last(rows: Sequences, count: int) -> TokensAt:
    """The last `count` committed tokens of each active row and their positions.

    Position -1 where there is none.
    """
    if dispatch.use_kernels(rows.lens) and count <= MOST_LAST:
        return kernels.batch_state.last(rows.tokens, rows.lens, rows.active, count)
    positions = rows.lens[:, None] + torch.arange(-count, 0, device=rows.lens.device)
    positions = torch.where(rows.active[:, None], positions.clamp(min=-1), -1)
    return rows.tokens.gather(1, positions.clamp(min=0)), positions


def draft_positions(lens: RowNumbers, lengths: RowNumbers, k: int) -> Int[Tensor, "batch k"]:
    """The position at which drafted token i is fed, to draft the next one: lens + i.

    Position -1 where the row's draft ends with that token.
    """
    if dispatch.use_kernels(lens):
        return kernels.batch_state.draft_positions(lens, lengths, k)
    ahead = torch.arange(k, device=lens.device)
    here = lens[:, None] + ahead
    return torch.where(ahead + 1 < lengths[:, None], here, -1)


def clipped(
    lengths: RowNumbers, lens: RowNumbers, limits: RowNumbers, active: Bool[Tensor, " batch"]
) -> RowNumbers:
    """Clip draft lengths to the space left in each row.

    A row of `lens` tokens drafts up to one token before its limit, which the verifier emits. An
    idle row drafts nothing.
    """
    if dispatch.use_kernels(lengths):
        return kernels.batch_state.clipped(lengths, lens, limits, active)
    return torch.minimum(lengths, limits - lens - 1) * active


def valid_part(requested: RowNumbers, draft: Draft, vocab: int) -> tuple[Draft, RowNumbers]:
    """The draft cut to the requested lengths and its own, and a flag per row.

    A flag is 0 for a valid row: up to its length, the tokens are in the vocabulary and have a
    probability above 0, and the distributions are finite, nowhere negative, and sum to 1 within
    1e-3 in float32. Otherwise it has the bits of `bass.kernels.values`. Ids outside the vocabulary
    and negative lengths become 0. On a CPU, where reading values does not synchronise, unused
    columns are dropped; elsewhere shapes are static.
    """
    if dispatch.use_kernels(draft.tokens):
        lengths, tokens, flags = kernels.validity.valid_part(
            requested, draft.lengths, draft.tokens, draft.probs, vocab
        )
        return Draft(tokens, draft.probs, lengths), flags
    own, k = draft.lengths.to(torch.int64), draft.tokens.shape[1]
    lengths = torch.minimum(own, requested).clamp(0, k)
    if lengths.device.type == "cpu":
        k = int(lengths.max())
    counts = torch.arange(k, device=lengths.device) < lengths[:, None]
    tokens = draft.tokens[:, :k].to(torch.int64)
    probs = None if draft.probs is None or not k else draft.probs[:, :k]
    unknown = counts & ((tokens < 0) | (tokens >= vocab))
    flags = UNKNOWN_TOKEN * unknown.any(1) + NEGATIVE_LENGTH * ((own < 0) & (requested > 0))
    tokens = torch.where(counts & ~unknown, tokens, 0)
    if probs is not None:
        impossible = counts & ~unknown & (probs.gather(2, tokens[..., None])[..., 0] == 0)
        flags = flags + distribution_flags(probs, lengths) + IMPOSSIBLE_TOKEN * impossible.any(1)
    return Draft(tokens, probs, lengths), flags


def with_target_flags(flags: RowNumbers, probs: Scores, counted: RowNumbers) -> RowNumbers:
    """Add the flags of the first `counted[b]` target distributions of each row.

    They must be finite, nowhere negative, and sum to 1 within 1e-3 in float32.
    """
    if dispatch.use_kernels(probs):
        return kernels.validity.with_target_flags(flags, probs, counted)
    return flags + TARGET * distribution_flags(probs, counted)


def distribution_flags(probs: Float[Tensor, "batch k vocab"], counted: RowNumbers) -> RowNumbers:
    """The flags of the first `counted[b]` distributions of each row."""
    total, least = probs.sum(2, dtype=torch.float32), probs.amin(2)
    if probs.is_cpu and bool(((least >= 0) & ((total - 1).abs() <= TOLERANCE)).all()):
        return torch.zeros_like(counted)  # where the host reads values without waiting
    counts = torch.arange(probs.shape[1], device=probs.device) < counted[:, None]
    finite = counts & total.isfinite()
    flags = NOT_FINITE * (counts & ~finite).any(1) + NEGATIVE * (finite & (least < 0)).any(1)
    return flags + NOT_ONE * (finite & (least >= 0) & ((total - 1).abs() > TOLERANCE)).any(1)


def window(rows: Sequences, draft: Draft) -> TokensAt:
    """The target's window: each row's last committed token and its draft, and their positions.

    tokens      last    d1   ...  dk
    positions   lens-1  lens ...  lens-1+k     -1 beyond the row's own length
    """
    if dispatch.use_kernels(rows.lens):
        return kernels.batch_state.window(
            rows.tokens, rows.lens, rows.active, draft.tokens, draft.lengths
        )
    position = torch.where(rows.active, rows.lens - 1, -1)[:, None]
    tokens = torch.cat((rows.tokens.gather(1, position.clamp(min=0)), draft.tokens), 1)
    if not draft.tokens.shape[1]:
        return tokens, position
    ahead = torch.arange(tokens.shape[1], device=tokens.device)
    fed = (ahead <= draft.lengths[:, None]) & (position >= 0)
    return tokens, torch.where(fed, position + ahead, -1)


def leading(kept: Bool[Tensor, "batch k"], lengths: RowNumbers) -> RowNumbers:
    """The number of leading accepted tokens of each row's own draft: those before the first that
    `kept` excludes.
    """
    if dispatch.use_kernels(kept):
        return kernels.batch_state.leading(kept, lengths)
    counts = torch.arange(kept.shape[1], device=kept.device) < lengths[:, None]
    return (kept & counts).cumprod(1).sum(1)


def commit_and_report(
    rows: Sequences,
    draft: Draft,
    flags: RowNumbers,
    verdict: Verdict,
    logits: Scores,
    probs: Scores,
    jointly: bool,
) -> tuple[Int[Tensor, "batch report"], RowNumbers]:
    """Commit a verdict: the report of the step, and the number of tokens that each row emitted.

    flags: of the draft; the report adds those of the distributions (`probs`) that decide the
    emitted tokens, or, if the verifier judges `jointly`, the whole window.
    """
    (batch, width), vocab = verdict.tokens.shape, logits.shape[2]
    cpu = dispatch.cpu_kernels(
        logits, probs, draft.probs, draft.tokens, draft.lengths, verdict.tokens, verdict.accepted
    )
    if cpu is not None:
        emitted = torch.empty_like(rows.lens)
        report = rows.lens.new_empty(batch, 4 + 4 * width)
        given = (
            rows.end_tokens, verdict.tokens, verdict.accepted, draft.tokens, draft.lengths,
            draft.probs, flags, logits, probs,
        )  # fmt: skip
        cpu.step.finish(
            8 * logits.numel(), rows.tokens, rows.lens, rows.limits, rows.active, rows.steps,
            *(None if one is None else one.contiguous() for one in given), emitted, report, report,
            batch, rows.tokens.stride(0), width - 1, rows.end_tokens.shape[1], vocab, jointly,
        )  # fmt: skip
        return report, emitted
    logprobs = token_logprobs(logits, verdict.tokens)
    emitted = commit(rows, verdict, vocab)
    judged = torch.where(emitted > 0, draft.lengths + 1, 0) if jointly else emitted
    flags = with_target_flags(flags, probs, judged)
    return pack_report(rows, draft, flags, verdict, emitted, logprobs), emitted


def commit(rows: Sequences, verdict: Verdict, vocab: int) -> RowNumbers:
    """Append each active row's verdict, cut after its first end token and at its limit.

    An id outside the vocabulary becomes the nearest one in it: the next step uses it as an index.
    Returns the number of tokens that each row emitted [B], and updates `lens`, `steps` and
    `active`.
    """
    if dispatch.use_kernels(rows.lens):
        state = rows.tokens, rows.lens, rows.limits, rows.active, rows.steps
        return kernels.batch_state.commit(
            *state, rows.end_tokens, verdict.tokens, verdict.accepted, vocab
        )
    tokens, size = verdict.tokens.clamp(0, vocab - 1), verdict.tokens.shape[1]
    offsets = torch.arange(size, device=rows.lens.device)
    ends = (tokens[..., None] == rows.end_tokens[:, None]).any(-1)
    first_end = torch.where(ends, offsets, size).amin(1)
    emitted = (
        torch.minimum(torch.minimum(verdict.accepted, first_end) + 1, rows.limits - rows.lens)
        * rows.active
    )
    slots = torch.where(offsets < emitted[:, None], rows.lens[:, None] + offsets, rows.capacity)
    rows.tokens.scatter_(1, slots, tokens)
    rows.lens.add_(emitted)
    rows.steps.add_(rows.active)
    rows.active.logical_and_((first_end >= emitted) & (rows.lens < rows.limits))
    return emitted


def pack_report(
    rows: Sequences,
    draft: Draft,
    flags: RowNumbers,
    verdict: Verdict,
    emitted: RowNumbers,
    logprobs: Float[Tensor, "batch window"],
) -> Int[Tensor, "batch report"]:
    """Pack the report of a committed step into one tensor, for one copy to the host.

        lens active drafted verdict emitted flags | tokens [W] | draft tokens [k] | floats [W + k]

    The floats are stored as their bits: the tokens' log-probabilities, then the probability of each
    drafted token in the distribution that it was drawn from, NaN for a deterministic draft.
    """
    state = rows.lens, rows.active, draft.lengths, verdict.accepted, emitted, flags
    if dispatch.use_kernels(emitted):
        return kernels.batch_state.pack_report(
            *state, verdict.tokens, logprobs, draft.tokens, draft.probs
        )
    numbers = torch.stack([one.to(torch.int64) for one in state], 1)
    if draft.probs is None:
        drawn = logprobs.new_full(draft.tokens.shape, torch.nan)
    else:
        drawn = draft.probs.gather(2, draft.tokens.to(torch.int64)[..., None])[..., 0]
    floats = torch.cat((logprobs, drawn), 1).to(torch.float64)
    return torch.cat((numbers, verdict.tokens, draft.tokens, floats.view(torch.int64)), 1)


def unpack_numbers(packed: np.ndarray) -> list[list[int]]:
    """The numbers of a report on the host: lens, active, drafted, verdict, emitted, flags.

    packed: int [B, columns], of `pack_report`.
    """
    return packed[:, :6].T.tolist()


class ReportedTokens(NamedTuple):
    """The tokens of a step: NumPy arrays with one row per sequence."""

    tokens: np.ndarray  # int [B, k + 1], the first `emitted` of a row are its new tokens
    logprobs: np.ndarray  # float64 [B, k + 1], of those tokens
    draft_tokens: np.ndarray  # int [B, k], the first `drafted` of a row were drafted
    # float64 [B, k], of those in the distributions they were drawn from; NaN for a deterministic
    # draft
    draft_probs: np.ndarray


def unpack_tokens(packed: np.ndarray) -> ReportedTokens:
    """The rest of a report of `pack_report`, int [B, columns]."""
    size = (packed.shape[1] - 4) // 4
    tokens, drafts = packed[:, 6 : 6 + size], packed[:, 6 + size : 5 + 2 * size]
    floats = np.ascontiguousarray(packed[:, 5 + 2 * size :]).view(np.float64)
    return ReportedTokens(tokens, floats[:, :size], drafts, floats[:, size:])
