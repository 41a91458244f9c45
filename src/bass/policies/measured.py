"""Our own: the length that measured survival and measured step times say is best, explored on a
budget.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, final

import numpy as np

from bass.errors import OptionError
from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy

# what is tried in turn: plain decoding (0), or a neighbour of the best length
PROBES = (0, 1, -1, 1, -1, 1, -1, 1, -1)
MARGIN = 1.01  # of the better over the worse, for drafting to begin or to end
LEAN = 4.0  # trials with which the hazard before a position speaks for it
UNSEEN = 10.0  # times slower, what was learned of a position fades in steps that do not reach it
SPACING = 4  # steps from one probe to the next, at least
NOISE_OVER_BEND = 0.25  # variance of a measured time over that of the bends of t(k)
SLOPE = 0.02  # weight of the prior slope, in measurements
TIMES_MEMORY = 1024  # steps in which a time that is not measured again loses its weight
LATEST = 64  # measurements that a time averages over, at most


@dataclass(frozen=True)
class MeasuredState:
    """What is known of acceptance and time, what exploration may cost, and the length in force."""

    batch: int
    length: int  # of the coming step
    hazard: np.ndarray  # float [K], h_i: the i-th token is accepted where those before it were
    trials: np.ndarray  # float [K], weight of each
    seconds: np.ndarray  # float [K+1], mean time of a step with k drafted tokens
    measured: np.ndarray  # float [K+1], weight of each
    account: float = 0.0  # seconds that exploration may still lose
    turn: int = 0
    steps: int = 0
    best: int = 1  # the length that was best when last looked at
    drafting: bool = True  # whether the last step drafted
    repeat: bool = False  # whether the coming step repeats the last one's probe


@final
@dataclass(frozen=True)
class Measured(DraftLengthPolicy[MeasuredState]):
    """The length of most tokens per second by what was measured, with probes of others on a fixed
    share of the time.

        k* = argmax over 0..max_length of   (1 + S_1 + ... + S_k) / t(k),      S_i = h_1 ... h_i

    *Acceptance.* A draft of k tokens that was accepted whole says "k or more": it is censored. So
    h_i is estimated where token i was at risk (drafted, and all before it accepted): h_i = accepted
    / at risk (Kaplan and Meier, 1958), with weights that fade over `memory` row-steps. Pooled over
    the active rows this estimates the mean survival of rows that differ, h_i rising with i as the
    good rows survive; more is of no use while a step lasts as long as its longest draft. Where few
    were at risk, h_i leans on h_(i-1).

    *Time.* t minimises  sum_k n_k (t(k) - mean_k)^2 + NOISE_OVER_BEND sum (second differences)^2
    and a faint prior slope, `cost_ratio` t(0): untried lengths continue the line of the tried ones,
    and kinks that were measured stay. Not timed are the first step, and the first draft after plain
    steps, which feeds the draft model what it missed. A time over 1.5 t(k) counts as 1.5 t(k) (a
    graph is captured once); all times fall together when one turns out half as long.

    *Exploration.* To try j costs  t(j) - (tokens of j) / (best rate)  seconds. Every step pays
    `exploration` of its time into an account, and a probe takes place when the account covers its
    cost: in turn a neighbour of k*, and now and then 0. So, as far as the estimates hold, regret <=
    `exploration` + the regret of choosing by estimates; the latter is their error times their
    slope, and small where the curve is flat. At k* = 0 nothing is learned of acceptance; probes of
    k = 1 then come every  cost / (`exploration`
    t(0))  steps: rarely where drafting is hopeless, often where it nearly pays. A probe there takes
           two steps, the second being timed.

    Drafting begins or ends only for a gain of MARGIN, as each change feeds the draft model. Cost: a
    [K+1, K+1] linear solve a step, about 0.1 ms. All rows get the same length, and what was learned
    survives new prompts.
    """

    paper: ClassVar[str] = "ours"

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
            batch_size, self.start, hazard, np.zeros(k), np.zeros(k + 1), np.zeros(k + 1)
        )

    def lengths(self, state: MeasuredState) -> np.ndarray:
        return np.full(state.batch, state.length, dtype=np.int32)

    def update(self, state: MeasuredState, feedback: Feedback) -> MeasuredState:
        if not feedback.active.any():
            return state
        hazard, trials = self._survive(state, feedback)
        seconds, measured, account = self._time(state, feedback)
        drafting = bool(feedback.drafted[feedback.active].any())
        state = replace(
            state,
            hazard=hazard,
            trials=trials,
            seconds=seconds,
            measured=measured,
            account=account,
            steps=state.steps + 1,
            drafting=drafting,
        )
        if state.repeat and drafting:
            return replace(state, repeat=False)
        return self._decide(state)

    def _survive(self, state: MeasuredState, feedback: Feedback) -> tuple[np.ndarray, np.ndarray]:
        """h and its weights after a step: at risk and accepted at each position, counted over the
        active rows.
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
        expected = float(self._seconds(state.seconds, state.measured)[k])
        shrink = min(1.0, 2 * taken / expected)
        taken = min(taken, 1.5 * expected)
        seconds, measured = state.seconds * shrink, state.measured * (1 - 1 / TIMES_MEMORY)
        seconds[k] += (taken - seconds[k]) / (measured[k] + 1)
        measured[k] = min(measured[k] + 1, LATEST)
        return seconds, measured, state.account * shrink + self.exploration * taken

    def _decide(self, state: MeasuredState) -> MeasuredState:
        """The best length, or a probe that the account covers."""
        tokens = self._tokens(state)
        seconds = self._seconds(state.seconds, state.measured)
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
        if resumes or not probe:  # the draft model then has to be fed what it missed
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

    def _seconds(self, seconds: np.ndarray, measured: np.ndarray) -> np.ndarray:
        """t(k) [K+1], rising in k; up to a factor while no time was measured."""
        line = 1 + self.cost_ratio * np.arange(self.max_length + 1)
        if not measured.any():
            return line
        level = measured @ seconds / (measured @ line)
        smooth, slope = _penalties(self.max_length + 1)
        system = smooth.copy()
        system.ravel()[:: len(line) + 1] += measured
        return np.maximum.accumulate(
            np.linalg.solve(system, measured * seconds + slope * self.cost_ratio * level)
        )


@cache
def _penalties(size: int) -> tuple[np.ndarray, np.ndarray]:
    """The quadratic form of the bends and of the slope, and the right side of a slope of one."""
    first = np.diff(np.eye(size), axis=0)
    second = np.diff(first, axis=0)
    return NOISE_OVER_BEND * second.T @ second + SLOPE * first.T @ first, SLOPE * first.sum(axis=0)
