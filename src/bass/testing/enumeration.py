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

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int

from bass.interfaces import Verifier
from bass.records import Draft, Drafted, Noise
from bass.verifiers.block import Block
from bass.verifiers.exact_match import ExactMatch
from bass.verifiers.rejection import Rejection

Prefix = tuple[int, ...]
CPU = torch.device("cpu")
COSTS = (0.3, 0.5, 0.1)  # that trims read, in turn


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

    def guess(self, prefix: Prefix) -> Float[np.ndarray, " vocab"]:
        """The distribution of the draft's next token."""
        return (
            self.draft[prefix] if self.path is None else np.eye(self.vocab)[self.path[len(prefix)]]
        )

    def drafts(self) -> Iterator[tuple[Prefix, float]]:
        """Every draft of positive probability, with it."""
        for path in itertools.product(range(self.vocab), repeat=self.length):
            chance = np.prod([self.guess(path[:i])[token] for i, token in enumerate(path)])
            if chance:
                yield path, float(chance)

    def continued(self, law: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """The distribution of length + 1 tokens: `law`, an axis for each token, then the target."""
        while law.ndim <= self.length:
            following = laws_after(self.target, self.vocab, law.ndim)
            law = law[..., None] * following.reshape(*law.shape, self.vocab)
        return law

    def target_law(self) -> Float[np.ndarray, "..."]:
        """The target's joint distribution of length + 1 tokens."""
        return self.continued(np.ones(()))


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
    """The acceptance of each prefix (Sun et al., 2024, Algorithm 2), and the residual's edges."""
    cuts, joint = [], 1.0
    for i, token in enumerate(path):
        target, guess = problem.target[path[:i]], problem.guess(path[:i])
        residual = edges(joint * target - guess)
        passes = joint = min(1.0, joint * target[token] / guess[token])
        if i + 1 < len(path) and joint < 1:
            after = path[: i + 1]
            rest = np.maximum(joint * problem.target[after] - problem.guess(after), 0).sum()
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
    """The uniforms at which the token drawn from the positive part of `probs` changes, if any."""
    positive = np.maximum(probs, 0)
    return (np.cumsum(positive) / positive.sum()).tolist() if positive.sum() > 0 else []


Arguments = tuple[Draft, torch.Tensor, Noise]  # of a verifier


def verifier_input(
    problems: list[Problem],
    tokens: list[np.ndarray],
    uniforms: list[np.ndarray],
    k: int,
    junk: int = 0,
    garbage: tuple = (),
    order: slice = slice(None),
    device: torch.device = CPU,
) -> Arguments:
    """Rows of each problem, with drafts of up to `k` tokens; then those that `order` picks. A row
    keeps its key and its first position, from 1 to 199, which must not bias a verifier.

    `tokens`: of each problem, [rows, length]. `uniforms`: [rows, length + 1, 4]. Values beyond a
    row's own length are random, with the seed `junk`. `garbage`: numbers in place of the
    probabilities there.
    """
    random, vocab = np.random.default_rng(1000 + junk), problems[0].vocab
    each = [*map(len, tokens)]
    rows, probabilistic = sum(each), problems[0].path is None
    target, guess = (random.dirichlet(np.ones(vocab), (rows, n)) for n in (k + 1, k))
    if garbage:
        target, guess = np.resize(garbage, target.shape), np.resize(garbage, guess.shape)
    drafted = random.integers(0, vocab, (rows, k))
    noise = random.uniform(size=(rows, k + 1, 4))
    for problem, end, own, drawn in zip(problems, np.cumsum(each), tokens, uniforms, strict=True):
        here, length = slice(end - len(own), end), problem.length
        drafted[here, :length], noise[here, : length + 1] = own, drawn
        for slot in range(length + 1):
            target[here, slot] = looked_up(problem.target, own[:, :slot], vocab)
            if probabilistic and slot < length:
                guess[here, slot] = looked_up(problem.draft, own[:, :slot], vocab)
    lengths = np.repeat([problem.length for problem in problems], each)

    def on(array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array[order].copy(), device=device)

    keys = np.arange(rows)
    draft = Draft(on(drafted), on(guess) if probabilistic else None, on(lengths))
    return draft, on(target), Noise(on(keys), on(keys * 37 % 199 + 1), on(noise))


def laws_after(laws: dict, vocab: int, length: int) -> Float[np.ndarray, "prefixes vocab"]:
    """The distributions after all prefixes of this length, in their order."""
    return np.array([laws[p] for p in itertools.product(range(vocab), repeat=length)])


def looked_up(laws: dict, before: np.ndarray, vocab: int) -> Float[np.ndarray, "rows vocab"]:
    """The distribution after each row's prefix."""
    length = before.shape[1]
    return laws_after(laws, vocab, length)[before @ vocab ** np.arange(length)[::-1]]


@dataclass(frozen=True)
class Boxes:
    """The boxes of a problem as rows of a batch. Axis `slots` is length + 1."""

    tokens: Int[np.ndarray, "rows length"]
    low: Float[np.ndarray, "rows slots two"]  # accept, residual: the boxes' lower corners
    high: Float[np.ndarray, "rows slots two"]
    drawn: Float[np.ndarray, "rows slots"]  # uniforms of the draft stream
    weight: Float[np.ndarray, " rows"]


def boxes(problem: Problem, cuts: Cuts) -> Boxes:
    """Every draft of positive probability times every box of its noise."""
    rows = []
    for path, chance in problem.drafts():
        guesses = [(problem.guess(path[:i]), token) for i, token in enumerate(path)]
        uniforms = [guess[:token].sum() + guess[token] / 2 for guess, token in guesses]
        cells = [_cells(breakpoints) for slot in cuts(problem, path) for breakpoints in slot]
        for box in itertools.product(*cells):
            rows.append((path, np.reshape(box, (-1, 2, 2)), [*uniforms, 0.5], chance))
    tokens, corners, drawn, chances = map(np.array, zip(*rows, strict=True))
    low, high = corners[..., 0], corners[..., 1]
    weight = chances * (high - low).prod((1, 2))
    return Boxes(tokens.astype(np.int64), low, high, drawn, weight)


def _cells(breakpoints: list[float]) -> list[tuple[float, float]]:
    """The intervals into which the breakpoints cut 0..1, but those thinner than rounding."""
    cut = [0.0, *sorted(b for b in breakpoints if 0 < b < 1), 1.0]
    return [(a, b) for a, b in itertools.pairwise(cut) if b - a > 1e-12]


def judge(
    verifier: Verifier,
    problems: list[Problem],
    k: int,
    device: torch.device = CPU,
    cuts: Cuts | None = None,
    place: Callable[[tuple[int, ...]], np.ndarray] = lambda shape: np.full(shape, 0.5),
) -> list[tuple[Boxes, Int[np.ndarray, "rows window"], Int[np.ndarray, " rows"]]]:
    """Each problem's boxes, with the emitted tokens (then -1) and the number of accepted ones, for
    all problems as one batch of drafts of up to k tokens.

    The problems share a vocabulary, and their drafts are all probabilistic or all deterministic.
    `cuts`: for a verifier without an entry in `CUTS`. `place`: fractions in 0..1 of a shape, which
    say where in each box its point lies; its middle by default.
    """
    rows = [boxes(problem, CUTS[type(verifier)] if cuts is None else cuts) for problem in problems]
    spare = np.random.default_rng(0)
    uniforms = []
    for row in rows:
        points = row.low + (row.high - row.low) * place(row.low.shape)
        uniforms.append(np.dstack((row.drawn, points, spare.uniform(size=row.drawn.shape))))
    tokens = [row.tokens for row in rows]
    verdict = verifier(*verifier_input(problems, tokens, uniforms, k, device=device))
    accepted, slots = verdict.accepted.cpu().numpy(), np.arange(k + 1)
    emitted = np.where(slots <= accepted[:, None], verdict.tokens.cpu().numpy(), -1)
    ends = np.cumsum([len(r.weight) for r in rows])[:-1]
    return [*zip(rows, np.split(emitted, ends), np.split(accepted, ends), strict=True)]


def constant_in_boxes(
    verifier: Verifier,
    problems: list[Problem],
    k: int,
    device: torch.device = CPU,
    cuts: Cuts | None = None,
    seed: int = 0,
) -> bool:
    """Whether random points of each box, and points near its corners, have its middle's verdict."""
    random = np.random.default_rng(seed)
    places = (
        lambda shape: np.full(shape, 0.5),
        lambda shape: random.uniform(0.01, 0.99, shape),
        lambda shape: random.choice([1e-6, 1 - 1e-6], shape),
    )
    verdicts = (judge(verifier, problems, k, device, cuts, place) for place in places)
    middle, *others = ([tokens for _, tokens, _ in verdict] for verdict in verdicts)
    return all(all(map(np.array_equal, middle, other)) for other in others)


def output_laws(
    verifier: Verifier,
    problems: list[Problem],
    k: int,
    device: torch.device = CPU,
    cuts: Cuts | None = None,
) -> list[Float[np.ndarray, "..."]]:
    """Each problem's distribution of length + 1 tokens: those emitted, then the target's."""
    laws = []
    judged = judge(verifier, problems, k, device, cuts)
    for problem, (part, tokens, accepted) in zip(problems, judged, strict=True):
        assert (accepted >= 0).all(), "a negative number of tokens was accepted"
        assert (accepted <= problem.length).all(), "more tokens were accepted than the row's length"
        laws.append(law_of(problem, tokens, accepted, part.weight))
    return laws


def law_of(
    problem: Problem, tokens: np.ndarray, accepted: np.ndarray, weight: np.ndarray
) -> Float[np.ndarray, "..."]:
    """The distribution of length + 1 tokens from weighted verdicts."""
    law = np.zeros((problem.vocab,) * (problem.length + 1))
    for count in range(1, min(problem.length + 1, tokens.shape[1]) + 1):
        some = accepted == count - 1
        mass = np.zeros((problem.vocab,) * count)
        np.add.at(mass, tuple(tokens[some, :count].T), weight[some])
        law += problem.continued(mass)
    return law


def trim_inputs(
    problems: list[Problem], k: int, seed: int = 0, ends: float = 0.0
) -> Iterator[tuple[list[Prefix], float, Drafted]]:
    """Every combination of the rows' drafts: the drafts, their probability, and what a trim reads,
    random by `seed` for the past and beyond a row's length.

    ends: a draft ends after the first slot whose largest probability is below it, as by the stop
    rule `confidence`. A row's length may so tell of its tokens.
    """
    random, shape = np.random.default_rng(seed), (len(problems), k)
    tried = random.integers(0, 6, shape)
    counts = torch.tensor(np.array((tried, random.integers(tried + 1))), dtype=torch.float32)
    for drafts in itertools.product(*(problem.drafts() for problem in problems)):
        tokens = [np.array([path], dtype=np.int64) for path, _ in drafts]
        noise = [np.full((1, len(path) + 1, 4), 0.5) for path, _ in drafts]
        draft, *_ = verifier_input(problems, tokens, noise, k, seed)
        lengths = [
            next((i + 1 for i in range(len(path)) if one.guess(path[:i]).max() < ends), len(path))
            for one, (path, _) in zip(problems, drafts, strict=True)
        ]
        lengths = torch.minimum(draft.lengths, torch.tensor(lengths))
        cost = torch.tensor(COSTS[seed % len(COSTS)])
        drafted = Drafted(lengths, counts[0], counts[1], draft.probs, draft.tokens, None, cost)
        yield [path for path, _ in drafts], float(np.prod([p for _, p in drafts])), drafted


def trimmed_law(
    trim: Callable[[Drafted], torch.Tensor],
    verifier: Verifier,
    problems: list[Problem],
    seed: int,
    ends: float = 0.0,
) -> Float[np.ndarray, "..."]:
    """The joint distribution of length + 1 tokens of each row, the axes of the first row first.

    trim: a `DraftTrim`, which is given tokens and distributions in any case. ends: as of
    `trim_inputs`.
    """
    laws: list[dict] = [{} for _ in problems]  # by the verified tokens of the row's draft
    for own, problem in zip(laws, problems, strict=True):
        for kept in range(problem.length + 1):
            shorter = replace(problem, length=kept, path=problem.path and problem.path[:kept])
            [(part, tokens, accepted)] = judge(verifier, [shorter], kept)
            for path, chance in shorter.drafts():
                same = (part.tokens == path).all(1)
                own[path] = law_of(problem, tokens, accepted, part.weight * same) / chance
    total = np.zeros(())
    longest = max(problem.length for problem in problems)
    for paths, chance, drafted in trim_inputs(problems, longest, seed, ends):
        rows = zip(laws, paths, trim(drafted).tolist(), strict=True)
        total = total + chance * independent([own[path[:kept]] for own, path, kept in rows])
    return total


def independent(laws: list[Float[np.ndarray, "..."]]) -> Float[np.ndarray, "..."]:
    """The joint distribution of independent rows."""
    return functools.reduce(np.multiply.outer, laws)
