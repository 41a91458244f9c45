"""Metrics of time: latencies, rates, and how much of the device was used. Seconds, unless they say
otherwise.

All requests of a repeat arrive when it begins. The docstrings are the definitions of
docs/metrics.md.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from bass.analysis.repeats import Repeat
from bass.api.results import Utilization, first_last_all, utilization


def tokens(repeat: Repeat) -> float | None:
    """Kept tokens of all sequences: committed ones, less those that a stop string cut off."""
    return float(repeat.tokens)


def seconds(repeat: Repeat) -> float | None:
    """From the beginning of the repeat to the last token: prefills included, captures of graphs and
    warm-up not.
    """
    return repeat.seconds


def prefill_seconds(repeat: Repeat) -> float | None:
    """From the beginning of the repeat to the end of the first prefill."""
    return min(repeat.prefills, default=None)


def first(repeat: Repeat) -> float | None:
    """Seconds per token of the sequence that finished first, from the end of its prefill.

    BASS paper: first.
    """
    return _first_last_all(repeat, 0)


def last(repeat: Repeat) -> float | None:
    """Seconds per token of the sequence that finished last, from the end of its prefill.

    BASS paper: last.
    """
    return _first_last_all(repeat, 1)


def mean_of_all(repeat: Repeat) -> float | None:
    """Seconds per token from the end of the prefill, the mean over sequences. BASS paper: all."""
    return _first_last_all(repeat, 2)


def _first_last_all(repeat: Repeat, which: int) -> float | None:
    return first_last_all(
        (line.prefill_seconds or 0.0, line.seconds, len(line.tokens)) for line in repeat.requests
    )[which]


def seconds_per_token(repeat: Repeat) -> dict[int, float]:
    """Of each request: seconds per token from the end of its prefill."""
    return {
        line.request: line.seconds / len(line.tokens) for line in repeat.requests if line.tokens
    }


def first_token_times(repeat: Repeat) -> dict[int, float]:
    """Time to first token, from the beginning of the repeat, when all requests arrive: a wait for a
    row is in it. vLLM: mean_ttft_ms.
    """
    return {request: float(times[0]) for request, times in repeat.token_times.items() if len(times)}


def times_per_output_token(repeat: Repeat) -> dict[int, float]:
    """Time per output token after the first: from a request's first token to its last one, over its
    tokens less one.

    Of requests of two or more tokens. vLLM: mean_tpot_ms.
    """
    return {
        r: float(times[-1] - times[0]) / (len(times) - 1)
        for r, times in repeat.token_times.items()
        if len(times) > 1
    }


def tokens_per_second_of_requests(repeat: Repeat) -> dict[int, float]:
    """A request's tokens over its seconds from the end of its prefill.

    Spec-Bench: tokens per second, with the prefill in the time.
    """
    return {
        line.request: len(line.tokens) / line.seconds
        for line in repeat.requests
        if line.tokens and line.seconds > 0
    }


def itl_p50(repeat: Repeat) -> float | None:
    """Median time between two arrivals of tokens for one request, over all of them; the tokens of a
    step arrive together.

    vLLM: median_itl_ms, of chunks.
    """
    return _itl(repeat, 50)


def itl_p99(repeat: Repeat) -> float | None:
    """As itl_p50, the 99th percentile. vLLM: p99_itl_ms, of chunks."""
    return _itl(repeat, 99)


def _itl(repeat: Repeat, percentile: float) -> float | None:
    gaps = inter_token_latencies(repeat)
    return float(np.percentile(gaps, percentile)) if len(gaps) else None


def inter_token_latencies(repeat: Repeat) -> Float[np.ndarray, " gaps"]:
    """The times between two arrivals of tokens for one request, of all requests."""
    return np.concatenate(
        [np.zeros(0), *(np.diff(np.unique(times)) for times in repeat.token_times.values())]
    )


def tokens_per_second(repeat: Repeat) -> float | None:
    """Kept tokens of all sequences over the whole time, prefill included. vLLM:
    output_throughput.
    """
    return repeat.tokens / repeat.seconds if repeat.seconds else None


def decode_tokens_per_second(repeat: Repeat) -> float | None:
    """Committed tokens of all sequences over the time in steps: without prefill, and without the
    host's work between steps.
    """
    return repeat.counts.emitted / repeat.stepping if repeat.stepping else None


def goodput(repeat: Repeat) -> float | None:
    """Requests per second that came to their own end within every latency limit that was set (ttft,
    tpot, e2e).

    A request of one token has a tpot of 0. Left out where no limit was set. vLLM: request_goodput.
    """
    limits = repeat.limits
    if not repeat.seconds or (limits.ttft, limits.tpot, limits.e2e) == (None, None, None):
        return None
    firsts, gaps = first_token_times(repeat), times_per_output_token(repeat)

    def within(value: float, limit: float | None) -> bool:
        return limit is None or value <= limit

    good = [
        line
        for line in repeat.requests
        if line.finish != "budget"
        and line.tokens
        and within(firsts[line.request], limits.ttft)
        and within(gaps.get(line.request, 0.0), limits.tpot)
        and within(line.ended, limits.e2e)
    ]
    return len(good) / repeat.seconds


def host_share(repeat: Repeat) -> float | None:
    """Share of the time of steps in which the device waits for the host: its time before steps over
    that and the time in steps.
    """
    total = stepping_with_host(repeat)
    return sum(s.host_seconds for s in repeat.steps) / total if total else None


def stepping_with_host(repeat: Repeat) -> float:
    """The denominator of host_share."""
    return sum(s.host_seconds for s in repeat.steps) + repeat.stepping


def bound_seconds(repeat: Repeat) -> float | None:
    """The least time in which the device can move the bytes that the steps must move: see What the
    bound counts.
    """
    return _used(repeat, lambda used: used.bound_seconds)


def mbu(repeat: Repeat) -> float | None:
    """Model bandwidth utilization: bound_seconds over the time in steps."""
    return _used(repeat, lambda used: used.mbu)


def mfu(repeat: Repeat) -> float | None:
    """Model FLOPs utilization: FLOPs done for tokens of active rows over those that the time in
    steps allows; attention's are left out.

    BASS paper: GPU utilization.
    """
    return _used(repeat, lambda used: used.mfu)


def mfu_kept(repeat: Repeat) -> float | None:
    """The part of mfu that went into tokens whose next token was committed."""
    return _used(repeat, lambda used: used.mfu_kept)


def _used(repeat: Repeat, which: Callable[[Utilization], float | None]) -> float | None:
    return None if repeat.facts is None else which(utilization(repeat.steps, repeat.facts.peaks))


def peak_memory_bytes(repeat: Repeat) -> float | None:
    """The most memory of the device that was in use at a time, weights included."""
    peak = None if repeat.facts is None else repeat.facts.peak_memory_bytes
    return None if peak is None else float(peak)
