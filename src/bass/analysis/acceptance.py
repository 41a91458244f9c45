"""Metrics of drafts: what was drafted, what was accepted, what was wasted. None where one does not
apply.

A *call* is the target's call for one row: one active row of one step. The docstrings are the
definitions of docs/metrics.md.
"""

import numpy as np
from jaxtyping import Int

from bass.analysis.repeats import Repeat
from bass.api import results


def steps(repeat: Repeat) -> float | None:
    """Steps of the batch: each is one call of the target for all its rows."""
    return float(repeat.counts.steps)


def row_steps(repeat: Repeat) -> float | None:
    """Target calls of all rows: active rows summed over steps."""
    return float(repeat.counts.row_steps)


def drafted(repeat: Repeat) -> float | None:
    """Drafted tokens, those beyond the end of a sequence included."""
    return float(repeat.counts.drafted)


def accepted(repeat: Repeat) -> float | None:
    """Drafted tokens that were committed: bonus and correction left out."""
    return float(repeat.counts.accepted)


def emitted(repeat: Repeat) -> float | None:
    """Committed tokens, those that a stop string cut off included."""
    return float(repeat.counts.emitted)


def tau(repeat: Repeat) -> float | None:
    """Mean acceptance length: committed tokens / target calls, bonus and correction included,
    pooled over all requests.

    vLLM: mean acceptance length, which is 1 + accepted / drafts there, of the calls that had a
    draft; SGLang: accept length; Spec-Bench: #Mean accepted tokens.
    """
    return repeat.counts.tau


def acceptance_lengths(repeat: Repeat) -> dict[int, float]:
    """tau of each request, so that short ones weigh as much as long ones. vLLM, per request: mean
    acceptance length.
    """
    rows = repeat.rows
    return {
        int(r): float(rows.emitted[rows.requests == r].mean()) for r in np.unique(rows.requests)
    }


def accepted_per_call(repeat: Repeat) -> float | None:
    """Accepted draft tokens / target calls: bonus and correction left out."""
    return repeat.counts.accepted / repeat.counts.row_steps if repeat.counts.row_steps else None


def drafted_per_call(repeat: Repeat) -> float | None:
    """Drafted tokens / target calls: the mean length of a draft, those of length 0 included."""
    return repeat.counts.drafted / repeat.counts.row_steps if repeat.counts.row_steps else None


def acceptance_rate(repeat: Repeat) -> float | None:
    """Accepted / drafted tokens, pooled. It falls with the length of drafts even where drafts are
    as good.

    vLLM: draft acceptance rate.
    """
    return repeat.counts.acceptance_rate


def token_acceptance_rate(repeat: Repeat) -> float | None:
    """Of the drafted tokens that were judged after nothing but accepted ones, the share that was
    accepted.

    Unlike acceptance_rate it does not depend on the length of drafts if every token is accepted
    with one probability. Leviathan et al. (2023): alpha.
    """
    judged = reached(repeat)
    return repeat.counts.accepted / judged if judged else None


def reached(repeat: Repeat) -> float:
    """The denominator of token_acceptance_rate."""
    return float(sum(results.acceptance_by_position(repeat.steps)[1]))


def wasted_drafted_tokens(repeat: Repeat) -> float | None:
    """Drafted tokens that were not committed: drafted - accepted."""
    return float(repeat.counts.drafted - repeat.counts.accepted) if repeat.steps else None


def wasted_per_token(repeat: Repeat) -> float | None:
    """Drafted tokens that were not committed, for each committed token."""
    return (
        (repeat.counts.drafted - repeat.counts.accepted) / repeat.counts.emitted
        if repeat.counts.emitted
        else None
    )


def share_without_draft(repeat: Repeat) -> float | None:
    """Share of steps in which no row was to draft (k = 0): autoregressive decoding."""
    return sum(s.k == 0 for s in repeat.steps) / len(repeat.steps) if repeat.steps else None


def padding_waste(repeat: Repeat) -> float | None:
    """Share of the target's window positions, batch x (k + 1) a step, that belonged to an idle row
    or lay beyond a row's own draft.

    So it is on a device with static shapes. On a CPU, columns that no row uses are not computed.
    """
    total = window_positions(repeat)
    return 1 - (repeat.counts.row_steps + repeat.counts.drafted) / total if total else None


def window_positions(repeat: Repeat) -> float:
    """The denominator of padding_waste."""
    return float(sum(len(s.requests) * (s.k + 1) for s in repeat.steps))


def cache_padding_waste(repeat: Repeat) -> float | None:
    """Share of the cache positions up to the span, batch x span a step, that were nobody's.

    A padded layout reads them unless its kernel skips them; split and paged ones do not.
    """
    total = span_positions(repeat)
    return 1 - sum(s.positions for s in repeat.steps) / total if total else None


def span_positions(repeat: Repeat) -> float:
    """The denominator of cache_padding_waste."""
    return float(sum(len(s.requests) * s.span for s in repeat.steps))


def acceptance_by_position(repeat: Repeat) -> list[float | None]:
    """Entry i: of the drafts whose position i+1 was judged and that had all before it accepted, the
    share accepted there.

    NeMo-Skills: conditional acceptance rate.
    """
    return results.acceptance_by_position(repeat.steps)[0]


def reached_by_position(repeat: Repeat) -> list[float]:
    """The denominators of acceptance_by_position."""
    return [float(n) for n in results.acceptance_by_position(repeat.steps)[1]]


def unconditional_acceptance_by_position(repeat: Repeat) -> list[float | None]:
    """Entry i: of the drafts whose position i+1 exists (and does not lie beyond the end of the
    text), the share that kept it.

    vLLM: per-position acceptance rate, which it counts over all drafts, long enough or not.
    """
    counts = judged_by_position(repeat)
    return [
        float((repeat.rows.accepted > i).sum()) / n if n else None for i, n in enumerate(counts)
    ]


def judged_by_position(repeat: Repeat) -> list[float]:
    """The denominators of unconditional_acceptance_by_position."""
    return [
        float((repeat.rows.judged > i).sum())
        for i in range(int(repeat.rows.drafted.max(initial=0)))
    ]


def histogram(repeat: Repeat) -> Int[np.ndarray, "lengths accepted"]:
    """Entry [n, a]: how many calls drafted n tokens and accepted a of them."""
    rows, size = repeat.rows, int(repeat.rows.drafted.max(initial=0)) + 1
    counts = np.zeros((size, size), dtype=np.int64)
    np.add.at(counts, (rows.drafted, rows.accepted), 1)
    return counts


def drafted_histogram(repeat: Repeat) -> list[float]:
    """Entry n: how many calls drafted n tokens."""
    return histogram(repeat).sum(1).astype(float).tolist()


def accepted_histogram(repeat: Repeat) -> list[float]:
    """Entry n: how many calls accepted n draft tokens. vLLM, per request: accepted-draft-length
    distribution.
    """
    return histogram(repeat).sum(0).astype(float).tolist()


def accepted_by_length(repeat: Repeat) -> list[float | None]:
    """Entry n: the mean number of accepted tokens of the calls that drafted n."""
    counts = histogram(repeat)
    return [float(row @ np.arange(len(row)) / row.sum()) if row.any() else None for row in counts]
