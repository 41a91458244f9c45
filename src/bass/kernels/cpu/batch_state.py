"""Operations of a step on its rows; `bass.ops.batch_state` defines them."""

import math
from typing import no_type_check

from jaxtyping import Bool, Float, Int
from torch import Tensor

from bass.kernels.cpu.runtime import bytes_, compiled, doubles, floats, integers, own_share


@compiled
@no_type_check
def _window(argument):
    a = integers(argument)
    tokens, lens, active, drafted, lengths, out, positions = (
        integers(a[0]), integers(a[1]), bytes_(a[2]), integers(a[3]), integers(a[4]),
        integers(a[5]), integers(a[6]),
    )  # fmt: skip
    rows, step, k, threads = a[7], a[8], a[9], a[10]
    for row in own_share(rows, threads):
        last = lens[row] - 1 if active[row] and lens[row] > 0 else -1
        out[row * (k + 1)] = tokens[row * step + max(last, 0)]
        positions[row * (k + 1)] = last
        for i in range(k):
            to = row * (k + 1) + i + 1
            out[to] = drafted[row * k + i]
            positions[to] = last + i + 1 if last >= 0 and i < lengths[row] else -1


@compiled
@no_type_check
def _commit(argument):
    a = integers(argument)
    tokens, lens, limits, active, steps, ends = (
        integers(a[0]), integers(a[1]), integers(a[2]), bytes_(a[3]), integers(a[4]),
        integers(a[5]),
    )  # fmt: skip
    given, accepted, emitted = integers(a[6]), integers(a[7]), integers(a[8])
    rows, step, window, count, vocab, threads = a[9], a[10], a[11], a[12], a[13], a[14]
    for row in own_share(rows, threads):
        first_end = window
        for i in range(window - 1, -1, -1):
            token = min(max(given[row * window + i], 0), vocab - 1)
            for end in range(count):
                if token == ends[row * count + end]:
                    first_end = i
        own = min(min(accepted[row], first_end) + 1, limits[row] - lens[row]) if active[row] else 0
        for i in range(min(own, window)):
            token = min(max(given[row * window + i], 0), vocab - 1)
            tokens[row * step + lens[row] + i] = token
        emitted[row] = own
        lens[row] += own
        steps[row] += active[row]
        goes_on = active[row] and first_end >= own and lens[row] < limits[row]
        active[row] = 1 if goes_on else 0


@compiled
@no_type_check
def _pack(argument):
    a = integers(argument)
    lens, active, drafted, accepted, emitted, flags = (
        integers(a[0]), bytes_(a[1]), integers(a[2]), integers(a[3]), integers(a[4]),
        integers(a[5]),
    )  # fmt: skip
    tokens, logprobs, drafts, probs = integers(a[6]), floats(a[7]), integers(a[8]), floats(a[9])
    out, bits = integers(a[10]), doubles(a[10])
    rows, k, vocab, threads = a[11], a[12], a[13], a[14]
    for row in own_share(rows, threads):
        at = row * (8 + 4 * k)
        out[at], out[at + 1], out[at + 2] = lens[row], active[row], drafted[row]
        out[at + 3], out[at + 4], out[at + 5] = accepted[row], emitted[row], flags[row]
        for i in range(k + 1):
            out[at + 6 + i] = tokens[row * (k + 1) + i]
            bits[at + 7 + 2 * k + i] = logprobs[row * (k + 1) + i]
        for i in range(k):
            token = drafts[row * k + i]
            out[at + 7 + k + i] = token
            bits[at + 8 + 3 * k + i] = probs[(row * k + i) * vocab + token] if a[9] else math.nan


def window(
    tokens: Int[Tensor, "batch slots"],
    lens: Int[Tensor, " batch"],
    active: Bool[Tensor, " batch"],
    drafted: Int[Tensor, "batch k"],
    lengths: Int[Tensor, " batch"],
) -> tuple[Int[Tensor, "batch window"], Int[Tensor, "batch window"]]:
    """The target's window and its positions."""
    rows, k = drafted.shape
    out, positions = tokens.new_empty(rows, k + 1), tokens.new_empty(rows, k + 1)
    _window(
        0, tokens, lens, active, drafted.contiguous(), lengths.contiguous(), out, positions, rows,
        tokens.stride(0), k,
    )  # fmt: skip
    return out, positions


def commit(
    tokens: Int[Tensor, "batch slots"],
    lens: Int[Tensor, " batch"],
    limits: Int[Tensor, " batch"],
    active: Bool[Tensor, " batch"],
    steps: Int[Tensor, " batch"],
    end_tokens: Int[Tensor, "batch ends"],
    verdict_tokens: Int[Tensor, "batch window"],
    accepted: Int[Tensor, " batch"],
    vocab: int,
) -> Int[Tensor, " batch"]:
    """Append the verdict to the rows; the numbers of emitted tokens."""
    emitted, (rows, window_) = lens.new_empty(lens.shape), verdict_tokens.shape
    _commit(
        0, tokens, lens, limits, active, steps, end_tokens.contiguous(),
        verdict_tokens.contiguous(), accepted.contiguous(), emitted, rows, tokens.stride(0),
        window_, end_tokens.shape[1], vocab,
    )  # fmt: skip
    return emitted


def pack_report(
    state: tuple[Tensor, ...],
    tokens: Int[Tensor, "batch window"],
    logprobs: Float[Tensor, "batch window"],
    draft_tokens: Int[Tensor, "batch k"],
    draft_probs: Float[Tensor, "batch k vocab"] | None,
) -> Int[Tensor, "batch report"]:
    """The report of a step. `state`: lens, active, drafted, verdict, emitted and flags."""
    rows, k = draft_tokens.shape
    out = tokens.new_empty(rows, 8 + 4 * k)
    _pack(
        0, *(one.contiguous() for one in state), tokens.contiguous(), logprobs.contiguous(),
        draft_tokens.contiguous(), None if draft_probs is None else draft_probs.contiguous(), out,
        rows, k, 0 if draft_probs is None else draft_probs.shape[2],
    )  # fmt: skip
    return out
