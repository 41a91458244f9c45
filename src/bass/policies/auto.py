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
MARGIN = 1.03  # least ratio of rates for drafting to begin: rows that draft end one by one
FIRST = 4.0  # tokens that `acceptance` counts as
PRIOR = 10.0  # tokens that the estimate of the position before counts as
UNSEEN = 3.0  # times slower decay of a position in steps that do not reach it
FILLED = 16.0  # steps that the estimate of the share of a request that is drafted remembers
PROBE = 2  # steps of a probe after steps without drafts: in the first the draft catches up
LEAST_LOSS = 0.05  # of the time of a probe, so that even a free one is not taken in every step


@dataclass(frozen=True)
class AutoState:
    """Decayed counts by position of the draft, and the lengths of the next two steps."""

    batch: int
    # [K], by position: rows that accepted all before it, those that drafted it, that accepted it
    reached: tuple[float, ...]
    drafted: tuple[float, ...]
    accepted: tuple[float, ...]
    length: int  # of the coming step
    following: int  # of the step after it
    filled: float = 1.0  # the longest draft of a step over the requested length, on average
    probing: int = 0  # further steps of a probe
    savings: float = 0.0  # seconds for the next probe


@final
@dataclass(frozen=True)
class Auto(DraftLengthPolicy[AutoState]):
    """The length with the most expected tokens a second, 0 included, by the acceptance of the rows
    and the machine's own cost of a step; the default.

        k* = argmax of  (1 + S_1 + ... + S_k) / t(k),    S_i = d_1 h_1 ... d_i h_i

    *Acceptance.* h_i, the chance of the i-th drafted token once all before it are accepted, is
    counted where that was so (Kaplan and Meier, 1958: a draft that is accepted whole says nothing
    of the next token), over all active rows, with counts that decay over `memory` tokens. d_i is
    the chance that the token is drafted then: `ngram` finds no match, or a stop rule ends the
    draft. h_(i-1) counts as `PRIOR` tokens of position i, and `acceptance` as `FIRST` of the first
    one: it is high, so that drafting is tried first.

    *Cost.* `times` are the seconds of a step of 0, 1, 2 ... drafted tokens; without them the engine
    measures them once for a machine, a pair, its strategies and a batch size, and keeps them on
    disk (`bass.engine.step_times`). Where drafts end early, t(k) is that share of the way from t(0)
    if the engine is quicker for it (`cut`). No clock of a run decides: the same call with the same
    seed gives the same tokens again on that machine.

    *Probes.* A step says nothing of positions that it does not draft. Each one saves `exploration`
    of its time, and once the savings cover what the best of the longer drafts may lose, it is
    taken, twice after steps without drafts: rarely if it is far from paying off, often if it nearly
    does.

    All rows have the same length, since a step takes as long as its longest draft. A length is
    decided one step in advance, so that a GPU need not wait for the host. New prompts keep the
    counts.
    """

    paper: ClassVar[str] = "this project"
    reads_times: ClassVar[bool] = True

    acceptance: float = within("(0, 1)", 0.85)
    exploration: float = within("[0, 1)", 0.01)
    memory: float = within("[1, inf)", 200.0)
    max_length: int = within("[1, inf)", 16)
    times: tuple[float, ...] = ()
    cut: bool = True

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

    def timed(self, seconds: tuple[float, ...], cut: bool) -> "Auto":
        return self if self.times else replace(self, times=seconds, cut=cut)

    def init(self, batch_size: int) -> AutoState:
        none = (0.0,) * self.max_length
        state = self._decided(AutoState(batch_size, none, none, none, 0, 0), 0.0)
        return replace(state, length=state.following)

    def lengths(self, state: AutoState) -> np.ndarray:
        return np.full(state.batch, state.length, dtype=np.int32)

    def lengths_ahead(self, state: AutoState) -> np.ndarray:
        return np.full(state.batch, state.following, dtype=np.int32)

    def update(self, state: AutoState, feedback: Feedback) -> AutoState:
        rows = zip(feedback.drafted.tolist(), feedback.accepted.tolist(), strict=True)
        active = [row for row, active in zip(rows, feedback.active, strict=True) if active]
        saved = self.exploration * self._seconds(state.length, state)
        if state.length and active:
            longest = max(drafted for drafted, _ in active) / state.length
            filled = state.filled + (longest - state.filled) / FILLED
            state = replace(self._counted(state, active), filled=filled)
        state = replace(state, length=state.following)
        if state.probing:
            return replace(state, probing=state.probing - 1)
        return self._decided(state, saved)

    def _counted(self, state: AutoState, rows: list[tuple[int, int]]) -> AutoState:
        """The state with a step counted. rows: drafted and accepted tokens of the active rows."""
        steps = max(32.0, self.memory / len(rows))
        fade, slow = 1 - 1 / steps, 1 - 1 / (UNSEEN * steps)
        size = self.max_length + 1
        ended, lacking = [0] * size, [0] * size  # rows that accepted, and drafted, i tokens
        for drafted, accepted in rows:
            ended[accepted] += 1
            lacking[drafted] += accepted == drafted
        left, counts = len(rows), []
        before = zip(state.reached, state.drafted, state.accepted, strict=True)
        for i, (reached, drafted, accepted) in enumerate(before):
            decay, step = slow, (0, 0, 0)
            if i < state.length and left:
                decay, step = fade, (left, left - lacking[i], left - ended[i])
                left -= ended[i]
            old = reached * decay, drafted * decay, accepted * decay
            counts.append([x + y for x, y in zip(old, step, strict=True)])
        reached, drafted, accepted = map(tuple, zip(*counts, strict=True))
        return replace(state, reached=reached, drafted=drafted, accepted=accepted)

    def _decided(self, state: AutoState, saved: float) -> AutoState:
        """The state with the length of the step after the coming one.

        saved: seconds, of the last step.
        """
        tokens, choices = self._tokens(state), (0, *self.draft_lengths)
        rates = [tokens[k] / self._seconds(k, state) for k in choices]
        best = max(range(1, len(choices)), key=rates.__getitem__)
        if rates[best] < (1 if state.length else MARGIN) * rates[0]:
            best = 0
        savings, longer = state.savings + saved, range(best + 1, len(choices))
        if not (longer and saved):
            return replace(state, following=choices[best], savings=savings)
        probe = max(longer, key=rates.__getitem__)
        seconds = self._seconds(choices[probe], state)
        loss = max(LEAST_LOSS * seconds, seconds - tokens[choices[probe]] / rates[best])
        if not best:
            loss = PROBE * loss + seconds - self._seconds(0, state)  # for the tokens that it lacks
        if savings < loss:
            return replace(state, following=choices[best], savings=savings)
        more = 0 if best else PROBE - 1
        return replace(state, following=choices[probe], probing=more, savings=0.0)

    def _tokens(self, state: AutoState) -> list[float]:
        """Expected tokens of a row by draft length, [K+1]."""
        chance, weight, survival, tokens = self.acceptance, FIRST, 1.0, [1.0]
        counts = zip(state.reached, state.drafted, state.accepted, strict=True)
        for reached, drafted, accepted in counts:
            chance = (accepted + weight * chance) / (drafted + weight)
            survival *= chance * (drafted + weight) / (reached + weight)
            tokens.append(tokens[-1] + survival)
            weight = PRIOR
        return tokens

    def _seconds(self, k: int, state: AutoState) -> float:
        """Expected seconds of a step with k requested tokens."""
        none, full = (self.times[0], self.times[k]) if self.times else (1, 1 + 0.1 * k)
        return none + (full - none) * (state.filled if self.cut else 1)
