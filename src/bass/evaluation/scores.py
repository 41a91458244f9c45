"""From samples to scores: pass@k, First and All within a time budget, ROUGE-2, exact match.

Pure functions of records.
"""

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bass.errors import OptionError, RunFolderError, install
from bass.evaluation.tasks import Problem, final_number
from bass.experiments.strict import Json


@dataclass(frozen=True)
class Sample(Json):
    """One completion of one problem.

    Both times are from the problem's own clocks, in seconds until the sample's last token:
    `from_prefill` from the moment when the problem's first prefill had ended, `from_start` from
    when the request was made. `finish`: as in `bass.api.results.Completion`.
    """

    task_id: str
    sample: int
    text: str
    tokens: list[int]
    mean_logprob: float
    finish: str
    from_prefill: float
    from_start: float

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.mean_logprob, self.from_prefill, self.from_start))):
            raise RunFolderError("its log-probability and its times are to be finite")

    @property
    def finished(self) -> bool:
        """Whether it came to its own end: an end-of-sequence token, a stop string, or its number of
        tokens.
        """
        return self.finish in ("eos", "stop", "length")

    def seconds(self, clock: str) -> float:
        """By one of `CLOCKS`."""
        return self.from_start if clock == "start" else self.from_prefill


@dataclass(frozen=True)
class Scored:
    """A sample and what it is worth, from 0 to 1: for code 1 if it passed, else 0."""

    sample: Sample
    value: float


@dataclass(frozen=True)
class Point:
    """Scores within one budget, of all problems: those of which nothing was finished count as 0.

    first: mean score of the finished sample with the highest mean log-probability. all: mean of the
    best score of any finished one.
    finished: share of samples that were finished in time. served: share of problems with one such
    sample or more.
    """

    budget: float
    clock: str
    first: float
    all: float
    finished: float
    served: float


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
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


def mean_pass_at_k(problems: Sequence[Sequence[Scored]], k: int) -> float:
    """The mean over problems, each with its own number of samples."""
    return _mean(pass_at_k(len(group), sum(s.value == 1.0 for s in group), k) for group in problems)


def within(group: Sequence[Scored], budget: float, clock: str) -> tuple[float, float, int]:
    """First and All of one problem's samples within a budget, and how many of them were finished in
    time.
    """
    finished = [s for s in group if s.sample.finished and s.sample.seconds(clock) <= budget]
    if not finished:
        return 0.0, 0.0, 0
    return max(finished, key=_rank).value, max(s.value for s in finished), len(finished)


def point(problems: Sequence[Sequence[Scored]], budget: float, clock: str) -> Point:
    """Scores within a budget in seconds; infinity: whenever they finished."""
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
    """Budgets at equal shares of the samples' times from the start, up to the last of them."""
    times = sorted(s.sample.from_start for group in problems for s in group if s.sample.finished)
    return (
        sorted({times[max(0, math.ceil(len(times) * i / count) - 1)] for i in range(1, count + 1)})
        if times
        else []
    )


def exact_match(problem: Problem, text: str) -> float:
    """1 if the number after `####`, or else the last number, is the answer."""
    _, marked, after = text.partition("####")
    return float(final_number(after.split("\n")[0] if marked else text) == problem.answer)


def rouge2(problem: Problem, text: str) -> float:
    """F-measure of the pairs of words that summary and reference share, stemmed, by the library
    rouge-score (Lin, 2004).
    """
    return float(_rouge().score(problem.reference, text)["rouge2"].fmeasure)


@functools.cache
def _rouge() -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise OptionError(
            f"ROUGE-2 needs the package rouge-score: install it with {install('eval')}."
        ) from error
    return RougeScorer(["rouge2"], use_stemmer=True)


def _rank(scored: Scored) -> tuple[float, int]:
    return scored.sample.mean_logprob, -scored.sample.sample  # of equal ones the first


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed) if listed else 0.0
