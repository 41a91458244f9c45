"""A policy of this project: the best length by measured acceptance and measured step times, with
exploration on a budget.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, final

import numpy as np

from bass.errors import OptionError
from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy

# the probes, cyclically: no drafts (0), or a neighbour of the best length
PROBES = (0, 1, -1, 1, -1, 1, -1, 1, -1)
MARGIN = 1.01  # least ratio of rates for drafting to begin or to end
LEAN = 4.0  # trials that the previous position's hazard counts as, for a position
UNSEEN = 10.0  # times slower decay of a position in steps that do not reach it
SPACING = 4  # least number of steps from one probe to the next
NOISE_OVER_BEND = 0.25  # variance of a measured time over that of the bends of t(k)
SLOPE = 0.02  # weight of the prior slope, in measurements
TIMES_MEMORY = 1024  # steps in which a time without new measurements loses its weight
LATEST = 64  # most measurements in an average time


@dataclass(frozen=True)
class MeasuredState:
    """Estimates of acceptance and time, the budget of exploration, and the current length."""

    batch: int
    length: int  # of the coming step
    hazard: np.ndarray  # float [K], h_i: acceptance of token i, given all before it
    trials: np.ndarray  # float [K], weight of each
    seconds: np.ndarray  # float [K+1], mean time of a step with k drafted tokens
    measured: np.ndarray  # float [K+1], weight of each
    curve: np.ndarray  # float [K+1], t(k) that follows from both
    account: float = 0.0  # seconds left for exploration
    turn: int = 0
    steps: int = 0
    best: int = 1  # the best length at the last decision
    drafting: bool = True  # whether the last step drafted
    repeat: bool = False  # whether the coming step repeats the last one's probe


@final
@dataclass(frozen=True)
class Measured(DraftLengthPolicy[MeasuredState]):
    """The length with the highest measured tokens per second; probes of other lengths take a fixed
    share of the time.

        k* = argmax over 0..max_length of   (1 + S_1 + ... + S_k) / t(k),      S_i = h_1 ... h_i

    *Acceptance.* A fully accepted draft of k tokens means "k or more": it is censored. So h_i is
    estimated where token i was at risk (drafted, and all before it accepted): h_i = accepted / at
    risk (Kaplan and Meier, 1958), with weights that decay over `memory` row-steps. Pooled over the
    active rows this estimates the mean survival of different rows; h_i rises with i as the good
    rows survive. A finer estimate has no use while a step takes as long as its longest draft. With
    few tokens at risk, h_i is shrunk to h_(i-1).

    *Time.* t minimises  sum_k n_k (t(k) - mean_k)^2 + NOISE_OVER_BEND sum (second differences)^2
    plus a weak prior slope, `cost_ratio` t(0): untried lengths continue the line of the tried ones,
    and measured kinks stay. The first step is not timed, nor is the first draft after steps without
    drafts, which feeds the draft model the tokens that it lacks. A time over 1.5 t(k) counts as
    1.5 t(k) (a graph is captured once). If a time is below half of its estimate, all times shrink.

    *Exploration.* A probe of j costs  t(j) - (tokens of j) / (best rate)  seconds. Every step adds
    `exploration` of its time to an account, and a probe runs when the account covers its cost:
    mostly a neighbour of k*, sometimes 0. So, as far as the estimates hold, regret <=
    `exploration` + the regret of choosing by estimates; the latter is their error times their
    slope, and small where the curve is flat. At k* = 0 no acceptance is observed; probes of k = 1
    then come every  cost / (`exploration` t(0))  steps: rarely if drafting is far from paying off,
    often if it nearly does. Such a probe takes two steps, of which the second is timed.

    Drafting begins or ends only for a gain of MARGIN, as each change feeds the draft model. Cost: a
    [K+1, K+1] linear solve per step, about 0.1 ms. All rows have the same length. New prompts keep
    the estimates.
    """

    paper: ClassVar[str] = "this project"

    start: int = 3
    exploration: float = 0.003
    acceptance: float = 0.7
    cost_ratio: float = 0.1
    memory: float = 100.0
    max_length: int = 16

    def __post_init__(self) -> None:
        if not 1 <= self.start <= self.max_length:
            raise OptionError(
                f"`Measured(start={self.start})` must be between 1 and "
                f"`max_length={self.max_length}`."
            )
        if not 0 <= self.exploration < 1 or not 0 < self.acceptance < 1:
            raise OptionError(
                f"`Measured(exploration={self.exploration}, acceptance={self.acceptance})`: "
                "`exploration` must be 0 or more and "
                "below 1, `acceptance` between 0 and 1."
            )
        if self.cost_ratio < 0 or self.memory < 1:
            raise OptionError(
                f"`Measured(cost_ratio={self.cost_ratio}, memory={self.memory})`: give 0 or more, "
                "and 1 token or more."
            )

    def init(self, batch_size: int) -> MeasuredState:
        k = self.max_length
        hazard = np.full(k, self.acceptance)
        return MeasuredState(
            batch_size,
            self.start,
            hazard,
            np.zeros(k),
            np.zeros(k + 1),
            np.zeros(k + 1),
            self._line,
        )

    def lengths(self, state: MeasuredState) -> np.ndarray:
        return np.full(state.batch, state.length, dtype=np.int32)

    def update(self, state: MeasuredState, feedback: Feedback) -> MeasuredState:
        if not feedback.active.any():
            return state
        hazard, trials = self._survive(state, feedback)
        seconds, measured, account = self._time(state, feedback)
        timed = seconds is not state.seconds
        curve = self._curve(seconds, measured) if timed else state.curve
        drafting = bool(feedback.drafted[feedback.active].any())
        state = replace(
            state,
            hazard=hazard,
            trials=trials,
            seconds=seconds,
            measured=measured,
            curve=curve,
            account=account,
            steps=state.steps + 1,
            drafting=drafting,
        )
        if state.repeat and drafting:
            return replace(state, repeat=False)
        return self._decide(state)

    def _survive(self, state: MeasuredState, feedback: Feedback) -> tuple[np.ndarray, np.ndarray]:
        """h and its weights after a step, from the numbers at risk and accepted at each position,
        over the active rows.
        """
        drafted, accepted = feedback.drafted[feedback.active], feedback.accepted[feedback.active]
        size = self.max_length + 1
        # [i]: rows that accepted over i tokens
        passed = len(accepted) - np.bincount(accepted, minlength=size).cumsum()[:-1]
        # [i]: rows whose next token was rejected
        stopped = np.bincount(accepted, weights=accepted < drafted, minlength=size)[:-1]
        risk = passed + stopped
        memory = max(32.0, self.memory / len(accepted))
        fade = 1 - 1 / np.where(risk > 0, memory, UNSEEN * memory)
        trials = state.trials * fade + risk
        prior = np.where(state.trials > 0, state.hazard, self.acceptance)
        hazard = np.where(
            risk > 0,
            prior + (passed - risk * prior) / np.maximum(trials + (state.trials == 0), 1e-9),
            state.hazard,
        )
        return hazard, trials

    def _time(
        self, state: MeasuredState, feedback: Feedback
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Mean times and their weights after a step, and the account."""
        k, taken = int(feedback.drafted[feedback.active].max()), feedback.seconds
        if taken <= 0 or not state.steps or (k and not state.drafting):
            return state.seconds, state.measured, state.account
        if not state.measured.any():
            seconds, measured, account = state.seconds.copy(), state.measured.copy(), 2 * taken
            seconds[k], measured[k] = taken, 1.0
            return seconds, measured, account
        expected = float(state.curve[k])
        shrink = min(1.0, 2 * taken / expected)
        taken = min(taken, 1.5 * expected)
        seconds, measured = state.seconds * shrink, state.measured * (1 - 1 / TIMES_MEMORY)
        seconds[k] += (taken - seconds[k]) / (measured[k] + 1)
        measured[k] = min(measured[k] + 1, LATEST)
        return seconds, measured, state.account * shrink + self.exploration * taken

    def _decide(self, state: MeasuredState) -> MeasuredState:
        """Choose the best length, or a probe that the account covers."""
        tokens = self._tokens(state)
        seconds = state.curve
        rate = tokens / seconds
        best = int(rate.argmax())
        if (best > 0) != (state.best > 0):
            other = 0 if best else 1 + int(rate[1:].argmax())
            best = best if rate[best] > MARGIN * rate[other] else other
        state = replace(state, best=best, length=best, repeat=False)
        if state.steps % SPACING:
            return state
        turn = PROBES[state.turn % len(PROBES)]
        probe = best + turn if turn else 0
        if probe == best or not 0 <= probe <= self.max_length:
            return replace(state, turn=state.turn + 1)
        loss = max(0.0, float(seconds[probe] - tokens[probe] / rate[best]))
        resumes = probe > 0 and not state.drafting
        if resumes:
            loss *= 2
        if resumes or not probe:  # the draft model then reads the tokens that it lacks
            loss += float(seconds[1] - seconds[0])
        if loss > state.account:
            return state
        return replace(
            state, length=probe, repeat=resumes, turn=state.turn + 1, account=state.account - loss
        )

    def _tokens(self, state: MeasuredState) -> np.ndarray:
        """Expected committed tokens of a row for each length [K+1]."""
        lean, before, survival, total = LEAN, state.hazard[0], 1.0, [1.0]
        for h, n in zip(state.hazard.tolist(), state.trials.tolist(), strict=True):
            before = (n * h + lean * before) / (n + lean)
            survival *= before
            total.append(total[-1] + survival)
        return np.array(total)

    @property
    def _line(self) -> np.ndarray:
        """t(k) [K+1] up to a factor, before the first measurement."""
        return 1 + self.cost_ratio * np.arange(self.max_length + 1)

    def _curve(self, seconds: np.ndarray, measured: np.ndarray) -> np.ndarray:
        """t(k) [K+1], rising in k."""
        line = self._line
        level = measured @ seconds / (measured @ line)
        smooth, slope = _penalties(self.max_length + 1)
        system = smooth.copy()
        system.ravel()[:: len(line) + 1] += measured
        return np.maximum.accumulate(
            np.linalg.solve(system, measured * seconds + slope * self.cost_ratio * level)
        )


@cache
def _penalties(size: int) -> tuple[np.ndarray, np.ndarray]:
    """The quadratic form of second differences and slope, and the right side of slope one."""
    first = np.diff(np.eye(size), axis=0)
    second = np.diff(first, axis=0)
    return NOISE_OVER_BEND * second.T @ second + SLOPE * first.T @ first, SLOPE * first.sum(axis=0)
