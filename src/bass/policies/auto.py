"""A policy of this project, the default: the length with the most expected tokens a second."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple, final

import numpy as np

from bass.errors import OptionError
from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy
from bass.interfaces.policy import CAUGHT_UP, DrafterTimes
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
OTHERS = 0.5  # of these savings, what is saved for probes of other drafters
LEAST_LOSS = 0.3  # of the time of a probe: a step is slower after one of another length


class AutoState(NamedTuple):
    """Decayed counts by position of the draft of each of P drafters, and the lengths and drafters
    of the next two steps.

    The counts are of drafts whose tokens before the position were accepted, of those that drafted
    it, and of those that accepted it.
    """

    counts: np.ndarray  # float [P, 3, K], of all rows
    rows: np.ndarray  # float [P, 3, B, K]
    # by drafter: the longest draft of a step over the requested length, on average
    filled: tuple[float, ...]
    lacking: tuple[int, ...]  # by drafter, steps since a draft
    done: np.ndarray  # float [B]: accepted tokens of the row's request
    active: np.ndarray  # bool [B]
    drafting: np.ndarray  # bool [B]: the rows that draft in the coming step, if any does
    drafting_then: np.ndarray  # and in the step after it
    length: int = 0  # of the coming step
    following: int = 0  # of the step after it
    drafter: int = 0  # the drafter of the coming step
    drafter_then: int = 0  # and of the step after it
    # seconds for the next probe of a longer draft, and of another drafter
    savings: tuple[float, float] = (0.0, 0.0)
    losses: tuple[float, float] = (0.0, math.inf)  # seconds that they cost
    steps: int = 0
    queued: bool = False  # whether requests wait for a row
    # of steps of the same length and drafter, and the rows that drafted
    uncounted: tuple[tuple[Feedback, np.ndarray], ...] = ()


def _with(pair: tuple[float, float], kind: int, value: float) -> tuple[float, float]:
    return (pair[0], value) if kind else (value, pair[1])


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

    *Drafters.* Of `drafter=choice` each drafter has counts and times of its own. The first two
    steps try one each, and of those tried the best has its best length; another takes its place if
    it is `ONE` times as good. Probes of the others have savings of their own, `OTHERS` times as
    much, and pay the tokens that both drafters are fed then.

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
    others: DrafterTimes = ()

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

    def timed(
        self,
        seconds: tuple[float, ...],
        catch_up: float,
        early_end_saves: bool,
        others: DrafterTimes = (),
    ) -> "Auto":
        if self.times:
            return self
        own = {"catch_up": catch_up, "early_end_saves": early_end_saves, "others": others}
        return replace(self, times=seconds, **own)

    def init(self, batch_size: int) -> AutoState:
        k, parts = self.max_length, 1 + len(self.others)
        done, all_rows = np.zeros(batch_size), np.ones(batch_size, bool)
        counts = np.zeros((parts, 3, k)), np.zeros((parts, 3, batch_size, k))
        known = (1.0,) * parts, (0,) * parts
        state = AutoState(*counts, *known, done, all_rows, all_rows, all_rows)
        most, first = CHEAP * self._seconds(0, 0, state), list[int]()
        for part in range(min(parts, 2)):
            times = [self._seconds(i, part, state) for i in range(1, min(k, MOST_CHEAP) + 1)]
            longest = max(sum(t <= most for t in times), min(MOST, max(1, TRIAL // batch_size)))
            first.append(min(self._decided(state._replace(drafter=part)).following, longest))
        some = np.arange(batch_size) < TRIAL
        state = state._replace(length=first[0], following=first[-1], drafter_then=len(first) - 1)
        return state._replace(drafting=some, drafting_then=some)

    def lengths(self, state: AutoState) -> np.ndarray:
        return (state.length * state.drafting).astype(np.int32)

    def lengths_ahead(self, state: AutoState) -> np.ndarray:
        return (state.following * state.drafting_then).astype(np.int32)

    def drafter(self, state: AutoState) -> int:
        return state.drafter

    def drafter_ahead(self, state: AutoState) -> int:
        return state.drafter_then

    def update(self, state: AutoState, feedback: Feedback) -> AutoState:
        k, part = state.length, state.drafter
        saved = self.exploration * self._seconds(k, part, state)
        state = state._replace(
            length=state.following,
            drafter=state.drafter_then,
            drafting=state.drafting_then,
            savings=(state.savings[0] + saved, state.savings[1] + OTHERS * saved),
            lacking=tuple(0 if k and i == part else n + 1 for i, n in enumerate(state.lacking)),
            steps=state.steps + 1,
            queued=feedback.queued > 0,
            uncounted=(*state.uncounted, (feedback, state.drafting)) if k else (),
        )
        early = state.steps % EVERY if k else all(map(float.__lt__, state.savings, state.losses))
        if early and state.steps > EACH and (state.length, state.drafter) == (k, part):
            return state
        return self._decided(self._counted(state, k, part))

    def reset(self, state: AutoState, rows: np.ndarray) -> AutoState:
        """The rows begin with the estimate of all rows."""
        state = self._counted(state, state.length, state.drafter)
        counts, done, active = state.rows.copy(), state.done.copy(), state.active.copy()
        counts[:, :, rows], done[rows], active[rows] = 0, 0, True
        return state._replace(rows=counts, done=done, active=active)

    def _counted(self, state: AutoState, k: int, part: int) -> AutoState:
        """The state with the steps counted that drafted k tokens with this drafter."""
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
        counts, rows, filled = state.counts.copy(), state.rows.copy(), [*state.filled]
        counts[part] = counts[part] * (1 - 1 / memory) ** len(steps) + step.sum(1)
        rows[part] = rows[part] * (1 - 1 / self.memory) ** step[0] + step
        filled[part] = longest + (filled[part] - longest) * (1 - 1 / FILLED) ** len(steps)
        done, active = state.done + ends[2].sum(0), active[-1].copy()
        seen = state._replace(counts=counts, rows=rows, filled=tuple(filled))
        return seen._replace(done=done, active=active)

    def _decided(self, state: AutoState) -> AutoState:
        """The state with the drafter and the length of the `following` step."""
        choices, parts = self._choices, range(len(state.filled))
        tokens = [self._tokens(part, state) for part in parts]
        seconds = [[self._seconds(k, part, state) for k in choices] for part in parts]
        rates = [
            [of[k] / t for k, t in zip(choices, times, strict=True)]
            for of, times in zip(tokens, seconds, strict=True)
        ]
        tried = [part for part in parts if state.counts[part, 0, 0] > 0] or [state.drafter]
        own = tried[0] if len(tried) == 1 else max(tried, key=lambda i: self._value(i, state))
        best = max(range(1, len(choices)), key=rates[own].__getitem__)
        margin = ONE + min(DOUBLED * math.log2(len(state.active)), MOST_DOUBLED)
        if (state.active & ~state.drafting).any():
            margin *= self._doubt(own, state)
        elif state.length:
            margin /= self._doubt(own, state)
        if rates[own][best] < margin * rates[own][0]:
            best = 0
        all_rows = np.ones_like(state.active)
        state = state._replace(following=choices[best], drafter_then=own, drafting_then=all_rows)
        longer = [(own, i) for i in range(best + 1, len(choices))]
        of_others = [(part, i) for part in parts if part != own for i in range(1, len(choices))]
        some = state.active & (state.active.cumsum() <= TRIAL)
        for kind, candidates in enumerate((longer, of_others)):
            if not candidates:
                continue
            part, probe = max(candidates, key=lambda one: rates[one[0]][one[1]])
            away, time = kind or not best, seconds[part][probe]
            share = some.sum() / max(state.active.sum(), 1) if away else 1.0
            loss = time - (1 + share * (tokens[part][choices[probe]] - 1)) / rates[own][best]
            loss = max(loss, LEAST_LOSS * time if best else 0.0)
            if away:  # and for passes over the tokens that the draft lacks, and then its own
                passes = min(1 + state.lacking[part] // CAUGHT_UP, MOST_PASSES)
                loss += passes * self._catch_up(part, state)
                loss += self._catch_up(own, state) if best else 0.0
            if state.savings[kind] < loss:
                state = state._replace(losses=_with(state.losses, kind, loss))
                continue
            savings = _with(state.savings, kind, 0.0)
            state = state._replace(following=choices[probe], drafter_then=part, savings=savings)
            if not away:
                return state
            counts, rows = state.counts.copy(), state.rows.copy()
            counts[part] *= PAUSED
            rows[part] *= PAUSED
            return state._replace(drafting_then=some, counts=counts, rows=rows)
        return state

    def _doubt(self, part: int, state: AutoState) -> float:
        """How many times as high a rate of this drafter counts, since it drafted little."""
        return 1 + UNCERTAIN / (1 + float(state.counts[part, 0, 0]))

    def _value(self, part: int, state: AutoState) -> float:
        """The best rate of this drafter, to compare it with others: by the estimate of all rows,
        since that of the last row, whose drafts were refused, is too low.
        """
        tokens = 1 + np.prod(self._chances(part, state), 0).cumprod().cumsum()
        rate = max(tokens[k - 1] / self._seconds(k, part, state) for k in self.draft_lengths)
        return float(rate) * self._doubt(part, state) * (ONE if part == state.drafter else 1.0)

    def _tokens(self, part: int, state: AutoState) -> list[float]:
        """Expected tokens of the active rows by draft length [K+1] of this drafter: their mean if
        ended rows are refilled, else a weighted harmonic one.
        """
        shares, chances = self._chances(part, state)
        active = state.active if state.active.any() else ~state.active
        rows, done = state.rows[part][:, active], state.done[active]
        weights = np.full(rows.shape[1:], OF_ROWS)
        weights[:, 1:] += SIMILAR * rows[1, :, :-1]
        of_all = np.array((shares, chances))[:, None]
        found = (rows[1:] + weights * of_all) / (rows[:2] + weights)  # the same, of each row
        tokens = 1 + (found[0] * found[1]).cumprod(1).cumsum(1)
        if state.queued:
            return [1.0, *tokens.mean(0).tolist()]
        weights = np.exp((done.min() - done) / LAG)
        return [1.0, *(weights.sum() / (weights @ (1 / tokens))).tolist()]

    def _chances(self, part: int, state: AutoState) -> tuple[list[float], list[float]]:
        """By position, how often this drafter drafts, and how often its token is accepted."""
        chance, chances, shares = self.acceptance, list[float](), list[float]()
        before = 0.0
        for reached, drafted, accepted in state.counts[part].T.tolist():
            weight = PRIOR + SIMILAR * before
            chance = (accepted + weight * chance) / (drafted + weight)
            before = drafted
            chances.append(chance)
            shares.append((drafted + PRIOR) / (reached + PRIOR))
        return shares, chances

    @cached_property
    def _choices(self) -> tuple[int, ...]:
        return (0, *self.draft_lengths)

    def _seconds(self, k: int, part: int, state: AutoState) -> float:
        """Expected seconds of a step with k requested tokens of this drafter."""
        times = self.others[part - 1][0] if part else self.times
        none, full = (times[0], times[k]) if times else (1, 1 + 0.1 * k)
        return none + (full - none) * (state.filled[part] if self.early_end_saves else 1)

    def _catch_up(self, part: int, state: AutoState) -> float:
        """Expected seconds in which this drafter is fed `CAUGHT_UP` tokens of each row."""
        seconds = self.others[part - 1][1] if part else self.catch_up
        if seconds is not None:
            return seconds
        return self._seconds(self._choices[1], part, state) - self._seconds(0, part, state)
