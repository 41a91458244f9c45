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
MARGIN = 1.01  # least ratio of rates for drafting to begin or to end
PRIOR = 4.0  # drafted tokens that the estimate of the position before counts as
UNSEEN = 10.0  # times slower decay of a position in steps that do not reach it
FILLED = 16.0  # steps that the estimate of the share of a request that is drafted remembers
PROBE = 2  # steps of a probe: in the first the draft model reads the tokens that it lacks


@dataclass(frozen=True)
class AutoState:
    """Decayed counts by position of the draft, and the lengths of the next two steps."""

    batch: int
    # [K], drafted tokens whose predecessors were all accepted, and those that were accepted
    reached: tuple[float, ...]
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

        k* = argmax of  (1 + S_1 + ... + S_k) / t(k),    S_i = h_1 ... h_i

    *Acceptance.* h_i, the chance of the i-th drafted token once all before it are accepted, is
    counted where that was so (Kaplan and Meier, 1958: a draft that is accepted whole says nothing
    of the next token), over all active rows, with counts that decay over `memory` tokens. h_(i-1)
    counts as `PRIOR` tokens of position i, and `acceptance` as those of the first one. A draft that
    ends before the requested length, at a stop rule or where `ngram` finds no match, counts as
    rejected there: what it lacks cannot be accepted.

    *Cost.* `times` are the seconds of a step of 0, 1, 2 ... drafted tokens; without them the engine
    measures them once for a machine, a pair, its strategies and a batch size, and keeps them on
    disk (`bass.engine.step_times`). Where drafts end early, t(k) is that share of the way from t(0)
    if the engine is quicker for it (`cut`). No clock of a run decides: the same call with the same
    seed gives the same tokens again on that machine.

    *Probes.* Steps without drafts say nothing of acceptance. Each of them saves `exploration` of
    its time, and once the savings cover what two steps of one token may lose, these are taken:
    rarely if drafting is far from paying off, often if it nearly does.

    All rows have the same length, since a step takes as long as its longest draft. A length is
    decided one step in advance, so that a GPU need not wait for the host. New prompts keep the
    counts.
    """

    paper: ClassVar[str] = "this project"
    reads_times: ClassVar[bool] = True

    acceptance: float = within("(0, 1)", 0.7)
    exploration: float = within("[0, 1)", 0.005)
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
        state = self._decided(AutoState(batch_size, none, none, 0, 0), 0.0)
        return replace(state, length=state.following)

    def lengths(self, state: AutoState) -> np.ndarray:
        return np.full(state.batch, state.length, dtype=np.int32)

    def lengths_ahead(self, state: AutoState) -> np.ndarray:
        return np.full(state.batch, state.following, dtype=np.int32)

    def update(self, state: AutoState, feedback: Feedback) -> AutoState:
        accepted = feedback.accepted[feedback.active].tolist()
        saved = 0.0 if state.length else self.exploration * self._seconds(0, state)
        if state.length and accepted:
            drafted = max(feedback.drafted.tolist()) / state.length
            filled = state.filled + (drafted - state.filled) / FILLED
            state = replace(self._counted(state, accepted), filled=filled)
        state = replace(state, length=state.following)
        if state.probing:
            return replace(state, probing=state.probing - 1)
        return self._decided(state, saved)

    def _counted(self, state: AutoState, accepted: list[int]) -> AutoState:
        """The state with the accepted tokens of the active rows counted."""
        steps = max(32.0, self.memory / len(accepted))
        fade, slow = 1 - 1 / steps, 1 - 1 / (UNSEEN * steps)
        ended = [0] * (self.max_length + 1)
        for count in accepted:
            ended[count] += 1
        left, counts = len(accepted), []
        for i, (before, kept) in enumerate(zip(state.reached, state.accepted, strict=True)):
            if i < state.length and left:
                reached, left = left, left - ended[i]
                counts.append((before * fade + reached, kept * fade + left))
            else:
                counts.append((before * slow, kept * slow))
        reached, kept = zip(*counts, strict=True)
        return replace(state, reached=reached, accepted=kept)

    def _decided(self, state: AutoState, saved: float) -> AutoState:
        """The state with the length of the step after the coming one.

        saved: seconds, of a step without drafts.
        """
        tokens, choices = self._tokens(state), self.draft_lengths
        rates = [tokens[k] / self._seconds(k, state) for k in choices]
        drafting, plain = max(rates), 1 / self._seconds(0, state)
        margin = MARGIN if state.length == 0 else 1 / MARGIN
        if drafting > margin * plain:
            return replace(state, following=choices[rates.index(drafting)], savings=0.0)
        one, none = self._seconds(1, state), self._seconds(0, state)
        # the steps of a probe, and the draft's pass over the tokens that it lacks
        loss = PROBE * max(0.0, one - tokens[1] * none) + one - none
        savings = state.savings + saved
        if saved and savings >= loss:
            return replace(state, following=1, probing=PROBE - 1, savings=0.0)
        return replace(state, following=0, savings=savings)

    def _tokens(self, state: AutoState) -> list[float]:
        """Expected tokens of a row by draft length, [K+1]."""
        chance, survival, tokens = self.acceptance, 1.0, [1.0]
        for reached, accepted in zip(state.reached, state.accepted, strict=True):
            chance = (accepted + PRIOR * chance) / (reached + PRIOR)
            survival *= chance
            tokens.append(tokens[-1] + survival)
        return tokens

    def _seconds(self, k: int, state: AutoState) -> float:
        """Expected seconds of a step with k requested tokens."""
        none, full = (self.times[0], self.times[k]) if self.times else (1, 1 + 0.1 * k)
        return none + (full - none) * (state.filled if self.cut else 1)
