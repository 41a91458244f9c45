"""A policy of this project, the default: the length with the most expected tokens a second."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple, final

import numpy as np

from bass.errors import OptionError
from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy
from bass.interfaces.policy import CAUGHT_UP
from bass.option import within

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)  # between two of them rates differ by less than 2 %
# Least ratio of rates for drafting: for one row, and what each doubling of the batch adds, since a
# call ends with the slowest of its rows.
ONE, DOUBLED, MOST_DOUBLED = 1.02, 0.02, 0.12
# The weight of the prior of a position, in tokens: PRIOR, and this share of the tokens drafted at
# the position before. So old counts of a position that is no longer drafted do not outweigh it.
PRIOR, SIMILAR = 4.0, 0.15
OF_ROWS = 8.0  # tokens that the estimate of all rows counts as, for one row
UNCERTAIN = 1.0  # after n drafts, rates with drafts count as 1 + UNCERTAIN / (1 + n) times as high
LAG = 8.0  # tokens by which a row is ahead of the last one where its weight is 1 / e
FILLED = 16.0  # steps that the estimate of the share of a request that is drafted remembers
# Drafts of the first two steps: TRIAL tokens of all rows together and MOST of a row, or up to
# MOST_CHEAP of a row where a step takes at most CHEAP times one without drafts. At most TRIAL rows.
TRIAL, MOST, CHEAP, MOST_CHEAP = 16, 3, 1.5, 8
EACH, EVERY = 8, 4  # steps at first that each have a decision, and later steps for one decision
MOST_PASSES = 2  # that a probe is priced with: without an end, savings might never reach it
PAUSED = 0.8  # weight of what was seen before steps without drafts
LEAST_LOSS = 0.3  # of the time of a probe: a step is slower after one of another length


class AutoState(NamedTuple):
    """Decayed counts by position of the draft, and the lengths of the next two steps.

    The counts are of drafts whose tokens before the position were accepted, of those that drafted
    it, and of those that accepted it.
    """

    counts: np.ndarray  # float [3, K], of all rows
    rows: np.ndarray  # float [3, B, K]
    done: np.ndarray  # float [B]: accepted tokens of the row's request
    active: np.ndarray  # bool [B]
    drafting: np.ndarray  # bool [B]: the rows that draft in the coming step, if any does
    drafting_then: np.ndarray  # and in the step after it
    length: int = 0  # of the coming step
    following: int = 0  # of the step after it
    filled: float = 1.0  # the longest draft of a step over the requested length, on average
    savings: float = 0.0  # seconds for the next probe
    loss: float = 0.0  # seconds that it costs
    lacking: int = 0  # steps since a draft
    steps: int = 0
    queued: bool = False  # whether requests wait for a row
    # of steps of the same length, and the rows that drafted
    uncounted: tuple[tuple[Feedback, np.ndarray], ...] = ()


@final
@dataclass(frozen=True)
class Auto(DraftLengthPolicy[AutoState]):
    """The length with the most expected tokens a second, 0 included, by the acceptance of the rows
    and the machine's own cost of a step; the default.

        k* = argmax of  W / (w_1 / E_1(k) + ... + w_B / E_B(k)) / t(k),   E(k) = 1 + S_1 + ... + S_k

    over the active rows, with S_i = d_1 h_1 ... d_i h_i, W the sum of the weights. The harmonic
    mean is that of the time that each row takes for a token. A call ends with its slowest row, so
    w_b = exp(-a_b / 8), a_b the accepted tokens that row b is ahead of the last one. While requests
    wait for a row, it is the arithmetic mean.

    *Acceptance.* h_i, the chance of the i-th drafted token once all before it are accepted, is
    counted where that was so (Kaplan and Meier, 1958: a draft that is accepted whole says nothing
    of the next token), with counts that decay over `memory` tokens. d_i is the chance that the
    token is drafted then: `ngram` finds no match, or a stop rule ends the draft. The estimate of
    all rows counts as a few tokens of each row, and h_(i-1) as a few of all rows and a seventh of
    its own: first `acceptance`, which is high, so that drafts are tried. While there were few
    drafts, n, a rate with drafts counts as 1 + 1 / (1 + n) times as high: without drafts nothing is
    learned.

    *Cost.* `times` are the seconds of a step of 0, 1, 2 ... drafted tokens; without them the engine
    measures them once for a machine, a pair, its strategies and a batch size, and keeps them on
    disk (`bass.engine.step_times`), as those of a `catch_up`: a draft model is fed `CAUGHT_UP`
    tokens, which it lacks after steps without drafts. If a draft that ends early makes its step
    quicker (`early_end_saves`), t(k) is t(0) + f (t(k) - t(0)), f the mean share of the requested
    length that is drafted. No clock of a run decides: the same call with the same seed gives the
    same tokens again on that machine.

    *Probes.* A step says nothing of positions that it does not draft. Each one saves `exploration`
    of its time, and once the savings cover what the best of the longer drafts may lose, it is
    taken for a step: rarely if it is far from paying off, often if it nearly does.

    All rows have the same length, since a step takes as long as its longest draft. But in the first
    two steps, and in probes from no drafts, only `TRIAL` rows draft: before a row drafts, a draft
    model is fed all that it lacks of it, at first the prompt. After such a step a rate with drafts
    counts as 1 + 1 / (1 + n) times lower, not higher.

    The feedback of step t decides the length of step t + 2, so that a GPU need not wait for the
    host. New prompts begin with the estimate of all rows.
    """

    paper: ClassVar[str] = "this project"
    reads_times: ClassVar[bool] = True

    acceptance: float = within("(0, 1)", 0.85)
    exploration: float = within("[0, 1)", 0.01)
    memory: float = within("[1, inf)", 200.0)
    max_length: int = within("[1, inf)", 16)
    times: tuple[float, ...] = ()
    catch_up: float | None = None
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

    def timed(self, seconds: tuple[float, ...], catch_up: float, early_end_saves: bool) -> "Auto":
        if self.times:
            return self
        return replace(self, times=seconds, catch_up=catch_up, early_end_saves=early_end_saves)

    def init(self, batch_size: int) -> AutoState:
        k = self.max_length
        rows, done, all_rows = (3, batch_size, k), np.zeros(batch_size), np.ones(batch_size, bool)
        counts = np.zeros((3, k)), np.zeros(rows)
        state = AutoState(*counts, done, all_rows, all_rows, all_rows)
        wanted = self._decided(state).following
        most = CHEAP * self._seconds(0, state)
        cheap = sum(self._seconds(i, state) <= most for i in range(1, min(k, MOST_CHEAP) + 1))
        first = min(wanted, max(cheap, min(MOST, max(1, TRIAL // batch_size))))
        some = np.arange(batch_size) < TRIAL
        return state._replace(length=first, following=first, drafting=some, drafting_then=some)

    def lengths(self, state: AutoState) -> np.ndarray:
        return (state.length * state.drafting).astype(np.int32)

    def lengths_ahead(self, state: AutoState) -> np.ndarray:
        return (state.following * state.drafting_then).astype(np.int32)

    def update(self, state: AutoState, feedback: Feedback) -> AutoState:
        k = state.length
        state = state._replace(
            length=state.following,
            drafting=state.drafting_then,
            savings=state.savings + self.exploration * self._seconds(k, state),
            lacking=0 if k else state.lacking + 1,
            steps=state.steps + 1,
            queued=feedback.queued > 0,
            uncounted=(*state.uncounted, (feedback, state.drafting)) if k else (),
        )
        early = state.steps % EVERY if k else state.savings < state.loss
        if early and state.steps > EACH and state.length == k:
            return state
        return self._decided(self._counted(state, k))

    def reset(self, state: AutoState, rows: np.ndarray) -> AutoState:
        """The rows begin with the estimate of all rows."""
        state = self._counted(state, state.length)
        counts, done, active = state.rows.copy(), state.done.copy(), state.active.copy()
        counts[:, rows], done[rows], active[rows] = 0, 0, True
        return state._replace(rows=counts, done=done, active=active)

    def _counted(self, state: AutoState, k: int) -> AutoState:
        """The state with the steps counted whose length was k."""
        steps = [one for one in state.uncounted if one[0].active.any()]
        state = state._replace(uncounted=())
        if not steps:
            return state
        drafted, accepted, active = (
            np.array([getattr(one, name) for one, _ in steps])
            for name in ("drafted", "accepted", "active")
        )  # [steps, B]
        drafting = active & np.array([rows for _, rows in steps])
        reached = np.minimum(accepted + 1, k)
        ends = np.array((reached, np.minimum(reached, drafted), accepted)) * drafting
        step = (np.arange(self.max_length) < ends[..., None]).sum(1)  # [3, B, K]
        memory = max(12.0, self.memory / max(int(drafting[-1].sum()), 1))
        longest = float((drafted * active).max(1).mean()) / k
        return state._replace(
            counts=state.counts * (1 - 1 / memory) ** len(steps) + step.sum(1),
            rows=state.rows * (1 - 1 / self.memory) ** step[0] + step,
            done=state.done + ends[2].sum(0),
            active=active[-1].copy(),
            filled=longest + (state.filled - longest) * (1 - 1 / FILLED) ** len(steps),
        )

    def _decided(self, state: AutoState) -> AutoState:
        """The state with the length of the `following` step."""
        choices, tokens = self._choices, self._tokens(state)
        seconds = [self._seconds(k, state) for k in choices]
        rates = [tokens[k] / t for k, t in zip(choices, seconds, strict=True)]
        best = max(range(1, len(choices)), key=rates.__getitem__)
        margin = ONE + min(DOUBLED * math.log2(len(state.active)), MOST_DOUBLED)
        some = state.active & (state.active.cumsum() <= TRIAL)
        doubt = 1 + UNCERTAIN / (1 + float(state.counts[0, 0]))
        if (state.active & ~state.drafting).any():
            margin *= doubt
        elif state.length:
            margin /= doubt
        if rates[best] < margin * rates[0]:
            best = 0
        state = state._replace(following=choices[best], drafting_then=np.ones_like(some))
        longer = range(best + 1, len(choices))
        if not longer:
            return state
        probe = max(longer, key=rates.__getitem__)
        share = 1.0 if best else some.sum() / max(state.active.sum(), 1)
        loss = seconds[probe] - (1 + share * (tokens[choices[probe]] - 1)) / rates[best]
        if best:
            loss = max(loss, LEAST_LOSS * seconds[probe])
        else:  # and for passes over the tokens that the draft lacks
            passes = min(1 + state.lacking // CAUGHT_UP, MOST_PASSES)
            each = seconds[1] - seconds[0] if self.catch_up is None else self.catch_up
            loss = max(loss, 0.0) + passes * each
        if state.savings < loss:
            return state._replace(loss=loss)
        state = state._replace(following=choices[probe], savings=0.0)
        if best:
            return state
        counts, rows = PAUSED * state.counts, PAUSED * state.rows
        return state._replace(drafting_then=some, counts=counts, rows=rows)

    def _tokens(self, state: AutoState) -> list[float]:
        """Expected tokens of the active rows by draft length [K+1]: their mean if ended rows are
        refilled, else a weighted harmonic one.
        """
        chance, chances, shares = self.acceptance, list[float](), list[float]()
        before = 0.0
        for reached, drafted, accepted in state.counts.T.tolist():
            weight = PRIOR + SIMILAR * before
            chance = (accepted + weight * chance) / (drafted + weight)
            before = drafted
            chances.append(chance)
            shares.append((drafted + PRIOR) / (reached + PRIOR))
        active = state.active if state.active.any() else ~state.active
        rows, done = state.rows[:, active], state.done[active]
        weights = np.full(rows.shape[1:], OF_ROWS)
        weights[:, 1:] += SIMILAR * rows[1, :, :-1]
        of_all = np.array((shares, chances))[:, None]
        found = (rows[1:] + weights * of_all) / (rows[:2] + weights)  # the same, of each row
        tokens = 1 + (found[0] * found[1]).cumprod(1).cumsum(1)
        if state.queued:
            return [1.0, *tokens.mean(0).tolist()]
        weights = np.exp((done.min() - done) / LAG)
        return [1.0, *(weights.sum() / (weights @ (1 / tokens))).tolist()]

    @cached_property
    def _choices(self) -> tuple[int, ...]:
        return (0, *self.draft_lengths)

    def _seconds(self, k: int, state: AutoState) -> float:
        """Expected seconds of a step with k requested tokens."""
        none, full = (self.times[0], self.times[k]) if self.times else (1, 1 + 0.1 * k)
        return none + (full - none) * (state.filled if self.early_end_saves else 1)
