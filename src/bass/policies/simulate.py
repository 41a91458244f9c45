"""Policies without models: synthetic acceptance and a cost model of the step.

    would [steps, rows]   number of drafted tokens that would be accepted; it is drawn before any
                          policy runs, so that all policies get the same draws
    a step                each row commits min(would, l_b) + 1 tokens; it takes
                          seconds(batch, max l_b)

So the best fixed length and the oracle are exact for the same draws. Deterministic for a seed.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np

from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy
from bass.interfaces.policy import checked_lengths
from bass.option import Ranged, within

LONGEST = 32  # maximum of `would`


@final
@dataclass(frozen=True)
class CostModel(Ranged):
    """Milliseconds of a step: seconds = target(batch, k) + k draft(batch).

        target = max(weights + per_token n, per_token_bound n) + per_row batch,   n = batch (k + 1)
        draft  = draft_weights + draft_per_row batch

    The default is one H200 with a 7.7B and 310M pair in bfloat16. Measured with compiled layers in
    CUDA graphs: 5.42 + 2.38 ms for a window of 8 and 7 draft steps at batch 1, 6.09 + 2.59 at batch
    8; `per_row` from the slope of autoregressive decoding at batch 1 to 16 (5.24 to 6.18 ms).
    Beyond about 350 tokens the matrix products are bound by arithmetic: 2 x 7.7e9 operations per
    token at 784 TFLOP/s. Batches over 16 are extrapolated by this formula, not measured. The first
    draft after steps without drafts feeds the draft model the tokens that it lacks: one more draft
    step.
    """

    weights: float = within("(0, inf)", 5.32)
    per_row: float = within("[0, inf)", 0.058)
    per_token: float = within("[0, inf)", 0.0047)
    per_token_bound: float = within("[0, inf)", 0.0197)
    draft_weights: float = within("[0, inf)", 0.336)
    draft_per_row: float = within("[0, inf)", 0.0043)

    @classmethod
    def from_ratio(cls, c: float) -> "CostModel":
        """A target step of 1 ms and a draft step of c ms at any batch size: the c of the predicted
        speed-up in the literature.
        """
        return cls(1.0, 0.0, 0.0, 0.0, c, 0.0)

    def target(self, batch: int, k: np.ndarray | int) -> np.ndarray:
        """Milliseconds of the target's pass over k + 1 tokens of each row: float [lengths], or []
        for one length.
        """
        tokens = batch * (np.asarray(k) + 1)
        return np.asarray(
            np.maximum(self.weights + self.per_token * tokens, self.per_token_bound * tokens)
            + self.per_row * batch
        )

    def draft(self, batch: int) -> float:
        """Milliseconds of one pass of the draft model."""
        return self.draft_weights + self.draft_per_row * batch

    def step(self, batch: int, k: np.ndarray | int) -> np.ndarray:
        """Milliseconds of a step whose longest draft is k: float [lengths], or [] for one."""
        return np.asarray(self.target(batch, k) + np.asarray(k) * self.draft(batch))


class Acceptance(Ranged, ABC):
    """Draws how many drafted tokens would be accepted."""

    @abstractmethod
    def draw(self, random: np.random.Generator, steps: int, rows: int) -> np.ndarray:
        """Int [steps, rows], each at most `LONGEST`."""
        ...


@final
@dataclass(frozen=True)
class Constant(Acceptance):
    """Every token is accepted with probability a, independently."""

    a: float = within("[0, 1]", 0.8)

    def draw(self, random: np.random.Generator, steps: int, rows: int) -> np.ndarray:
        return geometric(random, np.full((steps, rows), self.a))


@final
@dataclass(frozen=True)
class RecordedAcceptance(Acceptance):
    """The calls of a run in order, with censored ones completed.

    accepted [calls]: accepted tokens of a call. censored [calls]: whether more might have been
    accepted, since nothing was rejected. Such a call is completed by chance: after its `accepted`
    tokens, token i is accepted with probability rates[i], or `tail` beyond them, until one is
    rejected, at most `LONGEST`. To take `accepted` itself would make all drafts look useless beyond
    the recorded lengths; to leave the calls out would keep only those that went badly.

    The calls are dealt to the rows one after the other, each row a contiguous part of the run, so
    that easy and hard texts stay together. A call of the simulation is a call of the recorded run,
    whatever the policy drafted before: the place in the text is that of the recorded run.
    """

    accepted: np.ndarray
    censored: np.ndarray
    rates: np.ndarray
    tail: float

    def steps(self, rows: int) -> int:
        """The number of steps of a batch in which every call occurs once, at least 1."""
        return max(1, len(self.accepted) // rows)

    def draw(self, random: np.random.Generator, steps: int, rows: int) -> np.ndarray:
        return np.resize(self.completed(random), (rows, steps)).T

    def completed(self, random: np.random.Generator) -> np.ndarray:
        """Tokens that each call would accept, int [calls]: recorded, or completed by chance."""
        rates = np.full(LONGEST, self.tail)
        rates[: len(self.rates)] = self.rates[:LONGEST]
        passed = random.random((len(self.accepted), LONGEST)) < rates
        known = np.arange(LONGEST) < self.accepted[:, None]
        drawn = (known | passed).cumprod(axis=1).sum(axis=1)
        return np.where(self.censored, drawn, np.minimum(self.accepted, LONGEST)).astype(np.int64)


@final
@dataclass(frozen=True)
class Simulation:
    """A policy's lengths and results step by step, and their cost without noise.

    would, lengths (as requested) and accepted: int [steps, rows]. milliseconds: float [steps].
    """

    would: np.ndarray
    lengths: np.ndarray
    accepted: np.ndarray
    milliseconds: np.ndarray
    cost: CostModel = field(repr=False)

    def since(self, step: int) -> "Simulation":
        """Only the steps from `step` on."""
        arrays = {name: array[step:] for name, array in vars(self).items() if name != "cost"}
        return replace(self, **arrays)

    @property
    def tau(self) -> float:
        """Committed tokens of a row per step."""
        return float(self.accepted.mean()) + 1

    @property
    def mean_length(self) -> float:
        """Drafted tokens of a row per step."""
        return float(self.lengths.mean())

    @property
    def ms_per_token(self) -> float:
        """Mean milliseconds per token of a row."""
        return float(self.milliseconds.mean()) / self.tau

    def fixed(self, longest: int = 16) -> np.ndarray:
        """`ms_per_token` of each fixed length 0..longest on the same draws, float [longest + 1]."""
        k = np.arange(longest + 1)
        tau = np.array([np.minimum(self.would, length).mean() + 1 for length in k])
        return self.cost.step(self.would.shape[1], k) / tau

    def best_of_each_step(self, longest: int = 16) -> float:
        """`ms_per_token` with the best length 0..longest of each step in hindsight on the same
        draws: no policy is faster. By Dinkelbach's iteration for a ratio of sums.
        """
        k = np.arange(longest + 1)
        tokens = 1 + np.minimum(self.would[..., None], k).mean(axis=1)  # [steps, lengths]
        times, price = self.cost.step(self.would.shape[1], k), float("inf")
        found = float(self.fixed(longest).min())
        while found < price:
            price = found
            best = (times - price * tokens).argmin(axis=1)
            found = float(times[best].sum() / np.take_along_axis(tokens, best[:, None], 1).sum())
        return price

    def regret(self, longest: int = 16) -> float:
        """`ms_per_token` relative to the best fixed length 0..longest in hindsight on the same
        draws, minus one.
        """
        return self.ms_per_token / float(self.fixed(longest).min()) - 1


def simulate(
    policy: DraftLengthPolicy[Any],
    acceptance: Acceptance,
    batch: int = 1,
    cost: CostModel = CostModel(),
    steps: int = 1000,
    noise: float = 0.05,
    seed: int = 0,
) -> Simulation:
    """Run `policy` for `steps` steps of a full batch. It sees step times with a relative normal
    error of `noise`.

    Raises `PolicyError` for lengths that the engine would refuse.
    """
    random = np.random.default_rng(seed)
    would = acceptance.draw(random, steps, batch)
    errors = np.maximum(1 + noise * random.standard_normal(steps), 0.1)
    times = tuple(cost.step(batch, np.arange(policy.max_length + 1)) / 1000)
    policy = policy.timed(times, float(cost.draft(batch)) / 1000, False)
    state = policy.reset(policy.init(batch), np.arange(batch))
    active = np.ones(batch, dtype=bool)
    requested, milliseconds, drafting = np.zeros_like(would), np.zeros(steps), True
    for step in range(steps):
        given = checked_lengths(policy, policy.lengths(state), batch)
        requested[step] = lengths = np.array(given)
        k = int(lengths.max())
        resumes = k > 0 and not drafting
        milliseconds[step] = float(cost.step(batch, k)) + cost.draft(batch) * resumes
        drafting, seconds = k > 0, milliseconds[step] * errors[step] / 1000
        accepted = np.minimum(would[step], lengths)
        state = policy.update(state, Feedback(lengths, accepted, active, seconds))
    return Simulation(would, requested, np.minimum(would, requested), milliseconds, cost)


def geometric(random: np.random.Generator, a: np.ndarray) -> np.ndarray:
    """The number of successes before the first failure, P(n or more) = a^n, at most `LONGEST`."""
    uniform = 1 - random.random(a.shape)  # in (0, 1]
    n = np.floor(np.log(uniform) / np.log(np.clip(a, 1e-12, 1 - 1e-12)))
    return np.minimum(n, LONGEST).astype(np.int64)
