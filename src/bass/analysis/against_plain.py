"""Metrics that compare a repeat with autoregressive decoding of the same requests at the same
batch. None without one to compare with.

The docstrings are the definitions of docs/metrics.md.
"""

from collections.abc import Callable

import numpy as np

from bass.analysis.acceptance import token_acceptance_rate
from bass.analysis.repeats import Repeat
from bass.analysis.speed import first, last, mean_of_all, tokens_per_second
from bass.analysis.statistics import student
from bass.runs.records import RequestLine, Summary
from bass.runs.words import listed

_OF_A_STEP = {"cuda_graphs": "use of CUDA graphs"}  # names of `Summary.unlike` in words


def speedup_tokens_per_second(repeat: Repeat) -> float | None:
    """tokens_per_second over that of autoregressive decoding.

    Spec-Bench: speedup ratio, which it takes of means over requests.
    """
    own, plain = _both(repeat, tokens_per_second)
    return own / plain if own and plain else None


def speedup_first(repeat: Repeat) -> float | None:
    """`first` of autoregressive decoding over `first`. BASS paper: speed-up of the first."""
    return _latency_ratio(repeat, first)


def speedup_last(repeat: Repeat) -> float | None:
    """`last` of autoregressive decoding over `last`. BASS paper: speed-up of the last."""
    return _latency_ratio(repeat, last)


def speedup_all(repeat: Repeat) -> float | None:
    """`all` of autoregressive decoding over `all`: what predicted_speedup predicts.

    BASS paper: speed-up of the mean.
    """
    return _latency_ratio(repeat, mean_of_all)


def speedup_limit(repeat: Repeat) -> float | None:
    """Tokens per step over that of autoregressive decoding: the most that
    speedup_tokens_per_second can be where both have the same cache, attention and use of CUDA
    graphs, since then no step takes less time than a plain one.
    """
    own, plain = _both(repeat, _tokens_per_step)
    return own / plain if own and plain else None


def _tokens_per_step(repeat: Repeat) -> float | None:
    return repeat.tokens / repeat.counts.steps if repeat.counts.steps else None


def impossible(summary: Summary) -> str | None:
    """Why a cell's speed-up is impossible; None if it is possible, or may be by noise."""
    excess = _beyond_limit(summary)
    if excess is None or summary.unlike:
        return None
    name, found, most = excess
    return (
        f"a speed-up of {found:.2f} (`{name}`) is impossible, since a step emitted {most:.2f} "
        "times as many tokens as a step of autoregressive decoding and takes at least as long: "
        "the machine was busy, so delete the cell and its plain counterpart, and run them again"
    )


def not_of_drafts(summary: Summary) -> str | None:
    """What else a speed-up is due to, if it is more than drafts can give and the cell of
    autoregressive decoding has other steps.
    """
    excess = _beyond_limit(summary)
    if excess is None or not summary.unlike:
        return None
    name, found, most = excess
    other = listed([_OF_A_STEP.get(one, one) for one in summary.unlike])
    return (
        f"a speed-up of {found:.2f} (`{name}`) is not that of drafts alone, since a step emitted "
        f"{most:.2f} times as many tokens as a step of autoregressive decoding, which has another "
        f"{other}: add a cell of autoregressive decoding with the same"
    )


def _beyond_limit(summary: Summary) -> tuple[str, float, float] | None:
    """The name and value of a speed-up that is more than its limit by more than noise, over
    repeats, and the limit. None with a single repeat.

    A mean over requests can exceed the ratio of all tokens, but not the ratio of any request's
    tokens per step.
    """
    for name, bounds in (
        ("speedup_tokens_per_second", ("speedup_limit",)),
        ("speedup_all", ("speedup_limit", "tau_of_requests")),
    ):
        pairs = [
            (one[name], max(one.get(bound, 0.0) for bound in bounds))
            for one in summary.repeats
            if name in one and "speedup_limit" in one
        ]
        if len(pairs) > 1:
            found, most = np.array(pairs).T
            if student(found - most).low > 0 and round(found.mean(), 2) > round(most.mean(), 2):
                return name, float(found.mean()), float(most.mean())
    return None


def draft_cost_ratio(repeat: Repeat) -> float | None:
    """c: what a drafted position adds to a step, over the time of a plain step.

    (time in steps - steps x p) / (p x the sum of k over steps), p being the mean time of a step of
    autoregressive decoding. The wider window of the target and the verification are in it, the
    host's work is not. Leviathan et al. (2023): c, of the draft model's pass alone.
    """
    drafted = drafted_seconds(repeat)
    if repeat.plain is None or not drafted:
        return None
    plain = repeat.plain.stepping / len(repeat.plain.steps)
    return (repeat.stepping - len(repeat.steps) * plain) / drafted


def drafted_seconds(repeat: Repeat) -> float:
    """The denominator of draft_cost_ratio: p x the sum of k over steps."""
    if repeat.plain is None or not repeat.plain.steps:
        return 0.0
    plain = repeat.plain.stepping / len(repeat.plain.steps)
    return plain * sum(s.k for s in repeat.steps)


def expected_tokens(a: float, length: int) -> float:
    """What a draft of that length commits if every token is accepted with probability a:

    (1 - a^(length+1)) / (1 - a).
    """
    return sum(a**i for i in range(length + 1))


def predicted_speedup(repeat: Repeat) -> float | None:
    """(1 - a^(k+1)) / ((1 - a) (k c + 1)), with token_acceptance_rate as a and draft_cost_ratio as
    c.

    Where lengths vary: the sum of the numerators, each with its row's own length, over that of k c
    + 1, both over all calls. Leviathan et al. (2023), theorem 3.8.
    """
    a, cost = token_acceptance_rate(repeat), predicted_cost(repeat)
    if a is None or cost <= 0:
        return None
    return sum(expected_tokens(a, int(length)) for length in repeat.rows.drafted) / cost


def predicted_cost(repeat: Repeat) -> float:
    """The denominator of predicted_speedup; 0 without a draft_cost_ratio."""
    c = draft_cost_ratio(repeat)
    return 0.0 if c is None else sum(int(s.active.sum()) * (s.k * c + 1) for s in repeat.steps)


def exact_matches(repeat: Repeat) -> dict[int, float]:
    """Of each request that both decoded: 1 if its tokens are those of autoregressive decoding, else
    0.

    One that the time budget cut is compared as far as it goes. It says something of greedy
    decoding, and of a coupled verifier next to autoregressive decoding with one; other verifiers
    draw other tokens from the same distribution.
    """
    return {request: float(at is None) for request, at in divergences(repeat).items()}


def first_divergence(repeat: Repeat) -> float | None:
    """Of the requests that differ from autoregressive decoding, the median number of tokens before
    the first one that differs.

    Left out where none differs. Rounding decides near ties, so that even greedy decoding may part
    from autoregressive decoding in low precision.
    """
    parted = [at for at in divergences(repeat).values() if at is not None]
    return float(np.median(parted)) if parted else None


def divergences(repeat: Repeat) -> dict[int, int | None]:
    """Of each request that both decoded: the index of the first token that differs, None where all
    are the same.
    """
    if repeat.plain is None:
        return {}
    plain = {line.request: line for line in repeat.plain.requests}
    return {
        line.request: _divergence(line, plain[line.request])
        for line in repeat.requests
        if line.request in plain
    }


def _divergence(a: RequestLine, b: RequestLine) -> int | None:
    """Compares a sequence that the time budget cut up to its end."""
    for i, (x, y) in enumerate(zip(a.tokens, b.tokens, strict=False)):
        if x != y:
            return i
    shorter = min(a, b, key=lambda line: len(line.tokens))
    return (
        None
        if len(a.tokens) == len(b.tokens) or shorter.finish == "budget"
        else len(shorter.tokens)
    )


def _both(
    repeat: Repeat, metric: Callable[[Repeat], float | None]
) -> tuple[float | None, float | None]:
    return metric(repeat), None if repeat.plain is None else metric(repeat.plain)


def _latency_ratio(repeat: Repeat, metric: Callable[[Repeat], float | None]) -> float | None:
    own, plain = _both(repeat, metric)
    return plain / own if own and plain else None
