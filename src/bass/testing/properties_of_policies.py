"""The properties of every draft-length policy, of every stop rule, and of every trim."""

import copy
import itertools
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from bass.api.plan import check_max_length
from bass.api.resolve import make
from bass.drafters import Choice, ModelDraft
from bass.interfaces import DraftLengthPolicy, DraftTrim, StopRule
from bass.interfaces.policy import checked_lengths
from bass.records import Drafted, copied
from bass.sampling_params import Sampling
from bass.testing import engine
from bass.testing.checking import COSTLY, Checker, shown
from bass.testing.doubles import ByRow
from bass.testing.engine import Setup
from bass.testing.enumeration import Problem, independent, trim_inputs, trimmed_law
from bass.testing.inputs import SEEDS, Batch, StepEvents, batches, distribution, step_events
from bass.testing.small_models import SmallTable, tensors_of
from bass.verifiers.rejection import Rejection

TWICE = "`lengths` of one state are always the same."
STATE = "`{}` returns a new state and does not write to its argument."
FEEDBACK = "`update` does not write to its feedback."
AHEAD = (
    "`lengths_ahead` gives None, or the lengths after the next feedback, whatever it is, and "
    "`drafter_ahead` their part."
)
HOST = "a policy runs on the host: its state and its lengths hold no torch tensor."
SAME = (
    "the same feedback gives the same lengths: no clock, no global generator, nothing kept "
    "outside the state."
)

ANSWER = "the answer is a tensor of booleans of shape [batch]."
PURE = "a rule is a function: the same distributions get the same answer, and are not written to."
OWN = (
    "a row's answer depends on its own distribution alone, neither on its place nor on the other "
    "rows."
)
KEPT = "kept lengths are integers [batch] from 0 to the row's own, at most `most(rows, k)`."
SAME_KEPT = "a trim is a function: the same draft gets the same answer, and is not written to."
PLACES = "with `reads_places`, all rows together keep at most `Drafted.places` tokens."
BEYOND = "what lies beyond a row's own length changes nothing."
OWN_KEPT = "with `batch_invariant`, a row's answer depends on nothing of the other rows."
DEVICE = "a trim reads no value on the host, and makes its tensors on the device of the draft."
ENDS = 0.6  # some drafts end where the draft model's largest probability is below it
AFTER = [path for n in range(1, 5) for path in itertools.product((0, 1), repeat=n)]
# a draft of 2, 3 or 4 slots by `ENDS`, as token 1 and token 2 of it decide
ENDED = Problem(
    2,
    4,
    dict.fromkeys(AFTER, np.full(2, 0.5)) | {(): np.array([0.3, 0.7])},
    dict.fromkeys(AFTER, np.full(2, 0.5))
    | {(): np.array([0.7, 0.3]), (0,): np.array([0.8, 0.2]), (0, 0): np.array([0.9, 0.1])},
)
JOINT = (
    "the tokens of all rows are distributed jointly as the target's own: what is kept of a row "
    "depends on nothing that its next token decides."
)
OPTIONS = (Sampling(), Sampling(temperature=0.7), Sampling(top_p=0.8))
# tokens at least, in all of the check: rules may look at several of the most probable ones
VOCAB = 8
ROWS = 8
CALLS = 8  # calls with the same input, to detect a rule that counts its calls
RULED_GREEDY, RULED = (
    SmallTable(VOCAB),
    SmallTable(VOCAB, order=2, seed=1, sharpness=1.5, likeness=0.5),
)


def check_policy(policy: Any, examples: int = 80, seed: int = 0) -> None:
    """Test that a draft-length policy keeps its contract, and that the output is exact with it.

    `policy`: as in `bass.load`. For drawn sequences of feedback (1 to 8 rows, idle rows, empty
    drafts, new prompts): lengths are integers of shape [batch], each from 0 to max_length, and
    those of `lengths_ahead` come true; `lengths`, `update` and `reset` do not write to their
    arguments, and older states stay valid after newer ones; no torch; the same feedback leads to
    the same lengths a second time, with other global generators. Then in a real engine on small
    models: greedy decoding equals the recomputed reference for ragged requests and ends of
    sequence; the joint distribution of the first two tokens is the target's, tested by 768 samples
    per example with a false-failure rate of 1e-6, which is that of the whole check (the default of
    80 examples detects a bias of 0.023 in total variation). `seed`: of cases and samples.

    Raises `ExactnessError`; `OptionError` or `PolicyError` if `policy` is no policy.
    """
    made = make("policy", policy)
    check_max_length(made)
    checker = Checker(type(made).__name__, examples, seed)
    rows, steps = st.integers(1, ROWS), st.integers(1, 12)
    checker.for_all(
        st.builds(step_events, rows, steps, SEEDS), lambda history: follow(checker, made, history)
    )
    drafter = Choice([ModelDraft()] * made.drafters) if made.drafters > 1 else ModelDraft()
    setup = Setup(engine.WHOLE_MEMORY, engine.CPU, policy=made, drafter=drafter)
    engine.require_greedy(checker, setup, examples // 2)
    engine.require_law(checker, setup.but(model=engine.NARROW_TABLE), Sampling(temperature=0.9))


def follow(checker: Checker, policy: DraftLengthPolicy[Any], history: list[StepEvents]) -> None:
    """Check all properties outside of an engine, for one sequence of feedback."""
    requested = []
    for seed in range(2):
        random.seed(seed)  # Hypothesis restores both global generators
        np.random.seed(seed)
        requested.append(play(checker, policy, history))
    checker.equal(SAME, requested[1], requested[0], "a second time")


def play(
    checker: Checker, policy: DraftLengthPolicy[Any], history: list[StepEvents]
) -> list[list[int]]:
    """The lengths of each step."""

    def unchanged(property: str, value: Any, action: Callable[[Any], Any]) -> Any:
        before = content(value)
        result = action(value)
        if content(value) != before:  # text is made for a violation alone: it takes milliseconds
            old = pickle.loads(before) if isinstance(before, bytes) else before
            checker.require(property, False, f"{shown(old)}, as before", value)
        return result

    def lengths_of(state: Any) -> list[int]:
        return np.asarray(policy.lengths(state)).tolist()

    batch = len(history[0].active)
    state, requested, seen = policy.init(batch), [], []
    for step in history:
        found = f"{type(state).__name__} of tensors"
        checker.require(HOST, not [*tensors_of(state)], "Python and NumPy values", found)
        if step.new:
            rows = np.array(step.new)
            reset = STATE.format("reset")
            state = unchanged(reset, state, lambda s, rows=rows: policy.reset(s, rows))
        lengths = unchanged(STATE.format("lengths"), state, lengths_of)
        checked_lengths(policy, policy.lengths(state), batch)  # type, shape and range
        checker.equal(TWICE, lengths_of(state), lengths)
        requested.append(lengths)
        ahead, part = policy.lengths_ahead(state), policy.drafter_ahead(state)
        before, feedback = state, step.feedback(np.array(lengths))
        text, reported = STATE.format("update"), content(feedback)
        state = unchanged(text, state, lambda s, given=feedback: policy.update(s, given))
        same = content(feedback) == reported
        checker.require(FEEDBACK, same, step.feedback(np.array(lengths)), feedback)
        seen.append((before, feedback, lengths_of(state)))
        if ahead is not None:
            checker.equal(AHEAD, lengths_of(state), np.asarray(ahead).tolist())
            checker.equal(AHEAD, policy.drafter(state), part)
    # older states stay valid after newer ones and after another run
    policy.lengths(policy.init(batch + 1))
    for (before, feedback, after), expected in zip(seen, requested, strict=True):
        checker.equal(TWICE, lengths_of(before), expected, "of an older state too")
        updated = lengths_of(policy.update(before, feedback))
        checker.equal(SAME, updated, after, "when an older state is updated again")
    return requested


def content(value: Any) -> Any:
    """A value's whole content, equal for equal content."""
    try:
        return pickle.dumps(copy.deepcopy(value))
    except (pickle.PicklingError, AttributeError, TypeError):  # such as of a local class
        return repr(value)


def check_stop_rule(rule: Any, examples: int = 40, seed: int = 0) -> None:
    """Test that a stop rule keeps its contract, and that the output is exact with it.

    `rule`: as in `bass.load(stop_rule=...)`. For drawn distributions, 1 to 8 rows over 8 to 10
    tokens: one boolean per row; the same result for repeated calls; no writes to arguments; a row's
    result is independent of its index and of the other rows. Then in a real engine, with a draft
    model on small tables of 8 tokens: greedy decoding equals the recomputed reference; the joint
    distribution of the first two tokens is the target's at temperatures 1 and 0.7 and with top-p
    0.8. These three tests use 768 samples per example and have a false-failure rate of 1e-6 each,
    3e-6 in all; with the default of 40 examples they detect a bias of 0.041 in total variation.
    `seed`: of cases and samples.

    Not tested: host reads in the rule, which only a run with CUDA graphs shows.

    Raises `ExactnessError`; `OptionError` if `rule` is no stop rule.
    """
    made = make("stop_rule", rule)
    checker = Checker(type(made).__name__, examples, seed)
    sizes = st.integers(1, ROWS), st.integers(VOCAB, VOCAB + 2), st.integers(0, 5), SEEDS
    checker.for_all(st.builds(RuleInput.drawn, *sizes), lambda one: answers(checker, made, one))
    setup = Setup(RULED_GREEDY, engine.CPU, policy=ByRow(4), stop_rule=made)
    engine.require_greedy(checker, setup, examples // 2)
    for options in OPTIONS:
        engine.require_law(checker, setup.but(model=RULED, policy=ByRow(3)), options)


@dataclass(frozen=True)
class RuleInput:
    """The input of a rule: `probs` and `others` [batch, vocab], and an `order` of the rows."""

    probs: np.ndarray
    others: np.ndarray
    order: np.ndarray
    so_far: int

    @classmethod
    def drawn(cls, batch: int, vocab: int, so_far: int, seed: int) -> "RuleInput":
        """A few distributions for all rows, some of few tokens, since many have no clear mode."""
        random = np.random.default_rng(seed)
        few = [np.pad(distribution(random, width), (0, vocab - width)) for width in (2, 3, vocab)]
        probs, others = np.array(few, np.float32)[random.integers(len(few), size=(2, batch))]
        return cls(probs, others, random.permutation(batch), so_far)


def answers(checker: Checker, rule: StopRule, given: RuleInput) -> None:
    """Check all properties outside of an engine, for one case."""
    probs, others, order = torch.tensor(given.probs), torch.tensor(given.others), [*given.order]

    def call(rows: Tensor) -> Tensor:
        copied = rows.clone()
        answer = rule(copied, given.so_far)
        checker.equal(PURE, copied, rows, "as before")
        kind = getattr(answer, "dtype", type(answer).__name__), getattr(answer, "shape", None)
        expected = f"booleans of shape {[len(rows)]}"
        checker.require(ANSWER, kind == (torch.bool, (len(rows),)), expected, answer)
        return answer.clone()

    answer = call(probs)
    for _ in range(CALLS):
        checker.equal(PURE, call(probs), answer, "when called again")
    checker.equal(OWN, call(probs[order]), answer[order], f"for the rows in the order {order}")
    for row in range(len(probs)):
        mixed = others.clone()
        mixed[row] = probs[row]
        checker.equal(OWN, call(mixed)[row], answer[row], f"for row {row} among other mates too")


def check_trim(trim: Any, examples: int = 40, seed: int = 0) -> None:
    """Test that a trim keeps its contract, and that the output is exact with it.

    `trim`: as in `bass.load(trim=...)`. For drawn batches of 1 to 3 rows: integers in range; the
    same for repeated calls; no writes to the argument; independence of what lies beyond a row's
    length and, if `batch_invariant`, of other rows; no host reads. With `lossless`, the *joint*
    distribution of all rows with `rejection`, computed from all drafts, is the target's within
    1e-12. Then in the engine: greedy decoding equals the recomputed reference, and the distribution
    of two tokens is the target's, with a false-failure rate of 1e-6. `seed`: of cases and samples.

    Raises `ExactnessError`; `OptionError` if `trim` is no trim.
    """
    made: DraftTrim = make("trim", trim)
    checker = Checker(type(made).__name__, examples, seed)
    for deterministic in (False, True):
        checker.for_all(batches(deterministic), partial(keeps, checker, made), most=COSTLY)
    if made.lossless:
        laws = partial(joint_law, checker, made)
        with checker.on(ended := Batch([ENDED], ENDED.length, seed=1)):
            laws(ended)
        for generic in (False, True):
            checker.for_all(batches(False, generic), laws, examples // 2, COSTLY)
    setup = Setup(engine.WHOLE_MEMORY, engine.CPU, policy=ByRow(4), trim=made)
    engine.require_greedy(checker, setup, examples // 8)
    if made.lossless:
        engine.require_law(checker, setup.but(model=engine.NARROW_TABLE), Sampling())


def keeps(checker: Checker, trim: DraftTrim, batch: Batch) -> None:
    """Check all properties but that of the output distribution."""
    *_, (_, _, drafted) = trim_inputs(batch.problems, k := max(batch.k, 1), batch.seed)
    reads = {"probs": trim.reads_probs, "tokens": trim.reads_tokens, "cost": trim.reads_cost}
    drafted = replace(drafted, **{name: None for name, read in reads.items() if not read})

    def call(given: Drafted) -> Tensor:
        before, rows = copied(given), given.lengths
        answer = trim(given)
        for name, value in vars(given).items():
            same = value is None or torch.equal(value.nan_to_num(), vars(before)[name].nan_to_num())
            checker.require(SAME_KEPT, same, "the draft, as before", f"other values in `{name}`")
        fits = isinstance(answer, Tensor) and answer.shape == rows.shape
        fits = fits and not (answer.is_floating_point() or answer.dtype == torch.bool)
        fits = fits and bool(((answer >= 0) & (answer <= rows)).all())
        most = trim.most(len(rows), k)
        fits = fits and int(answer.sum()) <= most
        found = answer if isinstance(answer, Tensor) else f"a {type(answer).__name__}, {answer}"
        checker.require(KEPT, fits, f"a tensor, up to {rows.tolist()}, in all {most}", found)
        return answer.clone()

    answer, rows = call(drafted), [*range(len(drafted.lengths))]
    checker.equal(SAME_KEPT, call(drafted), answer, "when called again")
    if drafted.probs is not None:
        own = torch.arange(k)[:, None] < drafted.lengths[:, None, None]
        for value in (0.0, torch.nan, torch.inf):
            other = replace(drafted, probs=torch.where(own, drafted.probs, value))
            checker.equal(BEYOND, call(other), answer, f"with {value} there")
    for places in range(3) if trim.reads_places else ():
        kept = int(trim(replace(drafted, places=torch.tensor(places))).sum())
        checker.require(PLACES, kept <= places, f"up to {places} tokens", kept)
    for order in (rows[::-1], *([row] for row in rows)) if trim.batch_invariant else ():
        found = call(mapped(drafted, lambda one, order=order: one[order] if one.ndim else one))
        checker.equal(OWN_KEPT, found, answer[order], f"from the rows {order}")
    try:
        text = str(trim(mapped(drafted, lambda one: one.to("meta"))).device)
    except (RuntimeError, NotImplementedError) as error:
        text = str(error).partition("\n")[0]
    checker.require(DEVICE, text == "meta", "an answer on the device `meta`", text)


def mapped(drafted: Drafted, function: Callable[[Tensor], Tensor]) -> Drafted:
    """The record with a function of each tensor."""
    given = {name: one for name, one in vars(drafted).items() if one is not None}
    return replace(drafted, **{name: function(one) for name, one in given.items()})


def joint_law(checker: Checker, trim: DraftTrim, batch: Batch) -> None:
    """Check the joint output distribution of all rows by enumeration, with a stop rule or none."""
    found = trimmed_law(trim, Rejection(), batch.problems, batch.seed, ENDS * (batch.seed % 2))
    expected = independent([one.target_law() for one in batch.problems])
    engine.require_equal(checker, JOINT, found, expected)
