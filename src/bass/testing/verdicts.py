"""Inputs of a verifier: drafts and target distributions, many samples of each problem in one
batch.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int

from bass.records import Draft, Noise
from bass.testing.enumeration import Problem
from bass.testing.proof import shown


@dataclass(frozen=True)
class Batch:
    """Problems of one batch, whose drafts have up to k tokens. `seed`: of the noise."""

    problems: list
    k: int
    seed: int = 0

    def __str__(self) -> str:
        return f"k = {self.k}, noise of seed {self.seed}; " + "; ".join(
            f"row {i}: {described(p)}" for i, p in enumerate(self.problems)
        )


def described(problem: Problem) -> str:
    """A problem as text: each distribution with the drafted tokens before it."""

    path = "" if problem.path is None else f", drafted for certain {list(problem.path)}"
    if problem.name:
        return f"length {problem.length}, {problem.name}{path}"

    def listed(laws: dict, longest: int) -> str:
        return ", ".join(
            f"after {list(prefix)} {shown(law)}"
            for prefix, law in laws.items()
            if len(prefix) <= longest
        )

    if problem.by_last:
        laws = f"target {listed(problem.target, 1)}, draft {listed(problem.draft, 1)}"
        return f"length {problem.length}, by the last token alone: {laws}{path}"
    if not problem.length:
        return f"length 0, target {listed(problem.target, 0)}"
    guess = (
        f"drafted for certain {list(problem.path)}"
        if problem.path is not None
        else f"draft {listed(problem.draft, problem.length - 1)}"
    )
    return f"length {problem.length}, target {listed(problem.target, problem.length)}, {guess}"


@dataclass(frozen=True)
class Sampled:
    """The input of a verifier, in NumPy: `each` samples of every problem, problem by problem."""

    tokens: Int[np.ndarray, "rows k"]
    draft_probs: Float[np.ndarray, "rows k vocab"] | None
    target_probs: Float[np.ndarray, "rows window vocab"]
    lengths: Int[np.ndarray, " rows"]
    uniforms: Float[np.ndarray, "rows window 4"]

    def given(self, order: np.ndarray | None = None) -> tuple[Draft, torch.Tensor, Noise]:
        """The input as new tensors, with the rows in this order."""
        rows = np.arange(len(self.lengths)) if order is None else order

        def on(array: np.ndarray) -> torch.Tensor:
            return torch.as_tensor(array[rows].copy())

        draft = Draft(
            on(self.tokens),
            None if self.draft_probs is None else on(self.draft_probs),
            on(self.lengths),
        )
        return (
            draft,
            on(self.target_probs),
            Noise(torch.as_tensor(rows.copy()), torch.as_tensor(firsts(rows)), on(self.uniforms)),
        )


def firsts(rows: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
    """A first position for each row of a batch, from 1 to 199; it must not bias a verifier."""
    return rows.astype(np.int64) * 37 % 199 + 1


def sample(batch: Batch, each: int, junk: int, garbage: tuple = ()) -> Sampled:
    """Drafts drawn by the draft stream's uniforms, as a drafter draws them.

    Values beyond a row's length are random, with the seed `junk`; `garbage`: numbers in place of
    the probabilities there.
    """
    random, other = np.random.default_rng(batch.seed), np.random.default_rng(1000 + junk)
    rows, k, vocab = each * len(batch.problems), batch.k, batch.problems[0].vocab
    tokens, uniforms = other.integers(0, vocab, (rows, k)), other.uniform(size=(rows, k + 1, 4))
    target, guess = (
        other.dirichlet(np.ones(vocab), (rows, k + 1)),
        other.dirichlet(np.ones(vocab), (rows, k)),
    )
    if garbage:
        target, guess = np.resize(garbage, target.shape), np.resize(garbage, guess.shape)
    for i, problem in enumerate(batch.problems):
        here, length = slice(i * each, (i + 1) * each), problem.length
        uniforms[here, : length + 1] = random.uniform(size=(each, length + 1, 4))
        for slot in range(length + 1):
            prefixes = tokens[here, :slot]
            target[here, slot] = looked_up(problem.target, prefixes, vocab)
            if slot < length:
                probs = (
                    looked_up(problem.draft, prefixes, vocab)
                    if problem.path is None
                    else np.eye(vocab)[[problem.path[slot]] * each]
                )
                guess[here, slot] = probs
                tokens[here, slot] = drawn(probs, uniforms[here, slot, 0])
    lengths = np.repeat([problem.length for problem in batch.problems], each)
    return Sampled(
        tokens, None if batch.problems[0].path is not None else guess, target, lengths, uniforms
    )


def continued(
    problem: Problem, tokens: np.ndarray, accepted: np.ndarray, seed: int
) -> Int[np.ndarray, "rows new"]:
    """The emitted tokens of a problem's rows, continued by the target to length + 1 tokens."""
    random, whole = np.random.default_rng(2000 + seed), tokens[:, : problem.length + 1].copy()
    for slot in range(1, problem.length + 1):
        own = drawn(
            looked_up(problem.target, whole[:, :slot], problem.vocab),
            random.uniform(size=len(whole)),
        )
        whole[:, slot] = np.where(slot > accepted, own, whole[:, slot])
    return whole


def looked_up(laws: dict, prefixes: np.ndarray, vocab: int) -> Float[np.ndarray, "rows vocab"]:
    """The distribution after each row's prefix."""
    length = prefixes.shape[1]
    table = np.array(
        [
            laws[tuple(int(t) for t in np.unravel_index(i, (vocab,) * length))]
            if length
            else laws[()]
            for i in range(vocab**length)
        ]
    )
    return table[prefixes @ vocab ** np.arange(length)[::-1]]


def drawn(probs: np.ndarray, uniforms: np.ndarray) -> Int[np.ndarray, " rows"]:
    """The token at which the running sum of each row exceeds its uniform."""
    running = probs.cumsum(1)
    return (running <= uniforms[:, None] * running[:, -1:]).sum(1)
