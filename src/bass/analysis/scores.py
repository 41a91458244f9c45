"""Figures of scored samples: pass@k, First and All within a time budget.

Pure functions of records.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from jaxtyping import Float

from bass.errors import OptionError
from bass.runs.evaluation_folder import Sample


@dataclass(frozen=True)
class Scored:
    """A sample and its score from 0 to 1; for code 1 if it passed, else 0."""

    sample: Sample
    value: float


@dataclass(frozen=True)
class Point:
    """Scores of all problems within one budget; a problem without a finished sample counts as 0.

    first: mean score of the finished sample with the highest mean log-probability. all: mean of the
    best score of any finished one.
    finished: share of samples that finished in time. served: share of problems with at least one of
    them.
    """

    budget: float
    clock: str
    first: float
    all: float
    finished: float
    served: float


# kind of score of each task
SCORES = {
    "humaneval": "code",
    "mbpp": "code",
    "gsm8k": "exact_match",
    "summaries": "rouge2",
    "small-problems": "code",
}
CLOCKS = ("prefill", "start")


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Probability that of k samples drawn without replacement one or more pass:

    1 - C(n-c, k) / C(n, k), Chen et al. (2021), eq. 1.
    """
    if not 1 <= k <= samples:
        raise OptionError(
            f"pass@{k} needs {k} samples or more of each problem and at least one, and there are "
            f"{samples}: lower k."
        )
    if samples - passed < k:
        return 1.0
    # the product of the paper's figure 3, since binomials of many samples have a million digits
    return 1.0 - float(np.prod(1.0 - k / np.arange(samples - passed + 1, samples + 1)))


def mean_pass_at_k(problems: Sequence[Sequence[Scored]], k: int) -> float:
    """The mean over problems, each with its own number of samples."""
    return _mean(pass_at_k(len(group), sum(s.value == 1.0 for s in group), k) for group in problems)


def within(group: Sequence[Scored], budget: float, clock: str) -> tuple[float, float, int]:
    """First and All of one problem's samples within a budget, and how many finished in time."""
    finished = [s for s in group if s.sample.finished and s.sample.seconds(clock) <= budget]
    if not finished:
        return 0.0, 0.0, 0
    return max(finished, key=_rank).value, max(s.value for s in finished), len(finished)


def scores_within(
    problems: Sequence[Sequence[Scored]], budgets: Sequence[float], clock: str
) -> tuple[Float[np.ndarray, "budgets problems"], Float[np.ndarray, "budgets problems"]]:
    """`within` for each problem and budget, in one pass over the samples."""
    first, best = (np.zeros((len(budgets), len(problems))) for _ in range(2))
    ended = sorted(
        (
            (s.sample.seconds(clock), i, s)
            for i, group in enumerate(problems)
            for s in group
            if s.sample.finished
        ),
        key=itemgetter(0),
    )
    ranks: dict[int, tuple[float, int]] = {}
    now_first, now_best, at = np.zeros(len(problems)), np.zeros(len(problems)), 0
    for row in np.argsort(budgets):
        while at < len(ended) and ended[at][0] <= budgets[row]:
            _, i, scored = ended[at]
            if i not in ranks or _rank(scored) > ranks[i]:
                ranks[i], now_first[i] = _rank(scored), scored.value
            now_best[i] = max(now_best[i], scored.value)
            at += 1
        first[row], best[row] = now_first, now_best
    return first, best


def point(problems: Sequence[Sequence[Scored]], budget: float, clock: str) -> Point:
    """Scores within a budget in seconds, which may be infinite."""
    found = [within(group, budget, clock) for group in problems]
    count = sum(map(len, problems))
    return Point(
        budget=budget,
        clock=clock,
        first=_mean(first for first, _, _ in found),
        all=_mean(best for _, best, _ in found),
        finished=sum(finished for _, _, finished in found) / count if count else 0.0,
        served=_mean(float(finished > 0) for _, _, finished in found),
    )


def curve(problems: Sequence[Sequence[Scored]], budgets: Iterable[float]) -> list[Point]:
    """The time-budget curve of BASS (Qian et al., 2024), by both clocks."""
    budgets = list(budgets)
    return [point(problems, budget, clock) for clock in CLOCKS for budget in budgets]


def useful_budgets(problems: Sequence[Sequence[Scored]], count: int = 10) -> list[float]:
    """Budgets at equal steps up to the time of the last sample, from the start."""
    times = sorted(s.sample.from_start for group in problems for s in group if s.sample.finished)
    return (
        sorted({times[max(0, math.ceil(len(times) * i / count) - 1)] for i in range(1, count + 1)})
        if times
        else []
    )


def _rank(scored: Scored) -> tuple[float, int]:
    return scored.sample.mean_logprob, -scored.sample.sample  # of equal ones the first


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed) if listed else 0.0
