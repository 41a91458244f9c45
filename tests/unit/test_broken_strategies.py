"""A strategy that breaks its contract while it runs is told so in one sentence, before anything
made with it is handed over.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bass.drafters import ModelDrafter
from bass.drafters.ensemble import EnsembleDrafter
from bass.engine.drafter_context import OwnDraw
from bass.errors import StrategyError
from bass.interfaces import Drafter, DraftLengthPolicy, StopRule, Verifier
from bass.policies import Fixed
from bass.records import Draft, Feedback, Noise, Sequences, Verdict
from bass.testing.small_models import SmallTable
from bass.verifiers.rejection import Rejection
from support.engines import Setup, mixed_requests

TABLE = SmallTable()


def unchecked(kind: type, **fields: object) -> Any:
    """As outside the tests, where the shapes of a record are not looked at when it is made."""
    made = object.__new__(kind)
    vars(made).update(fields)
    return made


@dataclass(frozen=True)
class Off(Verifier):
    """Counts `by` tokens more than were accepted."""

    lossless: ClassVar[bool] = False
    by: int = 1

    def __call__(self, draft: Draft, target_probs: Tensor, noise: Noise) -> Verdict:
        verdict = Rejection()(draft, target_probs, noise)
        return Verdict(verdict.tokens, verdict.accepted + self.by)


@dataclass(frozen=True)
class Odd(Drafter):
    """Proposes zeros of another shape than it was asked for, with other distributions, or with
    other lengths.
    """

    columns: int = 0
    vocab: int | None = None
    token: int = 0
    told: int | None = None

    def propose(
        self, sequences: Sequences, lengths: Tensor, k: int, noise: Noise, span: int
    ) -> Draft:
        tokens = torch.full((len(lengths), k + self.columns), self.token, device=lengths.device)
        probs = (
            None
            if self.vocab is None
            else torch.full((*tokens.shape, self.vocab), 1 / self.vocab, device=lengths.device)
        )
        return unchecked(Draft, tokens=tokens, probs=probs, lengths=lengths[: self.told])


@dataclass(frozen=True)
class Few(Verifier):
    """Counts accepted tokens for some rows alone."""

    lossless: ClassVar[bool] = False

    def __call__(self, draft: Draft, target_probs: Tensor, noise: Noise) -> Verdict:
        verdict = Rejection()(draft, target_probs, noise)
        return unchecked(Verdict, tokens=verdict.tokens, accepted=verdict.accepted[:1])


@dataclass(frozen=True)
class Whole(StopRule):
    """Answers in whole numbers."""

    def __call__(self, draft_probs: Tensor, so_far: int) -> Tensor:
        return draft_probs.argmax(-1)


def run(setup: Setup) -> None:
    setup.outcome(mixed_requests(TABLE))


@pytest.mark.parametrize("by", [-5, 3])
def test_a_verdict_of_fewer_than_none_or_more_than_all_drafted_tokens(
    by: int, device: torch.device
) -> None:
    with pytest.raises(
        StrategyError,
        match=r"`Off` accepted -?\d+ of \d drafted tokens: return a count from 0 to",
    ):
        run(Setup(TABLE, device, policy=Fixed(2), verifier=Off(by)))


@dataclass(frozen=True)
class Boasts(Verifier):
    """Accepts one token more than was drafted."""

    lossless: ClassVar[bool] = False

    def __call__(self, draft: Draft, target_probs: Tensor, noise: Noise) -> Verdict:
        return Verdict(F.pad(draft.tokens, (0, 1)), draft.lengths + 1)


@dataclass(frozen=True)
class Trusting(DraftLengthPolicy[int]):
    """Relies on what feedback promises."""

    length: int
    max_length: int = 2

    def init(self, batch_size: int) -> int:
        return batch_size

    def lengths(self, state: int) -> np.ndarray:
        return np.full(state, self.length)

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
    setup = Setup(TABLE, device, policy=Trusting(length), verifier=Boasts(), eos=eos)
    requests = [replace(r, limit=len(r.prompt) + new) for r in mixed_requests(TABLE, count=3)]
    with pytest.raises(
        StrategyError,
        match=r"`Boasts` accepted \d of \d drafted tokens: return a count from 0 to",
    ):
        setup.outcome(requests)


@dataclass(frozen=True)
class Rewrites(Verifier):
    """Accepts tokens that nobody drafted."""

    lossless: ClassVar[bool] = False

    def __call__(self, draft: Draft, target_probs: Tensor, noise: Noise) -> Verdict:
        return Verdict(F.pad((draft.tokens + 1) % TABLE.vocab, (0, 1)), draft.lengths)


def test_a_verdict_that_accepts_other_tokens_than_the_drafted_ones(device: torch.device) -> None:
    with pytest.raises(StrategyError, match="`Rewrites` returned other tokens than the draft's"):
        run(Setup(TABLE, device, policy=Fixed(2), verifier=Rewrites()))


def test_a_verdict_that_counts_for_other_rows(device: torch.device) -> None:
    with pytest.raises(
        StrategyError,
        match=(
            r"`Few` returned `accepted` of shape \[1\], and there are 3 rows: return one "
            r"count for each"
        ),
    ):
        run(Setup(TABLE, device, policy=Fixed(2), verifier=Few()))


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (Odd(columns=1), r"up to \d tokens for 3 rows and returned tokens \[3, \d\]"),
        (Odd(vocab=3), "distributions over 3 tokens, and the target has 7"),
        (Odd(token=-1), "`Odd` returned a draft with a token outside of the vocabulary"),
        (
            Odd(told=2),
            (
                r"returned tokens \[3, \d\] of lengths \[2\] with probabilities None: "
                r"return .* lengths \[3\]"
            ),
        ),
        (Odd(columns=-1), "returned 1 columns of tokens for a row of 2"),
    ],
)
def test_a_draft_of_another_shape(odd: Odd, message: str, device: torch.device) -> None:
    if device.type == "cuda" and odd.columns < 0:
        pytest.skip("lengths are compared with columns on a CPU only")
    with pytest.raises(StrategyError, match=message):
        run(replace(Setup(TABLE, device, policy=Fixed(2)), drafter=lambda *_: odd))


@dataclass(frozen=True)
class Listed(StopRule):
    """Answers with no tensor."""

    def __call__(self, draft_probs: Tensor, so_far: int) -> Any:
        return [True] * len(draft_probs)


def test_a_stop_rule_that_answers_in_a_list(device: torch.device) -> None:
    setup = Setup(TABLE, device, policy=Fixed(2))
    made = replace(
        setup,
        drafter=lambda setup, _, scorers: ModelDrafter(
            scorers("draft"), setup.warp, OwnDraw(), Listed()
        ),
    )
    with pytest.raises(StrategyError, match="`Listed` answered with list: give one truth value"):
        run(made)


def test_a_part_of_an_ensemble_with_a_negative_length(device: torch.device) -> None:
    less = Answers(draft_of(lengths=lambda lengths, k: 0 * lengths - 1))
    parts = less, Odd()
    setup = Setup(TABLE, device, policy=Fixed(2))
    with pytest.raises(StrategyError, match="returned a draft with a negative length"):
        run(replace(setup, drafter=lambda *_: EnsembleDrafter(parts, TABLE.vocab)))


def test_a_part_of_an_ensemble_that_claims_more_tokens_than_it_gave() -> None:
    cpu, parts = torch.device("cpu"), (Odd(columns=-1), Odd())
    setup = Setup(TABLE, cpu, policy=Fixed(2))
    with pytest.raises(StrategyError, match="returned 1 columns of tokens for a row of 2"):
        run(replace(setup, drafter=lambda *_: EnsembleDrafter(parts, TABLE.vocab)))


def test_a_stop_rule_that_answers_in_numbers(device: torch.device) -> None:
    setup = Setup(TABLE, device, policy=Fixed(2))
    made = replace(
        setup,
        drafter=lambda setup, _, scorers: ModelDrafter(
            scorers("draft"), setup.warp, OwnDraw(), Whole()
        ),
    )
    with pytest.raises(
        StrategyError,
        match=r"`Whole` answered with int64 of shape \[3\]: give one truth value for each row",
    ):
        run(made)


@dataclass(frozen=True)
class Answers(Drafter):
    """Answers with something else."""

    answer: Any

    def propose(
        self, sequences: Sequences, lengths: Tensor, k: int, noise: Noise, span: int
    ) -> Draft:
        return self.answer(lengths, k) if callable(self.answer) else self.answer


def draft_of(**fields: Any) -> Any:
    """Zeros for every row, but for these fields."""

    def make(lengths: Tensor, k: int) -> Draft:
        zeros = torch.zeros(len(lengths), k, dtype=torch.int64, device=lengths.device)
        made = {name: value(lengths, k) for name, value in fields.items()}
        return unchecked(Draft, **({"tokens": zeros, "probs": None, "lengths": lengths} | made))

    return make


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, r"`Answers.propose` returned None: return a `bass.records.Draft`"),
        ((1, 2), r"`Answers.propose` returned tuple: return a `bass.records.Draft`"),
        (unchecked(Draft), "`Answers.propose` gave a `Draft` without `tokens`"),
        (
            draft_of(tokens=lambda lengths, k: [[0] * k] * 3),
            "list as `tokens`: return a tensor",
        ),
        (draft_of(lengths=lambda lengths, k: 2), "returned int as `lengths`: return a tensor"),
        (
            draft_of(tokens=lambda lengths, k: torch.zeros(3, k)),
            "`tokens` of float32: return integers",
        ),
        (draft_of(lengths=lambda lengths, k: lengths > 0), "`lengths` of bool: return integers"),
        (draft_of(probs=lambda lengths, k: torch.ones(3, k, 7).long()), "`probs` of int64: return"),
        (draft_of(tokens=lambda lengths, k: torch.zeros(3).long()), r"returned tokens \[3\] of"),
        (
            draft_of(probs=lambda lengths, k: torch.ones(3, k, 7).to(torch.float8_e4m3fn)),
            "`probs` of float8_e4m3fn: return float32",
        ),
    ],
)
def test_an_answer_that_is_no_draft(answer: Any, message: str) -> None:
    cpu = torch.device("cpu")
    with pytest.raises(StrategyError, match=message):
        run(replace(Setup(TABLE, cpu, policy=Fixed(2)), drafter=lambda *_: Answers(answer)))


@dataclass(frozen=True)
class Judges(Verifier):
    """Rejection's verdict, changed."""

    lossless: ClassVar[bool] = False
    change: Any = None

    def __call__(self, draft: Draft, target_probs: Tensor, noise: Noise) -> Verdict:
        return self.change(Rejection()(draft, target_probs, noise))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda verdict: None, "`Judges` returned NoneType: return a `bass.records.Verdict`"),
        (
            lambda v: unchecked(Verdict, tokens=v.tokens),
            "`Judges` gave a `Verdict` without `accepted`",
        ),
        (
            lambda v: unchecked(Verdict, tokens=v.tokens, accepted=v.accepted.float()),
            "whose `accepted` holds no integers",
        ),
        (
            lambda v: unchecked(Verdict, tokens=v.tokens.float(), accepted=v.accepted),
            "whose `tokens` holds no integers",
        ),
        (
            lambda v: Verdict(v.tokens + 7, v.accepted),
            r"`Judges` emitted the token id \d+, which is outside of the vocabulary: .* 0 to 6",
        ),
        (
            lambda v: Verdict(v.tokens - 7, v.accepted),
            r"`Judges` emitted the token id -\d+, which is outside of the vocabulary: .* 0 to 6",
        ),
    ],
)
def test_an_answer_that_is_no_verdict(change: Any, message: str, device: torch.device) -> None:
    with pytest.raises(StrategyError, match=message):
        run(Setup(TABLE, device, policy=Fixed(2), verifier=Judges(change)))


@dataclass(frozen=True)
class Kind(DraftLengthPolicy[int]):
    """Two tokens for every row, in integers of the given type."""

    dtype: str
    max_length: int = 2

    def init(self, batch_size: int) -> int:
        return batch_size

    def lengths(self, state: int) -> np.ndarray:
        return np.full(state, 2, dtype=self.dtype)

    def update(self, state: int, feedback: Feedback) -> int:
        return state


@dataclass(frozen=True)
class OfType(Drafter):
    """Two tokens of integers of the given type."""

    dtype: torch.dtype

    def propose(
        self, sequences: Sequences, lengths: Tensor, k: int, noise: Noise, span: int
    ) -> Draft:
        tokens = torch.ones(len(lengths), k, dtype=torch.int64, device=lengths.device)
        probs = F.one_hot(tokens, TABLE.vocab).float()
        narrow, own = tokens.to(self.dtype), lengths.to(self.dtype)
        return unchecked(Draft, tokens=narrow, probs=probs, lengths=own)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("name", ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32"])
def test_drafts_and_verdicts_may_be_integers_of_any_type(
    name: str, parts: int, device: torch.device
) -> None:
    def found(dtype: torch.dtype) -> Any:
        def changed(v: Verdict) -> Verdict:
            return unchecked(Verdict, tokens=v.tokens.to(dtype), accepted=v.accepted.to(dtype))

        each = (OfType(dtype),) * parts
        drafter = each[0] if parts == 1 else EnsembleDrafter(each, TABLE.vocab)
        setup = Setup(TABLE, device, policy=Fixed(2), verifier=Judges(changed))
        return replace(setup, drafter=lambda *_: drafter).outcome(mixed_requests(TABLE)).tokens

    assert found(getattr(torch, name)) == found(torch.int64)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int8", "int16", ">i4"])
def test_lengths_may_be_integers_of_any_type(dtype: str, device: torch.device) -> None:
    setup = Setup(TABLE, device)
    expected = setup.but(policy=Fixed(2)).outcome(mixed_requests(TABLE))
    found = setup.but(policy=Kind(dtype)).outcome(mixed_requests(TABLE))
    assert found.tokens == expected.tokens
