"""A policy of this project, the default: the length with the most expected tokens a second."""

from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np

from bass.errors import OptionError, check_ranges
from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)  # between two of them rates differ by less than 2 %
MARGIN = 1.01  # least ratio of rates for drafting to begin or to end
PRIOR = 4.0  # drafted tokens that the estimate of the position before counts as
UNSEEN = 10.0  # times slower decay of a position in steps that do not reach it


@dataclass(frozen=True)
class AutoState:
    """Decayed counts by position of the draft, and the length of the coming step."""

    reached: np.ndarray  # float [K], drafted tokens whose predecessors were all accepted
    accepted: np.ndarray  # float [K], those of them that were accepted
    batch: int
    length: int = 0
    probing: bool = False  # whether the coming step is the first of a probe
    savings: float = 0.0  # seconds for the next probe


@final
@dataclass(frozen=True)
class Auto(DraftLengthPolicy[AutoState]):
    """The length of the most expected tokens a second, 0 included, by the acceptance of the rows
    and the machine's own cost of a step; the default.

        k* = argmax of  (1 + S_1 + ... + S_k) / t(k),    S_i = h_1 ... h_i

    *Acceptance.* h_i, the chance of the i-th drafted token once all before it are accepted, is
    counted where that was so (Kaplan and Meier, 1958: a draft that is accepted whole says nothing
    of the next token), over all active rows, with counts that decay over `memory` tokens. h_(i-1)
    counts as `PRIOR` tokens of position i, and `acceptance` as those of the first one. A draft that
    ends before the requested length, at a stop rule or where `ngram` finds no match, counts as
    rejected there: what it lacks cannot be accepted.

    *Cost.* `times` are the seconds of a step that drafts 0, 1, 2 ... tokens; by default the engine
    measures them once for a machine, a pair, its strategies and a batch size, and keeps them on
    disk (`bass.engine.step_times`). No clock of a run decides: the same call with the same seed
    gives the same tokens again on that machine.

    *Probes.* Steps without drafts say nothing of acceptance. Each of them saves `exploration` of
    its time, and once the savings cover what two steps of one token may lose, these are taken:
    rarely if drafting is far from paying off, often if it nearly does.

    All rows have the same length, since a step takes as long as its longest draft. New prompts keep
    the counts.
    """

    paper: ClassVar[str] = "this project"
    reads_times: ClassVar[bool] = True

    acceptance: float = 0.7
    exploration: float = 0.005
    memory: float = 200.0
    max_length: int = 16
    times: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "times", tuple(self.times))
        check_ranges(self, acceptance="(0, 1)", exploration="[0, 1)", memory="[1, inf)")
        check_ranges(self, max_length="[1, inf)")
        if self.times:
            check_ranges(self, times="(0, inf)")
        if self.times and len(self.times) != self.max_length + 1:
            raise OptionError(
                f"`Auto(times=...)` has {len(self.times)} times: give {self.max_length + 1}, of "
                "steps that draft 0, 1, ... `max_length` tokens, or none, to have them measured."
            )

    @property
    def draft_lengths(self) -> tuple[int, ...]:
        return (*(k for k in LENGTHS if k < self.max_length), self.max_length)

    def timed(self, seconds: tuple[float, ...]) -> "Auto":
        return self if self.times else replace(self, times=seconds)

    def init(self, batch_size: int) -> AutoState:
        none = np.zeros(self.max_length)
        return self._decided(AutoState(none, none, batch_size), 0.0)

    def lengths(self, state: AutoState) -> np.ndarray:
        return np.full(state.batch, state.length, dtype=np.int32)

    def update(self, state: AutoState, feedback: Feedback) -> AutoState:
        accepted = feedback.accepted[feedback.active]
        if not len(accepted):
            return state
        k = state.length
        if k:
            counts = (accepted[:, None] >= np.arange(self.max_length + 1)).sum(axis=0)
            drafted = np.arange(self.max_length) < k
            reached = counts[:-1] * drafted
            steps = max(32.0, self.memory / len(accepted))
            fade = np.where(reached > 0, 1 - 1 / steps, 1 - 1 / (UNSEEN * steps))
            state = replace(
                state,
                reached=state.reached * fade + reached,
                accepted=state.accepted * fade + counts[1:] * drafted,
            )
        if state.probing:
            return replace(state, probing=False)
        return self._decided(state, 0.0 if k else self.exploration * self._seconds(0))

    def _decided(self, state: AutoState, saved: float) -> AutoState:
        """The state with the length of the coming step."""
        choices, tokens = (0, *self.draft_lengths), self._tokens(state)
        rates = [tokens[k] / self._seconds(k) for k in choices]
        best = max(range(len(choices)), key=rates.__getitem__)
        drafting = max(rates[1:])
        if state.length and not best and drafting * MARGIN > rates[0]:
            best = rates.index(drafting, 1)
        if best and not state.length and drafting < MARGIN * rates[0]:
            best = 0
        if best:
            return replace(state, length=choices[best], savings=0.0)
        one, none = self._seconds(1), self._seconds(0)
        # two steps of one token, and the draft's pass over the tokens that it lacks
        loss = 2 * max(0.0, one - tokens[1] * none) + one - none
        savings = state.savings + saved
        if saved and savings >= loss:
            return replace(state, length=1, probing=True, savings=0.0)
        return replace(state, length=0, savings=savings)

    def _tokens(self, state: AutoState) -> list[float]:
        """Expected tokens of a row by draft length, [K+1]."""
        chance, survival, tokens = self.acceptance, 1.0, [1.0]
        for reached, accepted in zip(state.reached.tolist(), state.accepted.tolist(), strict=True):
            chance = (accepted + PRIOR * chance) / (reached + PRIOR)
            survival *= chance
            tokens.append(tokens[-1] + survival)
        return tokens

    def _seconds(self, k: int) -> float:
        return self.times[k] if self.times else 1 + 0.1 * k
