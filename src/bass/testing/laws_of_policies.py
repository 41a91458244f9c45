"""The properties of every draft-length policy."""

import copy
from typing import Any

import numpy as np

from bass.api.plan import check_max_length
from bass.api.resolve import make
from bass.interfaces import DraftLengthPolicy
from bass.records import Feedback
from bass.sampling import Sampling
from bass.testing import runs
from bass.testing.engine import Setup
from bass.testing.proof import Proof
from bass.testing.purity import another_world, clocks_read, content, holds_tensor
from bass.testing.strategies import Past, Work, feedback_sequences

LENGTHS = "lengths are a NumPy array of integers of shape [batch], each from 0 to max_length."
TWICE = "`lengths` of one state are always the same."
STATE = "`{}` returns a new state and does not write to its argument."
FEEDBACK = "`update` does not write to its feedback."
STEADY = "the lengths of a policy that says it is `constant_length` are always the same."
HOST = "a policy runs on the host: its state and its lengths hold no torch tensor."
SAME = (
    "the same feedback gives the same lengths: no clock, no global generator, nothing kept "
    "outside the state."
)
CLOCK = "a policy reads no clock: times are in the feedback."
AGAIN = "the same requests with the same noise and the same clock give the same tokens."


def check_policy(policy: Any, examples: int = 80, seed: int = 0) -> None:
    """Test that a draft-length policy keeps its contract, and that the output is exact with it.

    `policy`: as in `bass.load`. For drawn sequences of feedback (1 to 8 rows, idle rows, empty
    drafts, new prompts): lengths are integers of shape [batch], each from 0 to max_length, and
    never change if it is `constant_length`; `lengths`, `update` and `reset` do not write to their
    arguments, and older states stay valid after newer ones; no torch; the same feedback leads to
    the same lengths with another clock and other global generators; no clock of `time` or
    `datetime` is read by another name (reads by C code, such as `numpy.datetime64("now")`, are not
    seen). Then in a real engine on small
    models: greedy decoding equals the recomputed truth for ragged requests and ends of sequence;
    the same noise leads to the same tokens twice; the joint distribution of the first two tokens is
    the target's, tested by 768 samples per example with a false-failure rate of 1e-6, which is that
    of the whole check (the default of 80 examples detects a bias of 0.023 in total variation).
    `seed`: of cases and samples.

    Raises `ExactnessError`; `OptionError` or `PolicyError` if `policy` is no policy.
    """
    made = make("policy", policy)
    check_max_length(made)
    proof = Proof(type(made).__name__, examples, seed)
    proof.for_all(LENGTHS, feedback_sequences(), lambda past: follow(proof, made, past))
    setup = Setup(runs.wide(), runs.CPU, policy=made)
    runs.prove_greedy(proof, setup, examples // 2)

    def twice(work: Work) -> None:
        tokens = []
        for _ in range(2):
            with another_world(1e6, 0.001, 0):
                tokens.append(runs.sampled(setup, work))
        proof.require(AGAIN, tokens[0] == tokens[1], tokens[0], tokens[1])

    runs.for_requests(proof, AGAIN, twice, examples // 4, setup.world.vocab)
    runs.prove_law(proof, setup.but(world=runs.narrow()), Sampling(temperature=0.9))


def follow(proof: Proof, policy: DraftLengthPolicy[Any], past: Past) -> None:
    """Test all properties outside of an engine, for one sequence of feedback."""
    with another_world(1e6, 0.001, 0), clocks_read() as read:
        first = play(proof, policy, past)
    proof.require(CLOCK, not read, "no call of a clock", f"`{read[0]}`" if read else "")
    with another_world(2.5e7 + 0.37, 0.73, 1):
        second = play(proof, policy, past)
    proof.require(SAME, first == second, f"lengths {first} a second time", second)


def play(proof: Proof, policy: DraftLengthPolicy[Any], past: Past) -> list[list[int]]:
    """The lengths of each step."""
    state, requested, seen = policy.init(past.batch), [], []
    for moment in past.moments:
        if moment.new:
            rows = np.array(moment.new)
            state = kept(
                proof, STATE.format("reset"), state, lambda s, rows=rows: policy.reset(s, rows)
            )
        lengths = kept(proof, STATE.format("lengths"), state, policy.lengths)
        valid(proof, lengths, past.batch, policy.max_length)
        repeated = policy.lengths(state)
        proof.require(TWICE, np.array_equal(lengths, repeated), lengths, repeated)
        proof.require(
            HOST,
            not holds_tensor(state),
            "Python and NumPy values",
            f"a state of {type(state).__name__} with a tensor",
        )
        requested.append(lengths.tolist())
        proof.require(
            STEADY,
            not getattr(policy, "constant_length", False) or requested[-1] == requested[0],
            requested[0],
            requested[-1],
        )
        before = state
        feedback = moment.feedback(lengths)
        given = copy.deepcopy(feedback)
        state = kept(
            proof,
            STATE.format("update"),
            state,
            lambda s, feedback=feedback: policy.update(s, feedback),
        )
        proof.require(
            FEEDBACK, content(feedback) == content(given), reported(given), reported(feedback)
        )
        seen.append((before, given, policy.lengths(state).tolist()))
    again(proof, policy, past, seen, requested)
    return requested


def again(
    proof: Proof, policy: DraftLengthPolicy[Any], past: Past, seen: list, requested: list[list[int]]
) -> None:
    """Test that older states stay valid after newer ones and after another run."""
    policy.lengths(policy.init(past.batch + 1))
    for (before, feedback, after), expected in zip(seen, requested, strict=True):
        lengths = policy.lengths(before).tolist()
        proof.require(TWICE, lengths == expected, f"{expected} of an older state too", lengths)
        lengths = policy.lengths(policy.update(before, copy.deepcopy(feedback))).tolist()
        proof.require(
            SAME, lengths == after, f"{after} when an older state is updated again", lengths
        )


def kept(proof: Proof, law: str, state: Any, action: Any) -> Any:
    """The action's result; raises if the action changes the state."""
    before, text = content(state), repr(state)
    result = action(state)
    proof.require(law, content(state) == before, f"the state {text}, as before", repr(state))
    return result


def valid(proof: Proof, lengths: Any, batch: int, most: int) -> None:
    """Check the property `LENGTHS`."""
    proof.require(HOST, not holds_tensor(lengths), "a NumPy array", type(lengths).__name__)
    expected = f"integers of shape [{batch}], from 0 to {most}"
    proof.require(
        LENGTHS,
        isinstance(lengths, np.ndarray),
        f"an array of {expected}",
        f"{type(lengths).__name__}: {lengths}",
    )
    whole = np.issubdtype(lengths.dtype, np.integer) and lengths.shape == (batch,)
    proof.require(
        LENGTHS,
        whole,
        expected,
        f"{lengths.dtype} of shape {list(lengths.shape)}: {lengths.tolist()}",
    )
    proof.require(LENGTHS, bool(((lengths >= 0) & (lengths <= most)).all()), expected, lengths)


def reported(feedback: Feedback) -> str:
    """A feedback on one line."""
    arrays = (feedback.drafted, feedback.accepted, feedback.active.astype(int))
    return ", ".join(
        f"{name} {array.tolist()}"
        for name, array in zip(("drafted", "accepted", "active"), arrays, strict=True)
    )
