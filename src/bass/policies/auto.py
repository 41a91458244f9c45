"""A policy of this project, the default: the length with the most expected tokens a second."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np

from bass.errors import OptionError
from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy
from bass.option import within

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)  # between two of them rates differ by less than 2 %
# Least ratio of rates for drafting to go on, for one row and for each time that the batch doubles,
# and more to begin: a call ends with the slowest of its rows.
ONE, DOUBLED, MOST_DOUBLED, BEGIN = 1.02, 0.02, 0.06, 0.02
PRIOR = 4.0  # tokens that the prior of a position counts as
OF_ROWS = 8.0  # tokens that the estimate of all rows counts as, for one row
UNSEEN = 3.0  # times slower decay of a position in steps that do not reach it
FILLED = 16.0  # steps that the estimate of the share of a request that is drafted remembers
PROBE = 2  # steps of a probe after steps without drafts: in the first the draft catches up
TRIAL, MOST = 16, 4  # tokens of all rows, and of each, in each of the first two steps
# tokens that a pass of the draft feeds after steps without drafts, and most passes that a probe is
# priced with: without an end, savings might never reach it
CAUGHT_UP, MOST_PASSES = 32, 2
PAUSED = 0.7  # weight of what was seen before steps without drafts
LEAST_LOSS = 0.3  # of the time of a probe: a step is slower after one of another length


@dataclass(frozen=True)
class AutoState:
    """Decayed counts by position of the draft, and the lengths of the next two steps.

    The counts are of drafts whose tokens before the position were accepted, of those that drafted
    it, and of those that accepted it.
    """

    counts: np.ndarray  # float [3, K], of all rows
    rows: np.ndarray  # float [3, B, K]
    active: np.ndarray  # bool [B]
    length: int = 0  # of the coming step
    following: int = 0  # of the step after it
    filled: float = 1.0  # the longest draft of a step over the requested length, on average
    probing: int = 0  # further steps of a probe
    savings: float = 0.0  # seconds for the next probe
    loss: float = 0.0  # seconds that it costs
    lacking: int = 0  # steps since a draft


@final
@dataclass(frozen=True)
class Auto(DraftLengthPolicy[AutoState]):
    """The length with the most expected tokens a second, 0 included, by the acceptance of the rows
    and the machine's own cost of a step; the default.

        k* = argmax of  B / (1 / E_1(k) + ... + 1 / E_B(k)) / t(k),    E(k) = 1 + S_1 + ... + S_k

    over the active rows, with S_i = d_1 h_1 ... d_i h_i. The harmonic mean is that of the time that
    each row takes for a token: a call ends with its slowest row.

    *Acceptance.* h_i, the chance of the i-th drafted token once all before it are accepted, is
    counted where that was so (Kaplan and Meier, 1958: a draft that is accepted whole says nothing
    of the next token), with counts that decay over `memory` tokens. d_i is the chance that the
    token is drafted then: `ngram` finds no match, or a stop rule ends the draft. The estimate of
    all rows counts as a few tokens of each row, and `acceptance`, or h_(i-1) if it is higher, as a
    few of all rows: it is high, so that drafts are tried.

    *Cost.* `times` are the seconds of a step of 0, 1, 2 ... drafted tokens; without them the engine
    measures them once for a machine, a pair, its strategies and a batch size, and keeps them on
    disk (`bass.engine.step_times`). If a draft that ends early makes its step quicker
    (`early_end_saves`), t(k) is t(0) + f (t(k) - t(0)), f the mean share of the requested length
    that is drafted. No clock of a run decides: the same call with the same seed gives the same
    tokens again on that machine.

    *Probes.* A step says nothing of positions that it does not draft. Each one saves `exploration`
    of its time, and once the savings cover what the best of the longer drafts may lose, it is
    taken, twice after steps without drafts: rarely if it is far from paying off, often if it nearly
    does.

    All rows have the same length, since a step takes as long as its longest draft. The feedback of
    step t decides the length of step t + 2, so that a GPU need not wait for the host. New prompts
    begin with the estimate of all rows.
    """

    paper: ClassVar[str] = "this project"
    reads_times: ClassVar[bool] = True

    acceptance: float = within("(0, 1)", 0.85)
    exploration: float = within("[0, 1)", 0.01)
    memory: float = within("[1, inf)", 200.0)
    max_length: int = within("[1, inf)", 16)
    times: tuple[float, ...] = ()
    early_end_saves: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "times", tuple(self.times))
        super().__post_init__()
        usable = [seconds for seconds in self.times if 0 < seconds < math.inf]
        if self.times and len(usable) != self.max_length + 1:
            raise OptionError(
                f"`Auto(times=...)` has {len(usable)} usable times: give {self.max_length + 1} "
                "positive numbers, of steps that draft 0, 1, ... `max_length` tokens, or none, to "
                "have them measured."
            )

    @property
    def draft_lengths(self) -> tuple[int, ...]:
        return (*(k for k in LENGTHS if k < self.max_length), self.max_length)

    def timed(self, seconds: tuple[float, ...], early_end_saves: bool) -> "Auto":
        known = bool(self.times)
        return self if known else replace(self, times=seconds, early_end_saves=early_end_saves)

    def init(self, batch_size: int) -> AutoState:
        active, k = np.ones(batch_size, dtype=bool), self.max_length
        state = AutoState(np.zeros((3, k)), np.zeros((3, batch_size, k)), active)
        wanted = self._decided(state, 0.0).following
        first = min(wanted, MOST, max(1, TRIAL // batch_size))
        return replace(state, length=first, following=first)

    def lengths(self, state: AutoState) -> np.ndarray:
        return np.full(len(state.active), state.length, dtype=np.int32)

    def lengths_ahead(self, state: AutoState) -> np.ndarray:
        return np.full(len(state.active), state.following, dtype=np.int32)

    def update(self, state: AutoState, feedback: Feedback) -> AutoState:
        saved = self.exploration * self._seconds(state.length, state)
        state = replace(state, lacking=0 if state.length else state.lacking + 1)
        if not (state.length or state.following) and state.savings + saved < state.loss:
            return replace(state, savings=state.savings + saved)  # nothing was learned
        if state.length and feedback.active.any():
            state = self._counted(state, feedback)
        state = replace(state, length=state.following)
        if state.probing:
            return replace(state, probing=state.probing - 1)
        return self._decided(state, saved)

    def reset(self, state: AutoState, rows: np.ndarray) -> AutoState:
        """The rows begin with the estimate of all rows."""
        counts, active = state.rows.copy(), state.active.copy()
        counts[:, rows], active[rows] = 0, True
        return replace(state, rows=counts, active=active)

    def _counted(self, state: AutoState, feedback: Feedback) -> AutoState:
        """The state with a step counted."""
        active, position = feedback.active[:, None], np.arange(self.max_length)
        drafted, accepted = feedback.drafted[:, None], feedback.accepted[:, None]
        reached = active & (position < state.length) & (position <= accepted)
        step = np.stack((reached, reached & (position < drafted), reached & (position < accepted)))
        memory = max(12.0, self.memory / int(active.sum()))
        fade = np.where(reached.any(0), 1 - 1 / memory, 1 - 1 / (UNSEEN * memory))
        longest = int((feedback.drafted * feedback.active).max()) / state.length
        return replace(
            state,
            counts=state.counts * fade + step.sum(1),
            rows=state.rows * np.where(reached, 1 - 1 / self.memory, 1) + step,
            active=feedback.active.copy(),
            filled=state.filled + (longest - state.filled) / FILLED,
        )

    def _decided(self, state: AutoState, saved: float) -> AutoState:
        """The state with the length of the `following` step.

        saved: seconds, of the last step.
        """
        tokens, choices = self._tokens(state), (0, *self.draft_lengths)
        rates = [tokens[k] / self._seconds(k, state) for k in choices]
        best = max(range(1, len(choices)), key=rates.__getitem__)
        margin = ONE + min(DOUBLED * math.log2(len(state.active)), MOST_DOUBLED)
        if rates[best] < (margin + (0 if state.length else BEGIN)) * rates[0]:
            best = 0
        state = replace(state, following=choices[best], savings=state.savings + saved)
        longer = range(best + 1, len(choices))
        if not (longer and saved):
            return state
        probe = max(longer, key=rates.__getitem__)
        seconds = self._seconds(choices[probe], state)
        loss = seconds - tokens[choices[probe]] / rates[best]
        if best:
            loss = max(loss, LEAST_LOSS * seconds)
        else:  # and for passes over the tokens that the draft lacks
            passes = min(1 + state.lacking // CAUGHT_UP, MOST_PASSES)
            once = self._seconds(1, state) - self._seconds(0, state)
            loss = PROBE * max(loss, 0.0) + passes * once
        if state.savings < loss:
            return replace(state, loss=loss)
        state = replace(state, following=choices[probe], savings=0.0)
        if best:
            return state
        counts, rows = PAUSED * state.counts, PAUSED * state.rows
        return replace(state, counts=counts, rows=rows, probing=PROBE - 1)

    def _tokens(self, state: AutoState) -> list[float]:
        """Harmonic mean of the expected tokens of the active rows, by draft length, [K+1]."""
        chance, estimates = self.acceptance, []
        for reached, drafted, accepted in state.counts.T.tolist():
            prior = max(chance, self.acceptance)
            chance = (accepted + PRIOR * prior) / (drafted + PRIOR)
            estimates.append((chance, (drafted + PRIOR) / (reached + PRIOR)))
        chances, shares = np.array(estimates).T
        active = state.active if state.active.any() else ~state.active
        reached, drafted, accepted = state.rows[:, active]
        chances = (accepted + OF_ROWS * chances) / (drafted + OF_ROWS)
        shares = (drafted + OF_ROWS * shares) / (reached + OF_ROWS)
        tokens = 1 + np.cumsum(np.cumprod(chances * shares, axis=1), axis=1)
        return [1.0, *(len(tokens) / (1 / tokens).sum(axis=0)).tolist()]

    def _seconds(self, k: int, state: AutoState) -> float:
        """Expected seconds of a step with k requested tokens."""
        none, full = (self.times[0], self.times[k]) if self.times else (1, 1 + 0.1 * k)
        return none + (full - none) * (state.filled if self.early_end_saves else 1)
