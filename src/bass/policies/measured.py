"""A policy of this project: the best length by measured acceptance and measured step times, with
exploration on a budget.
"""

from dataclasses import dataclass
from functools import cache
from operator import mul
from typing import ClassVar, NamedTuple, final

import numpy as np

from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy
from bass.option import within

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


Values = list[float]  # a few numbers, for which Python is faster than NumPy; never written to


class Decision(NamedTuple):
    """A length, and the budget of exploration."""

    length: int  # of the coming step
    best: int = 1  # the best length
    account: float = 0.0  # seconds left for exploration
    turn: int = 0  # of the probes
    repeat: bool = False  # whether the coming step repeats the last one's probe


@dataclass(frozen=True)
class MeasuredState:
    """Estimates of acceptance and time, and the last decision."""

    batch: int
    decision: Decision
    hazard: Values  # [K], h_i: acceptance of token i, given all before it
    trials: Values  # [K], weight of each
    seconds: Values  # [K+1], mean time of a step with k drafted tokens
    measured: Values  # [K+1], weight of each
    curve: Values  # [K+1], t(k) that follows from both
    steps: int = 0
    drafting: bool = True  # whether the last step drafted


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
    linear solve of K+1 unknowns per step; an update takes about 40 us. All rows have the same
    length. New prompts keep the estimates.
    """

    paper: ClassVar[str] = "this project"

    start: int = within("[1, {max_length}]", 3)
    exploration: float = within("[0, 1)", 0.003)
    acceptance: float = within("(0, 1)", 0.7)
    cost_ratio: float = within("[0, inf)", 0.1)
    memory: float = within("[1, inf)", 100.0)
    max_length: int = 16

    def init(self, batch_size: int) -> MeasuredState:
        k = self.max_length
        none, untried = [0.0] * k, [0.0] * (k + 1)
        hazard = [self.acceptance] * k
        start = Decision(self.start)
        line = _line(self.cost_ratio, k + 1)
        return MeasuredState(batch_size, start, hazard, none, untried, untried, line)

    def lengths(self, state: MeasuredState) -> np.ndarray:
        return np.array([state.decision.length] * state.batch, dtype=np.int32)

    def update(self, state: MeasuredState, feedback: Feedback) -> MeasuredState:
        arrays = feedback.drafted, feedback.accepted, feedback.active
        table = zip(*(array.tolist() for array in arrays), strict=True)
        rows = [(drafted, accepted) for drafted, accepted, active in table if active]
        if not rows:
            return state
        hazard, trials = self._survive(state, rows)
        k = max(drafted for drafted, _ in rows)
        seconds, measured, account = self._time(state, k, feedback.seconds)
        timed = seconds is not state.seconds
        curve = self._curve(seconds, measured) if timed else state.curve
        steps, last = state.steps + 1, state.decision._replace(account=account)
        if last.repeat and k:
            decision = last._replace(repeat=False)
        else:
            tokens = self._tokens(hazard, trials)
            decision = self._decide(tokens, curve, last, steps, k > 0)
        estimates = hazard, trials, seconds, measured, curve
        return MeasuredState(state.batch, decision, *estimates, steps, k > 0)

    def _survive(self, state: MeasuredState, rows: list[tuple[int, int]]) -> tuple[Values, Values]:
        """h and its weights after a step, from the numbers at risk and accepted at each position.

        rows: drafted and accepted tokens of the active rows.
        """
        size, left = self.max_length, len(rows)
        ended, rejected = [0] * (size + 1), [0] * (size + 1)  # [i]: rows that accepted i tokens
        for drafted, accepted in rows:
            ended[accepted] += 1
            rejected[accepted] += accepted < drafted
        memory = max(32.0, self.memory / left)
        fade, slow = 1 - 1 / memory, 1 - 1 / (UNSEEN * memory)
        hazards, weights = [], []
        for i, (hazard, trials) in enumerate(zip(state.hazard, state.trials, strict=True)):
            left -= ended[i]  # rows that accepted more than i tokens
            risk = left + rejected[i]
            if risk:
                weight = trials * fade + risk
                prior, known = (hazard, weight) if trials else (self.acceptance, weight + 1)
                hazard = prior + (left - risk * prior) / known
            else:
                weight = trials * slow
            hazards.append(hazard)
            weights.append(weight)
        return hazards, weights

    def _time(self, state: MeasuredState, k: int, taken: float) -> tuple[Values, Values, float]:
        """Mean times and their weights after a step with k drafted tokens, and the account."""
        if taken <= 0 or not state.steps or (k and not state.drafting):
            return state.seconds, state.measured, state.decision.account
        if not any(state.measured):
            seconds, measured = state.seconds.copy(), state.measured.copy()
            seconds[k], measured[k] = taken, 1.0
            return seconds, measured, 2 * taken
        expected = state.curve[k]
        shrink = min(1.0, 2 * taken / expected)
        taken = min(taken, 1.5 * expected)
        seconds = [mean * shrink for mean in state.seconds]
        measured = [weight * (1 - 1 / TIMES_MEMORY) for weight in state.measured]
        seconds[k] += (taken - seconds[k]) / (measured[k] + 1)
        measured[k] = min(measured[k] + 1, LATEST)
        account = state.decision.account * shrink + self.exploration * taken
        return seconds, measured, account

    def _decide(
        self, tokens: Values, seconds: Values, last: Decision, steps: int, drafting: bool
    ) -> Decision:
        """Choose the best length, or a probe that the account covers.

        tokens, seconds: of a step, for each length. drafting: whether the last step drafted.
        """
        rate = [count / time for count, time in zip(tokens, seconds, strict=True)]
        best = rate.index(max(rate))
        if (best > 0) != (last.best > 0):
            other = 0 if best else rate.index(max(rate[1:]), 1)
            best = best if rate[best] > MARGIN * rate[other] else other
        if steps % SPACING:
            return Decision(best, best, last.account, last.turn)
        turn = PROBES[last.turn % len(PROBES)]
        probe = best + turn if turn else 0
        if probe == best or not 0 <= probe <= self.max_length:
            return Decision(best, best, last.account, last.turn + 1)
        loss = max(0.0, seconds[probe] - tokens[probe] / rate[best])
        resumes = probe > 0 and not drafting
        if resumes:
            loss *= 2
        if resumes or not probe:  # the draft model then reads the tokens that it lacks
            loss += seconds[1] - seconds[0]
        if loss > last.account:
            return Decision(best, best, last.account, last.turn)
        return Decision(probe, best, last.account - loss, last.turn + 1, resumes)

    def _tokens(self, hazard: Values, trials: Values) -> Values:
        """Expected committed tokens of a row for each length [K+1]."""
        lean, before, survival, total = LEAN, hazard[0], 1.0, [1.0]
        for h, n in zip(hazard, trials, strict=True):
            before = (n * h + lean * before) / (n + lean)
            survival *= before
            total.append(total[-1] + survival)
        return total

    def _curve(self, seconds: Values, measured: Values) -> Values:
        """t(k) [K+1], rising in k."""
        weighted = list(map(mul, measured, seconds))
        size = self.max_length + 1
        level = sum(weighted) / sum(map(mul, measured, _line(self.cost_ratio, size)))
        slope = SLOPE * self.cost_ratio * level  # its right side is 0 but at the ends
        weighted[0] -= slope
        weighted[-1] += slope
        curve = np.linalg.solve(_penalties(size) + np.diag(measured), weighted)
        return np.maximum.accumulate(curve).tolist()


@cache
def _line(cost_ratio: float, size: int) -> Values:
    """t(k) [K+1] up to a factor, before the first measurement."""
    return [1 + cost_ratio * k for k in range(size)]


@cache
def _penalties(size: int) -> np.ndarray:
    """The quadratic form of second differences and slope, float [size, size]."""
    first = np.diff(np.eye(size), axis=0)
    second = np.diff(first, axis=0)
    return NOISE_OVER_BEND * second.T @ second + SLOPE * first.T @ first
