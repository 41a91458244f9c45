"""The exact output distribution of a verifier: enumerates every draft and every cell of its noise,
weighted in float64.

A verifier is a function of a draft and of uniforms. Fix the draft, its tokens d1..dL and their
distributions. The verdict can change only where a uniform crosses a breakpoint of the verifier
(`CUTS`): an acceptance probability for the accept stream at slot i, the edges of the running sums
that it may draw from for the residual stream. The breakpoints cut the cube of all accept and
residual uniforms into boxes. One point of each box, with the box's volume as its weight, replaces
the integral over the noise; the sum over all drafts, with their probability under the draft model,
replaces the rest. A test compares random points of each box, so it does not assume that the verdict
is constant there.

The draft stream's uniform of slot i has the value that drew d_i, so a verifier that uses it again
fails the test.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int

from bass.interfaces import Verifier
from bass.records import Draft, Noise, Verdict
from bass.verifiers.block import Block
from bass.verifiers.exact_match import ExactMatch
from bass.verifiers.rejection import Rejection

Prefix = tuple[int, ...]


@dataclass(frozen=True)
class Problem:
    """One row's models: a distribution for every prefix of drafted tokens, and the row's draft
    length.

    `path` makes the draft deterministic: these tokens, without reported distributions.
    """

    vocab: int
    length: int
    # Bare containers: a type checker would check a random item with the global generator, which
    # Hypothesis forbids.
    target: dict  # from prefixes of 0..length tokens to float64 [vocab]
    draft: dict  # from prefixes of 0..length-1 tokens
    path: tuple | None = None
    by_last: bool = False  # the distributions after all prefixes that end alike are the same
    name: str = ""  # replaces the distributions in messages

    def guess(self, prefix: Prefix) -> Float[np.ndarray, " vocab"]:
        """The distribution of the draft's next token."""
        return (
            self.draft[prefix] if self.path is None else np.eye(self.vocab)[self.path[len(prefix)]]
        )

    def target_law(self) -> Float[np.ndarray, "..."]:
        """The target's joint distribution of length + 1 tokens."""
        law = np.zeros((self.vocab,) * (self.length + 1))
        for tokens in itertools.product(range(self.vocab), repeat=self.length + 1):
            law[tokens] = np.prod(
                [self.target[tokens[:i]][tokens[i]] for i in range(self.length + 1)]
            )
        return law


# The breakpoints of the accept and of the residual stream at slots 0..length, given the drafted
# tokens.
Cuts = Callable[[Problem, Prefix], list[tuple[list[float], list[float]]]]


def rejection_cuts(problem: Problem, path: Prefix) -> list[tuple[list[float], list[float]]]:
    """The acceptance ratio, and the edges of the residual or of the target."""
    cuts = []
    for i, token in enumerate(path):
        target, guess = problem.target[path[:i]], problem.guess(path[:i])
        cuts.append(([target[token] / guess[token]], [*edges(target), *edges(target - guess)]))
    return [*cuts, ([], edges(problem.target[path]))]


def block_cuts(problem: Problem, path: Prefix) -> list[tuple[list[float], list[float]]]:
    """The conditional acceptance of each prefix (Sun et al., 2024, Algorithm 2), and the residual
    of its joint probability.
    """
    cuts, joint = [], 1.0
    for i, token in enumerate(path):
        target, guess = problem.target[path[:i]], problem.guess(path[:i])
        residual = edges(joint * target - guess)
        passes = joint = min(1.0, joint * target[token] / guess[token])
        if i + 1 < len(path) and joint < 1:
            rest = np.maximum(
                joint * problem.target[path[: i + 1]] - problem.guess(path[: i + 1]), 0
            ).sum()
            passes = rest / (rest + 1 - joint)
        cuts.append(([passes], [*edges(target), *residual]))
    return [*cuts, ([], edges(problem.target[path]))]


def exact_match_cuts(problem: Problem, path: Prefix) -> list[tuple[list[float], list[float]]]:
    """The edges of the target."""
    return [([], edges(problem.target[path[:i]])) for i in range(len(path) + 1)]


CUTS: dict[type, Cuts] = {
    Rejection: rejection_cuts,
    Block: block_cuts,
    ExactMatch: exact_match_cuts,
}


def edges(probs: Float[np.ndarray, " vocab"]) -> list[float]:
    """The uniforms at which the drawn token changes, for the positive part of `probs`; none if it
    is empty.
    """
    positive = np.maximum(probs, 0)
    return (np.cumsum(positive) / positive.sum()).tolist() if positive.sum() > 0 else []


@dataclass(frozen=True)
class Rows:
    """The boxes of a problem as rows of a batch. Axis `slots` is length + 1."""

    tokens: Int[np.ndarray, "rows length"]
    low: Float[np.ndarray, "rows slots two"]  # accept, residual: the boxes' lower corners
    high: Float[np.ndarray, "rows slots two"]
    drawn: Float[np.ndarray, "rows slots"]  # uniforms of the draft stream
    weight: Float[np.ndarray, " rows"]


def boxes(problem: Problem, cuts: Cuts) -> Rows:
    """Every draft of positive probability times every box of its noise."""
    tokens, low, high, drawn, weight = [], [], [], [], []
    for path in (
        itertools.product(range(problem.vocab), repeat=problem.length)
        if problem.path is None
        else (problem.path,)
    ):
        probability = float(
            np.prod([problem.guess(path[:i])[path[i]] for i in range(problem.length)])
        )
        if probability == 0:
            continue
        uniforms = []
        for i in range(problem.length):
            running = np.concatenate(([0.0], np.cumsum(problem.guess(path[:i]))))
            uniforms.append((running[path[i]] + running[path[i] + 1]) / 2)
        cells = [_cells(breakpoints) for slot in cuts(problem, path) for breakpoints in slot]
        for box in itertools.product(*cells):
            corners = np.array(box).reshape(problem.length + 1, 2, 2)
            tokens.append(path)
            low.append(corners[..., 0])
            high.append(corners[..., 1])
            drawn.append([*uniforms, 0.5])
            weight.append(probability * np.prod(corners[..., 1] - corners[..., 0]))
    return Rows(
        np.array(tokens, dtype=np.int64).reshape(len(tokens), problem.length),
        np.array(low),
        np.array(high),
        np.array(drawn),
        np.array(weight),
    )


def _cells(breakpoints: list[float]) -> list[tuple[float, float]]:
    """The intervals into which the breakpoints cut 0..1; those thinner than rounding are
    dropped.
    """
    cut = [0.0, *sorted(b for b in breakpoints if 0 < b < 1), 1.0]
    return [(a, b) for a, b in itertools.pairwise(cut) if b - a > 1e-12]


def judge(
    verifier: Verifier,
    problems: list[Problem],
    k: int,
    inside: Callable[[Rows], Float[np.ndarray, "rows slots two"]],
    device: torch.device,
    cuts: Cuts | None = None,
) -> tuple[list[Rows], Verdict]:
    """The verdict on all boxes of all problems as one batch of drafts of up to k tokens, at the
    points that `inside` picks.

    The problems share a vocabulary, and their drafts are all probabilistic or all deterministic.
    Values beyond a row's own length (tokens, distributions, noise) are random, as they must not
    matter. `cuts`: for a verifier without an entry in `CUTS`.
    """
    vocab, sure = problems[0].vocab, problems[0].path is not None
    rows = [boxes(problem, CUTS[type(verifier)] if cuts is None else cuts) for problem in problems]
    count = sum(len(r.weight) for r in rows)
    random = np.random.default_rng(0)
    tokens = random.integers(0, vocab, (count, k))
    target_probs = random.dirichlet(np.ones(vocab), (count, k + 1))
    draft_probs = random.dirichlet(np.ones(vocab), (count, k))
    uniforms = random.uniform(size=(count, k + 1, 4))
    first = 0
    for problem, part in zip(problems, rows, strict=True):
        n, here = problem.length, slice(first, first + len(part.weight))
        tokens[here, :n] = part.tokens
        uniforms[here, : n + 1, 0] = part.drawn
        uniforms[here, : n + 1, 1:3] = inside(part)
        for i in range(n + 1):
            target_probs[here, i] = [
                problem.target[tuple(path[:i])] for path in part.tokens.tolist()
            ]
            if i < n and not sure:
                draft_probs[here, i] = [
                    problem.draft[tuple(path[:i])] for path in part.tokens.tolist()
                ]
        first += len(part.weight)

    def on(array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, device=device)

    lengths = np.concatenate(
        [np.full(len(r.weight), p.length) for p, r in zip(problems, rows, strict=True)]
    )
    draft = Draft(on(tokens), None if sure else on(draft_probs), on(lengths))
    return rows, verifier(
        draft,
        on(target_probs),
        Noise(on(np.arange(count)), on(np.arange(count) * 37 % 199 + 1), on(uniforms)),
    )


def middle(rows: Rows) -> Float[np.ndarray, "rows slots two"]:
    """The middle of every box."""
    return (rows.low + rows.high) / 2


def output_laws(
    verifier: Verifier,
    problems: list[Problem],
    k: int,
    device: torch.device,
    cuts: Cuts | None = None,
) -> list[Float[np.ndarray, "..."]]:
    """Each problem's distribution of its next length + 1 tokens: those that the verifier emits,
    then the target's.
    """
    rows, verdict = judge(verifier, problems, k, middle, device, cuts)
    emitted, accepted = verdict.tokens.cpu().numpy(), verdict.accepted.cpu().numpy()
    laws, first = [], 0
    for problem, part in zip(problems, rows, strict=True):
        here = slice(first, first + len(part.weight))
        laws.append(_law(problem, emitted[here], accepted[here], part.weight))
        first += len(part.weight)
    return laws


def mean_accepted(
    verifier: Verifier, problems: list[Problem], k: int, device: torch.device
) -> list[float]:
    """Each problem's expected number of accepted tokens."""
    rows, verdict = judge(verifier, problems, k, middle, device)
    accepted = np.split(
        verdict.accepted.cpu().numpy(), np.cumsum([len(r.weight) for r in rows])[:-1]
    )
    return [float(a @ r.weight) for a, r in zip(accepted, rows, strict=True)]


def _law(
    problem: Problem, emitted: np.ndarray, accepted: np.ndarray, weight: np.ndarray
) -> Float[np.ndarray, "..."]:
    law = np.zeros((problem.vocab,) * (problem.length + 1))
    assert (accepted >= 0).all(), "a negative number of tokens was accepted"
    assert (accepted <= problem.length).all(), "more tokens were accepted than the row's length"
    for count in range(1, problem.length + 2):
        some = accepted == count - 1
        mass = np.zeros((problem.vocab,) * count)
        np.add.at(mass, tuple(emitted[some, :count].T), weight[some])
        rest = problem.length + 1 - count
        for head in np.argwhere(mass > 0):
            for tail in itertools.product(range(problem.vocab), repeat=rest):
                whole = (*head.tolist(), *tail)
                onwards = np.prod(
                    [problem.target[whole[:i]][whole[i]] for i in range(count, problem.length + 1)]
                )
                law[whole] += mass[tuple(head)] * onwards
    return law
