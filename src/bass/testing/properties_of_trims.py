"""The properties of every trim."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from bass.api.resolve import make
from bass.interfaces import DraftTrim
from bass.records import Drafted
from bass.sampling_params import Sampling
from bass.testing import engine
from bass.testing.checking import COSTLY, Checker
from bass.testing.doubles import ByRow
from bass.testing.engine import Setup
from bass.testing.enumeration import independent, trim_inputs, trimmed_law
from bass.testing.inputs import SEEDS, problem
from bass.verifiers.rejection import Rejection

ANSWER = "kept lengths are integers of shape [batch], each from 0 to the row's own length."
MOST = "all rows together keep at most `most(rows, k)` tokens."
PURE = "a trim is a function: the same draft gets the same answer, and is not written to."
BEYOND = "what lies beyond a row's own length changes nothing."
OWN = "with `batch_invariant`, a row's answer depends neither on its place nor on the other rows."
DEVICE = "a trim reads no value on the host, and makes its tensors on the device of the draft."
LAW = (
    "the tokens of all rows are distributed jointly as the target's own: what is kept of a row "
    "depends on nothing that its next token decides."
)
# rows, size of the vocabulary, longest draft
SIZES = ((2, 2, 2), (2, 3, 2), (3, 2, 2), (2, 2, 3), (1, 2, 3))
TOLERANCE = 1e-12  # float64 sums of up to some 10^4 terms


@dataclass(frozen=True)
class TrimCase:
    """Rows of one batch: one length for each, and how their distributions are drawn."""

    vocab: int
    lengths: tuple
    deterministic: bool
    generic: bool
    seed: int

    @classmethod
    def drawn(cls, size: tuple, deterministic: bool, generic: bool, seed: int) -> "TrimCase":
        """Half of the batches have mixed lengths."""
        (rows, vocab, k), random = size, np.random.default_rng(seed)
        lengths = random.integers(0, k + 1, rows) if random.random() < 0.5 else [k] * rows
        return cls(vocab, (*map(int, lengths),), deterministic, generic, seed)

    @property
    def problems(self) -> list:
        """The models of the rows."""
        random = np.random.default_rng(self.seed)
        kind = self.deterministic, self.generic
        return [problem(random, self.vocab, length, *kind) for length in self.lengths]


def check_trim(trim: Any, examples: int = 60, seed: int = 0) -> None:
    """Test that a trim keeps its contract, and that the output is exact with it.

    `trim`: as in `bass.load(trim=...)`. For drawn batches of 1 to 3 rows with every combination of
    their drafts: integers of the right shape and range, no more than `most`; the same answer for
    repeated calls; no writes to its argument; independence of what lies beyond a row's length, of
    the other rows if `batch_invariant`, and of the tokens unless `reads_tokens`; no host reads.
    With `lossless`, the *joint* output distribution of all rows, with the verifier `rejection`, is
    computed for each batch, and equals the target's within 1e-12, without chance. Then in the
    engine: greedy decoding equals the recomputed reference, and the joint distribution of two
    tokens is the target's, with a false-failure rate of 1e-6. `seed`: of cases and samples.

    Raises `ExactnessError`; `OptionError` if `trim` is no trim.
    """
    made: DraftTrim = make("trim", trim)
    checker = Checker(type(made).__name__, examples, seed)
    cases = st.builds(TrimCase.drawn, st.sampled_from(SIZES), st.booleans(), st.booleans(), SEEDS)
    checker.for_all(cases, lambda case: answers(checker, made, case), most=COSTLY)
    if made.lossless:
        sampled = st.builds(
            TrimCase.drawn, st.sampled_from(SIZES), st.just(False), st.booleans(), SEEDS
        )
        checker.for_all(sampled, lambda case: law(checker, made, case), most=COSTLY)
    setup = Setup(engine.WHOLE_MEMORY, engine.CPU, policy=ByRow(4), trim=made)
    engine.require_greedy(checker, setup, examples // 8)
    if made.lossless:
        engine.require_law(checker, setup.but(model=engine.NARROW_TABLE), Sampling())


def answers(checker: Checker, trim: DraftTrim, case: TrimCase) -> None:
    """Check all properties but that of the output distribution."""
    k = max(case.lengths)
    if not k:
        return
    *_, (_, _, drafted) = trim_inputs(case.problems, k, case.seed)
    reads = {"probs": trim.reads_probs, "tokens": trim.reads_tokens}
    drafted = replace(drafted, **{name: None for name, read in reads.items() if not read})

    def call(given: Drafted) -> Tensor:
        before = mapped(given, Tensor.clone)
        answer = trim(given)
        for one in fields(given):
            old, new = getattr(before, one.name), getattr(given, one.name)
            same = old is None or torch.equal(old.nan_to_num(), new.nan_to_num())
            checker.require(PURE, same, "the draft, as before", f"other values in `{one.name}`")
        rows = given.lengths
        kind = isinstance(answer, Tensor) and answer.shape == rows.shape
        fits = kind and not (answer.is_floating_point() or answer.dtype == torch.bool)
        fits = fits and bool(((answer >= 0) & (answer <= rows)).all())
        checker.require(ANSWER, fits, f"integers up to {rows.tolist()}", answer)
        most = trim.most(len(rows), k)
        checker.require(MOST, int(answer.sum()) <= most, f"at most {most}", answer)
        return answer.clone()

    answer = call(drafted)
    checker.equal(PURE, call(drafted), answer, "when called again")
    slots = torch.arange(k) < drafted.lengths[:, None]
    for value in (0.0, torch.nan, torch.inf):
        probs = drafted.probs
        if probs is not None:
            probs = torch.where(slots[..., None], probs, value)
        checker.equal(BEYOND, call(replace(drafted, probs=probs)), answer, f"with {value} there")
    if trim.batch_invariant:
        rows = [*range(len(answer))]
        for order in (rows[::-1], *([row] for row in rows)):
            some = mapped(drafted, lambda tensor, order=order: tensor[order])
            checker.equal(OWN, call(some), answer[order], f"from the rows {order}")
    try:
        found = trim(mapped(drafted, lambda tensor: tensor.to("meta")))
        holds, text = found.device.type == "meta", f"a tensor on `{found.device}`"
    except (RuntimeError, NotImplementedError) as error:
        holds, text = False, str(error).partition("\n")[0]
    checker.require(DEVICE, holds, "no host read", text)


def mapped(drafted: Drafted, function: Any) -> Drafted:
    """The record with a function of each tensor."""
    values = vars(drafted).items()
    return replace(drafted, **{name: function(one) for name, one in values if one is not None})


def law(checker: Checker, trim: DraftTrim, case: TrimCase) -> None:
    """Check the joint output distribution of all rows by enumeration."""
    problems = case.problems
    found = trimmed_law(trim, Rejection(), problems, seed=case.seed)
    expected = independent([one.target_law() for one in problems])
    apart = np.abs(found - expected).sum() / 2
    difference = expected - found
    checker.require(
        LAW,
        bool(np.abs(difference).max() <= TOLERANCE),
        f"probabilities {engine.cells(expected, difference)}",
        f"probabilities {engine.cells(found, difference)}; total variation {apart:.4f}",
    )
