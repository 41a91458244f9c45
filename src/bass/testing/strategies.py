"""Hypothesis strategies for inputs of the library's parts: distributions, drafts, requests,
feedback.

Drawn values are annotated with bare containers: a type checker would check a random item of a
`list[int]` with the global generator, which Hypothesis forbids while it draws.
"""

import itertools
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from bass.engine.requests import Request
from bass.ops.noise import row_key
from bass.records import Feedback
from bass.sampling import Sampling
from bass.testing.checking import shown
from bass.testing.enumeration import Problem

Draw = Callable[[st.SearchStrategy[Any]], Any]  # as of `st.composite` and `st.data()`
LONGEST = 12  # new tokens of a drawn request
SIZES = (1, 2, 3, 5, 8)  # tokens of the prompts that requests are drawn from
# Of the rows of one batch: every sampling option, and those that depend on what was generated with
# each of the others. Five, so that no policy with a period of four gives one of them one length.
MIXED = (
    Sampling(temperature=0.7, presence_penalty=1.5),
    Sampling(top_p=0.8, frequency_penalty=1.0),
    Sampling(top_k=2, min_p=0.2, repetition_penalty=1.6),
    Sampling(temperature=1.3, min_new_tokens=3),
    Sampling(temperature=0, frequency_penalty=0.5),
)
GENERIC = ((3, 2), (2, 4), (24, 1))  # sizes of vocabularies, and the drafts' lengths


@st.composite
def distributions(draw: Draw, vocab: int) -> np.ndarray:
    """Small whole weights, so that zeros, one-hots and equal ratios are common."""
    weights = draw(st.lists(st.integers(0, 4), min_size=vocab, max_size=vocab).filter(any))
    return np.array(weights, dtype=np.float64) / sum(weights)


def prefixes(vocab: int, length: int) -> list[tuple[int, ...]]:
    """All prefixes of 0 to `length` tokens."""
    return [p for n in range(length + 1) for p in itertools.product(range(vocab), repeat=n)]


def paths(vocab: int, length: int, deterministic: bool) -> st.SearchStrategy[Any]:
    """The tokens of a deterministic draft; None for other drafts."""
    tokens = st.lists(st.integers(0, vocab - 1), min_size=length, max_size=length)
    return tokens.map(tuple) if deterministic else st.none()


@st.composite
def problems(draw: Draw, vocab: int, length: int, deterministic: bool) -> Problem:
    """Distributions that depend on the prefix; draft and target unrelated, equal, disjoint, or
    mixed from both.
    """
    relation = draw(st.sampled_from(("unrelated", "equal", "disjoint", "mixed")))
    target, guess = {}, {}
    for prefix in prefixes(vocab, length):
        target[prefix] = draw(distributions(vocab))
        other = draw(distributions(vocab))
        apart = np.where(target[prefix] > 0, 0, other)
        guess[prefix] = {
            "unrelated": other,
            "equal": target[prefix],
            "disjoint": apart / apart.sum() if apart.any() else other,
            "mixed": (target[prefix] + other) / 2,
        }[relation]
    return Problem(vocab, length, target, guess, draw(paths(vocab, length, deterministic)))


@st.composite
def batches(draw: Draw, deterministic: bool) -> tuple:
    """Problems of one batch with separate lengths, including 0, and a common k, which may exceed
    all lengths.
    """
    vocab, longest = draw(st.sampled_from(((2, 3), (3, 2), (4, 1), (2, 2))))
    lengths = draw(st.lists(st.integers(0, longest), min_size=1, max_size=3))
    rows = [draw(problems(vocab, length, deterministic)) for length in lengths]
    return rows, max(lengths) + draw(st.integers(0, 2))


@st.composite
def long_batches(draw: Draw, deterministic: bool, longest: int) -> tuple:
    """One problem of two tokens whose draft is long.

    Its distributions depend only on the last token, so a message shows them in one line.
    """
    length, known = draw(st.integers(4, longest)), draw(problems(2, 1, False))
    target, guess = (
        {prefix: law[prefix[-1:]] for prefix in prefixes(2, length)}
        for law in (known.target, known.draft)
    )
    path = draw(paths(2, length, deterministic))
    return [Problem(2, length, target, guess, path, by_last=True)], length


@st.composite
def generic_batches(draw: Draw, deterministic: bool) -> tuple:
    """Problems of each size of `GENERIC`, uniform over all distributions, so that none is special.

    They reveal most defects; the small weights of `problems` reveal those that need zeros or ties.
    """
    seed = draw(st.integers(0, 2**31 - 1))
    vocab, length = GENERIC[seed % len(GENERIC)]
    random, every = np.random.default_rng(seed), prefixes(vocab, length)
    target, guess = (
        dict(zip(every, random.dirichlet(np.ones(vocab), len(every)), strict=True))
        for _ in range(2)
    )
    path = tuple(random.integers(0, vocab, length).tolist()) if deterministic else None
    name = f"distributions over {vocab} tokens of seed {seed}"
    return [Problem(vocab, length, target, guess, path, name=name)], length


def columns(options: Sampling) -> tuple[float, ...]:
    """The options as `Request.sampling`."""
    return tuple(map(float, astuple(options)))


@dataclass(frozen=True)
class RequestBatch:
    """Requests for an engine of `rows` rows, and the tokens that end a sequence.

    Request i has the i-th options of `MIXED`, in turn, unless the engine has options for all.
    """

    pairs: tuple  # of pairs: a prompt, and the number of new tokens
    rows: int
    eos: tuple = ()

    @property
    def requests(self) -> list[Request]:
        """The engine's requests."""
        options = [columns(MIXED[i % len(MIXED)]) for i in range(len(self.pairs))]
        return [
            Request(list(p), len(p) + new, row_key(0, list(p), i), i, sampling=options[i])
            for i, (p, new) in enumerate(self.pairs)
        ]

    def __str__(self) -> str:
        each = [f"prompt {list(prompt)} for {new} new token(s)" for prompt, new in self.pairs]
        return f"{self.rows} row(s), ends of sequence {list(self.eos)}; " + "; ".join(each)


@st.composite
def requests(draw: Draw, vocab: int, sizes: tuple = SIZES) -> RequestBatch:
    """Ragged prompts, some repeated, each with its own limit, for one to four rows; at least as
    many requests as rows.
    """
    random = np.random.default_rng(vocab)
    prompts = st.sampled_from([tuple(random.integers(0, vocab, n).tolist()) for n in sizes])
    pairs = st.tuples(prompts, st.integers(1, LONGEST))
    chosen = draw(st.lists(pairs, min_size=1, max_size=6))
    ends = draw(st.sets(st.integers(0, vocab - 1), max_size=2))
    rows = draw(st.integers(1, min(4, len(chosen))))
    return RequestBatch(tuple(chosen), rows, tuple(sorted(ends)))


def many_requests(vocab: int, seed: int, sizes: tuple = SIZES) -> RequestBatch:
    """Twelve requests for four rows: one large batch reveals more of the rare defects than several
    small ones.
    """
    random = np.random.default_rng((vocab, seed))
    prompts = [tuple(random.integers(0, vocab, size).tolist()) for size in (*sizes, *sizes)]
    pairs = [
        (prompts[random.integers(len(prompts))], int(random.integers(LONGEST // 2, LONGEST + 1)))
        for _ in range(12)
    ]
    return RequestBatch(tuple(pairs), 4)


@dataclass(frozen=True)
class StepEvents:
    """The events of one step for a policy, for any requested lengths.

    Fields have one entry per row, except `new`.
    """

    new: tuple  # rows that are given a new prompt before it
    active: tuple
    # the most that can be drafted: a limit, a stop rule or a drafter cuts the draft there
    drafted: tuple
    accepted: tuple  # the most
    seconds: float

    def feedback(self, lengths: np.ndarray) -> Feedback:
        """The feedback of a step with these requested lengths."""
        active = np.array(self.active)
        drafted = np.minimum(lengths, self.drafted).astype(np.int64) * active
        return Feedback(drafted, np.minimum(drafted, self.accepted), active, self.seconds)

    def __str__(self) -> str:
        begins = f"rows {list(self.new)} begin a new prompt, then " if self.new else ""
        return (
            f"{begins}active {[int(a) for a in self.active]}, at most {list(self.drafted)} drafted "
            f"and {list(self.accepted)} accepted in {shown(self.seconds)} s"
        )


@dataclass(frozen=True)
class History:
    """The events of a run for a policy of `batch` rows."""

    batch: int
    steps: tuple

    def __str__(self) -> str:
        steps = (f"step {i}: {events}" for i, events in enumerate(self.steps, 1))
        return f"{self.batch} row(s); {'; '.join(steps)}"


@st.composite
def feedback_sequences(
    draw: Draw, most_rows: int = 8, most_steps: int = 12, most_tokens: int = 16
) -> History:
    """Idle rows, drafts of no tokens, rows with new prompts (all of them before the first step),
    and steps of any time.
    """
    batch = draw(st.integers(1, most_rows))
    tokens = st.sampled_from((most_tokens, 0, 1, 2, 5))
    # Draws do not depend on the number of rows, so that Hypothesis can shrink it: rows repeat the
    # drawn values.
    row = st.tuples(st.sampled_from((True, False)), tokens, tokens)
    steps = []
    for step in range(draw(st.integers(1, most_steps))):
        again = draw(st.sets(st.integers(0, most_rows - 1), max_size=most_rows))
        new = tuple(row for row in range(batch) if row in again or not step)
        drawn = draw(st.lists(row, min_size=1, max_size=most_rows))
        active, most, accepted = zip(*(drawn[b % len(drawn)] for b in range(batch)), strict=True)
        seconds = draw(st.sampled_from((0.01, 0.0, 1e-9, 0.004, 0.02, 30.0)))
        steps.append(StepEvents(new, active, most, accepted, seconds))
    return History(batch, tuple(steps))
