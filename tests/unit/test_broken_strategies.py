"""A strategy that breaks its contract while it runs is named, before anything made with it is
handed over.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bass.drafters import ModelDraft
from bass.drafters.ensemble import EnsembleDrafter
from bass.errors import StrategyError
from bass.interfaces import Drafter, DraftLengthPolicy, StopRule, Verifier
from bass.policies import Fixed
from bass.records import Draft, Feedback, Noise, Sequences, Verdict
from bass.testing.small_models import SmallTable
from bass.verifiers.rejection import Rejection
from support.engines import PAIRINGS, By, Setup, mixed_requests

TABLE = SmallTable()


def unchecked(kind: type, **fields: object) -> Any:
    """As outside the tests, where the shapes of a record are not looked at when it is made."""
    made = object.__new__(kind)
    vars(made).update(fields)
    return made


@dataclass(frozen=True)
class Answers(Drafter):
    """Zeros for every row, changed by `change(draft, k)`."""

    change: Callable[[Any, int], Any]

    def propose(
        self, sequences: Sequences, lengths: Tensor, k: int, noise: Noise, span: int
    ) -> Draft:
        zeros = torch.zeros(len(lengths), k, dtype=torch.int64, device=lengths.device)
        return self.change(unchecked(Draft, tokens=zeros, probs=None, lengths=lengths), k)


@dataclass(frozen=True)
class Judges(Verifier):
    """Rejection's verdict, changed by `change(verdict, draft)`."""

    change: Callable[[Any, Draft], Any]
    lossless: ClassVar[bool] = False

    def __call__(self, draft: Draft, target_probs: Tensor, noise: Noise) -> Verdict:
        return self.change(Rejection()(draft, target_probs, noise), draft)


@dataclass(frozen=True)
class Fires(StopRule):
    """Answers with something else than a truth value for each row."""

    answer: Callable[[Tensor], Any]

    def __call__(self, draft_probs: Tensor, so_far: int) -> Any:
        return self.answer(draft_probs)


def but(record: Any, **fields: Any) -> Any:
    return unchecked(type(record), **(vars(record) | fields))


DRAFTS: dict[str, Callable[[Any, int], Any]] = {
    "nothing": lambda draft, k: None,
    "a tuple": lambda draft, k: (1, 2),
    "tokens in a list": lambda draft, k: but(draft, tokens=[[0] * k] * 3),
    "a length for all": lambda draft, k: but(draft, lengths=2),
    "fractions as tokens": lambda draft, k: but(draft, tokens=torch.zeros(3, k)),
    "integers as probabilities": lambda draft, k: but(draft, probs=torch.ones(3, k, 7).long()),
    "no columns": lambda draft, k: but(draft, tokens=torch.zeros(3).long()),
    "too many columns": lambda draft, k: but(draft, tokens=torch.zeros(3, k + 1).long()),
    "too few columns": lambda draft, k: but(draft, tokens=torch.zeros(3, k - 1).long()),
    "too few tokens": lambda draft, k: but(draft, probs=torch.full((3, k, 3), 1 / 3)),
    "a negative token": lambda draft, k: but(draft, tokens=torch.full((3, k), -1)),
    "too few lengths": lambda draft, k: but(draft, lengths=draft.lengths[:2]),
    "a negative length": lambda draft, k: but(draft, lengths=0 * draft.lengths - 1),
}


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("case", DRAFTS)
def test_an_answer_that_is_no_draft(case: str, parts: int) -> None:
    """Also of a part of an ensemble."""
    drafter: Any = Answers(DRAFTS[case])
    if parts == 2:
        drafter = EnsembleDrafter((drafter, Answers(lambda draft, k: draft)), TABLE.vocab, ((), ()))
    setup = Setup(TABLE, torch.device("cpu"), policy=Fixed(2), drafter=By(drafter))
    with pytest.raises(StrategyError, match="`Answers"):
        setup.outcome(mixed_requests(TABLE))


VERDICTS: dict[str, tuple[Callable[[Any, Draft], Any], str]] = {
    "nothing": (lambda verdict, draft: None, "returned NoneType"),
    "counts in a list": (lambda verdict, draft: but(verdict, accepted=[0, 0, 0]), "is list"),
    "fractions": (
        lambda verdict, draft: but(verdict, accepted=verdict.accepted.float()),
        "is torch",
    ),
    "counts for one row": (lambda verdict, draft: but(verdict, accepted=verdict.accepted[:1]), ""),
    "less than none": (
        lambda verdict, draft: but(verdict, accepted=verdict.accepted - 5),
        "from 0",
    ),
    "more than all": (lambda verdict, draft: but(verdict, accepted=verdict.accepted + 3), "from 0"),
    "other tokens than the draft's": (
        lambda verdict, draft: Verdict(
            F.pad((draft.tokens + 1) % TABLE.vocab, (0, 1)), draft.lengths
        ),
        "other tokens than the draft's",
    ),
    "ids above the vocabulary": (
        lambda verdict, draft: but(verdict, tokens=verdict.tokens + 7),
        "outside of the vocabulary",
    ),
    "ids below zero": (
        lambda verdict, draft: but(verdict, tokens=verdict.tokens - 7),
        "outside of the vocabulary",
    ),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_an_answer_that_is_no_verdict(case: str, device: torch.device) -> None:
    change, words = VERDICTS[case]
    with pytest.raises(StrategyError, match=f"`Judges`.*{words}"):
        Setup(TABLE, device, policy=Fixed(2), verifier=Judges(change)).outcome(
            mixed_requests(TABLE)
        )


@pytest.mark.parametrize(
    "answer", [lambda probs: [True] * len(probs), lambda probs: probs.argmax(-1)]
)
def test_a_stop_rule_that_gives_no_truth_values(answer: Any, device: torch.device) -> None:
    setup = Setup(TABLE, device, policy=Fixed(2), drafter=By(ModelDraft(), Fires(answer)))
    with pytest.raises(StrategyError, match="The answer of `Fires` is"):
        setup.outcome(mixed_requests(TABLE))


@dataclass(frozen=True)
class Trusting(DraftLengthPolicy[int]):
    """Relies on what feedback promises; its lengths are integers of the given type."""

    length: int
    dtype: str = "int64"
    max_length: int = 2

    def init(self, batch_size: int) -> int:
        return batch_size

    def lengths(self, state: int) -> np.ndarray:
        return np.full(state, self.length, dtype=self.dtype)

    def update(self, state: int, feedback: Feedback) -> int:
        assert (feedback.accepted <= feedback.drafted).all()
        return state


@pytest.mark.parametrize(
    ("length", "new", "eos"),
    [(2, 1, ()), (2, 3, ()), (2, 18, tuple(range(TABLE.vocab))), (0, 1, ()), (0, 9, (0,))],
)
def test_a_verdict_of_more_than_all_drafted_tokens_that_a_limit_or_an_end_cuts(
    length: int, new: int, eos: tuple[int, ...], device: torch.device
) -> None:
    boasts = Judges(lambda verdict, draft: Verdict(F.pad(draft.tokens, (0, 1)), draft.lengths + 1))
    setup = Setup(TABLE, device, policy=Trusting(length), verifier=boasts, eos=eos)
    requests = [replace(r, limit=len(r.prompt) + new) for r in mixed_requests(TABLE, count=3)]
    with pytest.raises(StrategyError, match=r"accepted \d of \d drafted tokens"):
        setup.outcome(requests)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("name", ["uint8", "uint64", "int32"])
def test_drafts_and_verdicts_may_be_integers_of_any_type(
    name: str, parts: int, device: torch.device
) -> None:
    def found(dtype: torch.dtype) -> Any:
        def as_type(draft: Any, k: int) -> Any:
            ones = torch.ones_like(draft.tokens)
            probs = F.one_hot(ones, TABLE.vocab).float()
            return but(draft, tokens=ones.to(dtype), probs=probs, lengths=draft.lengths.to(dtype))

        def judged(verdict: Any, draft: Draft) -> Any:
            tokens, accepted = verdict.tokens.to(dtype), verdict.accepted.to(dtype)
            return but(verdict, tokens=tokens, accepted=accepted)

        each = (Answers(as_type),) * parts
        drafter = each[0] if parts == 1 else EnsembleDrafter(each, TABLE.vocab, ((), ()))
        setup = Setup(TABLE, device, policy=Fixed(2), verifier=Judges(judged))
        return replace(setup, drafter=By(drafter)).outcome(mixed_requests(TABLE)).tokens

    assert found(getattr(torch, name)) == found(torch.int64)


@pytest.mark.parametrize("dtype", ["uint8", "uint64", "int32", ">i4"])
def test_lengths_may_be_integers_of_any_type(dtype: str, device: torch.device) -> None:
    setup = Setup(TABLE, device)
    expected = setup.but(policy=Fixed(2)).outcome(mixed_requests(TABLE))
    found = setup.but(policy=Trusting(2, dtype)).outcome(mixed_requests(TABLE))
    assert found.tokens == expected.tokens


@dataclass(frozen=True)
class Blots(DraftLengthPolicy[np.ndarray]):
    """Drafts three tokens, and writes into feedback and rows."""

    max_length: int = 3

    def init(self, batch_size: int) -> np.ndarray:
        return np.full(batch_size, 3)

    def lengths(self, state: np.ndarray) -> np.ndarray:
        return state

    def update(self, state: np.ndarray, feedback: Feedback) -> np.ndarray:
        for array in (feedback.drafted, feedback.accepted):
            array += 1
        feedback.active[:] = ~feedback.active
        return state

    def reset(self, state: np.ndarray, rows: np.ndarray) -> np.ndarray:
        rows //= 2
        return state


@pytest.mark.parametrize("pair", PAIRINGS)
def test_a_policy_that_writes_to_its_feedback_and_to_the_rows_changes_its_own_view_alone(
    pair: str, device: torch.device
) -> None:
    def found(policy: DraftLengthPolicy[Any]) -> Any:
        outcome = Setup(TABLE, device, PAIRINGS[pair], policy).outcome(mixed_requests(TABLE))
        return outcome.tokens, outcome.histories()

    assert found(Blots()) == found(Fixed(3))
