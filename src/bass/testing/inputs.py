"""Drawn inputs of the library's parts: distributions and drafts, requests, feedback.

Hypothesis draws sizes and a seed, so that it can make a failing case smaller. NumPy draws the
values by this seed.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from jaxtyping import Float

from bass.engine.requests import Request
from bass.ops.noise import row_key
from bass.records import Feedback
from bass.sampling_params import Sampling
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
SMALL = ((2, 3), (3, 2), (4, 1), (2, 2))  # sizes of vocabularies, and the drafts' greatest lengths
SEEDS = st.integers(0, 2**31 - 1)


def distribution(random: np.random.Generator, vocab: int) -> Float[np.ndarray, " vocab"]:
    """Small whole weights, so that zeros, one-hots and equal ratios are common."""
    weights = random.integers(0, 5, vocab)
    return weights / weights.sum() if weights.any() else np.eye(vocab)[random.integers(vocab)]


def problem(
    random: np.random.Generator, vocab: int, length: int, deterministic: bool, generic: bool = False
) -> Problem:
    """Distributions that depend on the prefix; draft and target unrelated, equal, disjoint, or
    mixed from both.

    generic: both are uniform over all distributions, so that none is special. They reveal most
    defects; small weights reveal those that need zeros or ties.
    """
    relation = random.choice(("unrelated", "equal", "disjoint", "mixed"))
    target, guess = {}, {}
    sizes = range(length + 1)
    for prefix in (p for n in sizes for p in itertools.product(range(vocab), repeat=n)):
        if generic:
            target[prefix], guess[prefix] = random.dirichlet(np.ones(vocab), 2)
            continue
        own, other = (distribution(random, vocab) for _ in range(2))
        apart = np.where(own > 0, 0, other)
        target[prefix] = own
        guess[prefix] = {
            "unrelated": other,
            "equal": own,
            "disjoint": apart / apart.sum() if apart.any() else other,
            "mixed": (own + other) / 2,
        }[relation]
    path = tuple(random.integers(0, vocab, length).tolist()) if deterministic else None
    return Problem(vocab, length, target, guess, path)


class Batch(NamedTuple):
    """Problems of one batch, whose drafts have up to k tokens. `seed`: of the noise."""

    problems: list
    k: int
    seed: int = 0


@st.composite
def batches(draw: Draw, deterministic: bool, generic: bool = False) -> Batch:
    """Problems with separate lengths, including 0, and a common k, which may exceed all lengths."""
    vocab, longest = draw(st.sampled_from(SMALL))
    lengths = draw(st.lists(st.integers(0, longest), min_size=1, max_size=3))
    random = np.random.default_rng(draw(SEEDS))
    rows = [problem(random, vocab, length, deterministic, generic) for length in lengths]
    return Batch(rows, max(lengths) + draw(st.integers(0, 2)), draw(st.integers(0, 9)))


@st.composite
def single_problems(
    draw: Draw, deterministic: bool, sizes: tuple[tuple[int, int], ...], generic: bool = False
) -> Batch:
    """One problem of one of these sizes of vocabulary and draft."""
    (vocab, length), random = draw(st.sampled_from(sizes)), np.random.default_rng(draw(SEEDS))
    return Batch([problem(random, vocab, length, deterministic, generic)], length)


@dataclass(frozen=True)
class RequestBatch:
    """Requests for an engine of `rows` rows, and the tokens that end a sequence.

    Request i has the i-th options of `MIXED`, in turn, unless the engine has options for all.
    """

    pairs: tuple  # of pairs: a prompt, and the number of new tokens
    rows: int
    eos: tuple = ()

    @classmethod
    def drawn(
        cls, seed: int, vocab: int, count: int, rows: int, sizes: tuple, least: int = 1
    ) -> "RequestBatch":
        """`count` requests of at least `least` new tokens each; some prompts are repeated."""
        random = np.random.default_rng((vocab, seed))
        prompts = [tuple(random.integers(0, vocab, size).tolist()) for size in sizes]
        drawn = zip(
            random.integers(len(prompts), size=count),
            random.integers(least, LONGEST + 1, size=count),
            strict=True,
        )
        return cls(tuple((prompts[i], int(new)) for i, new in drawn), rows)

    @property
    def requests(self) -> list[Request]:
        """The engine's requests."""
        return [
            Request(
                list(p), len(p) + new, row_key(0, list(p), i), i, sampling=MIXED[i % len(MIXED)]
            )
            for i, (p, new) in enumerate(self.pairs)
        ]

    def __str__(self) -> str:
        each = [f"prompt {list(prompt)} for {new} new token(s)" for prompt, new in self.pairs]
        return f"{self.rows} row(s), ends of sequence {list(self.eos)}; " + "; ".join(each)


@st.composite
def requests(draw: Draw, vocab: int, sizes: tuple = SIZES) -> RequestBatch:
    """One to six ragged requests, each with its own limit, for up to four rows, each used."""
    count = draw(st.integers(1, 6))
    rows = draw(st.integers(1, min(4, count)))
    batch = RequestBatch.drawn(draw(SEEDS), vocab, count, rows, sizes)
    ends = draw(st.sets(st.integers(0, vocab - 1), max_size=2))
    return replace(batch, eos=tuple(sorted(ends)))


@dataclass(frozen=True)
class StepEvents:
    """The events of a step, for any requested lengths: one entry per row, except in `new`."""

    new: list  # rows that are given a new prompt before it
    active: list
    # the most that can be drafted: a limit, a stop rule or a drafter cuts the draft there
    drafted: list
    accepted: list  # the most
    seconds: float
    lens: list  # tokens before the step

    def feedback(self, lengths: np.ndarray) -> Feedback:
        """The feedback of a step with these requested lengths."""
        active = np.array(self.active)
        drafted = np.minimum(lengths, self.drafted).astype(np.int64) * active
        accepted, lens = np.minimum(drafted, self.accepted), np.array(self.lens) * active
        return Feedback(drafted, accepted, active, self.seconds, lens=lens)


def step_events(batch: int, steps: int, seed: int) -> list[StepEvents]:
    """The events of a run of `batch` rows: idle rows, drafts of no tokens, rows with new prompts
    (all of them before the first step), and steps of any time.
    """
    random, events = np.random.default_rng(seed), []
    for step in range(steps):
        begins = random.random(batch) < (1 if not step else random.choice((0, 0.3)))
        drafted, accepted = random.choice((0, 1, 2, 5, 16), (2, batch)).tolist()
        active = (random.random(batch) < 0.7).tolist()
        seconds = float(random.choice((0.0, 1e-9, 0.004, 0.01, 0.02, 30.0)))
        new = np.flatnonzero(begins).tolist()
        lens = random.choice((1, 100, 5000), batch).tolist()
        events.append(StepEvents(new, active, drafted, accepted, seconds, lens))
    return events
