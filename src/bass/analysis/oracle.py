"""The distance of draft lengths to the oracle's, and what a longer draft would have had accepted.

The oracle drafts as many tokens as will be accepted. A call that rejected a token shows that
number. A call whose whole draft was accepted shows a lower bound only: its observation is censored
at the length of the draft. The rates of `bass.api.results.acceptance_by_position` take this into
account: position i counts only the calls that reached it, so their product is the estimator of
Kaplan and Meier (1958) of P(n or more accepted). It assumes that a length does not depend on the
drafted tokens, which the contract of policies demands; where a policy drafts longer in easier rows,
late positions are of those rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Int

from bass.analysis.repeats import Repeat


@final
@dataclass(frozen=True)
class Distance:
    """Mean tokens of a call: drafted and rejected (`over`), and not drafted although they would
    have been accepted (`under`); up to `longest` drafted tokens.
    """

    over: float
    under: float
    longest: int

    @property
    def total(self) -> float:
        """The mean of |length - oracle's length|."""
        return self.over + self.under


def pooled_rates(generations: Iterable[Repeat]) -> Float[np.ndarray, " longest"]:
    """Conditional acceptance by position over all these generations, up to the last position that
    was judged. The last known rate stands for a position that no draft reached.
    """
    passed, reached = pooled_counts(generations)
    rates, known = np.ones(len(reached)), 1.0
    for i, count in enumerate(reached):
        known = float(passed[i] / count) if count else known
        rates[i] = known
    return rates


def pooled_counts(
    generations: Iterable[Repeat],
) -> tuple[Int[np.ndarray, " longest"], Int[np.ndarray, " longest"]]:
    """By position: how many drafts had it accepted, and how many had it judged after nothing but
    accepted tokens.
    """
    judged, accepted = _calls(generations)
    at = np.arange(int(judged.max(initial=0)))[:, None]
    return (accepted > at).sum(1), ((judged > at) & (accepted >= at)).sum(1)


def further(rates: Float[np.ndarray, " longest"]) -> Float[np.ndarray, " lengths"]:
    """Entry d: how many more tokens are accepted, on average, after d accepted ones, up to
    `longest`; float [longest + 1].
    """
    more = np.zeros(len(rates) + 1)
    for d in range(len(rates) - 1, -1, -1):
        more[d] = rates[d] * (1 + more[d + 1])
    return more


def censored(generation: Repeat) -> np.ndarray:
    """Bool [calls]: whether a longer draft may have had more accepted: nothing was rejected, and
    the request went on.
    """
    rows = generation.rows
    last = np.zeros(len(rows.requests), dtype=bool)
    # the last call of each request: its text ended there
    _, from_end = np.unique(rows.requests[::-1], return_index=True)
    last[len(last) - 1 - from_end] = True
    return (rows.accepted == rows.drafted) & (rows.emitted > rows.accepted) & ~last


def distance(
    generations: Sequence[Repeat], rates: Float[np.ndarray, " longest"]
) -> Distance | None:
    """The mean distance over all calls, with `rates` of the same drafts; None where nothing was
    drafted.
    """
    if not any(one.counts.drafted for one in generations):
        return None
    more = further(rates)
    over = under = calls = 0.0
    for one in generations:
        rows, cut = one.rows, censored(one)
        calls += len(rows.drafted)
        over += float((rows.drafted - rows.accepted).sum())
        under += float(more[np.minimum(rows.drafted[cut], len(rates))].sum())
    return Distance(over / calls, under / calls, len(rates))


def _calls(
    generations: Iterable[Repeat],
) -> tuple[Int[np.ndarray, " calls"], Int[np.ndarray, " calls"]]:
    rows = [one.rows for one in generations]
    empty = np.zeros(0, dtype=np.int64)
    return (
        np.concatenate([empty, *(one.judged for one in rows)]),
        np.concatenate([empty, *(one.accepted for one in rows)]),
    )
