"""A strategy that writes into what it is given changes its own view alone: not the rows, not the
account of the run, and nothing that another strategy reads.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from bass.drafters import Ensemble, ModelDraft
from bass.drafters.ensemble import EnsembleDrafter
from bass.interfaces import Drafter, DraftLengthPolicy, Verifier
from bass.policies import Fixed
from bass.policies.wrappers import Recorded, RecordedStep
from bass.records import (
    Draft,
    Features,
    Feedback,
    Noise,
    RowAssignment,
    Sequences,
    Verdict,
    Window,
)
from bass.sampling import Sampling
from bass.testing import ExactnessError
from bass.testing.checking import Checker
from bass.testing.engine import By
from bass.testing.properties_of_drafters import LEAVES, CheckedDrafter
from bass.testing.small_models import SmallLlama
from bass.verifiers.rejection import Rejection
from support.engines import PAIRINGS, Outcome, Setup, mixed_requests, same_prompt

WORLD = SmallLlama()


@dataclass(frozen=True)
class Counts(Drafter):
    """Drafts 0, 1, 2, ... and may write to the lengths, the noise and the rows' assignment."""

    writes: bool

    def reserve(self, assignment: RowAssignment) -> None:
        self.overwrite(assignment)

    def copy_rows(self, assignment: RowAssignment) -> None:
        self.overwrite(assignment)

    def overwrite(self, assignment: RowAssignment) -> None:
        if self.writes:
            for array in (assignment.capacities, assignment.source, assignment.shared):
                array[:] = 0

    def propose(
        self, sequences: Sequences, lengths: Tensor, k: int, noise: Noise, span: int
    ) -> Draft:
        if self.writes:
            lengths.fill_(k)
            noise.uniforms.fill_(0.5)
        tokens = torch.arange(k, device=lengths.device).repeat(len(lengths), 1)
        return Draft(tokens % WORLD.vocab, None, lengths)


@dataclass(frozen=True)
class Silent(Drafter):
    """Drafts nothing; may write to the lengths, and keeps those that it was asked for."""

    writes: bool = False
    asked: list[list[int]] = field(default_factory=list)

    def propose(
        self, sequences: Sequences, lengths: Tensor, k: int, noise: Noise, span: int
    ) -> Draft:
        self.asked.append(lengths.tolist())
        if self.writes:
            lengths.fill_(k)
        return Draft(lengths.new_zeros(len(lengths), k), None, torch.zeros_like(lengths))


@dataclass(frozen=True)
class Smears(Drafter):
    """Drafts nothing; may write into all that it is given, the rows aside."""

    writes: bool

    @property
    def target_features(self) -> tuple[int, ...]:
        return (0, 1)

    def smear(self, *given: Any) -> None:
        for value in given if self.writes else ():
            if isinstance(value, np.ndarray):
                value[:] = 0
            elif isinstance(value, Tensor):
                value.fill_(0)

    def reserve(self, assignment: RowAssignment) -> None:
        self.smear(*vars(assignment).values())

    def copy_rows(self, assignment: RowAssignment) -> None:
        self.smear(*vars(assignment).values())

    def fill(self, window: Window) -> Features:
        self.smear(*vars(window).values())
        return ()

    def observe(self, window: Window, features: Features, accepted: Tensor | None) -> None:
        self.smear(*vars(window).values(), *features, accepted)

    def propose(
        self, sequences: Sequences, lengths: Tensor, k: int, noise: Noise, span: int
    ) -> Draft:
        self.smear(lengths, *vars(noise).values())
        return Draft(lengths.new_zeros(len(lengths), k), None, torch.zeros_like(lengths))


@dataclass(frozen=True)
class Notes(Drafter):
    """Drafts nothing, and keeps a copy of all that it is given, the rows aside."""

    given: list[Any] = field(default_factory=list)

    @property
    def target_features(self) -> tuple[int, ...]:
        return (1,)

    def note(self, *values: Any) -> None:
        self.given.append([v.tolist() if hasattr(v, "tolist") else v for v in values])

    def reserve(self, assignment: RowAssignment) -> None:
        self.note(*vars(assignment).values())

    def copy_rows(self, assignment: RowAssignment) -> None:
        self.note(*vars(assignment).values())

    def fill(self, window: Window) -> Features:
        self.note(*vars(window).values())
        return ()

    def observe(self, window: Window, features: Features, accepted: Tensor | None) -> None:
        self.note(*vars(window).values(), *features, accepted)

    def propose(
        self, sequences: Sequences, lengths: Tensor, k: int, noise: Noise, span: int
    ) -> Draft:
        self.note(lengths, *vars(noise).values())
        return Draft(lengths.new_zeros(len(lengths), k), None, torch.zeros_like(lengths))


@dataclass(frozen=True)
class Scribbles(Verifier):
    """Judges as `Rejection`, then writes into what it was given."""

    lossless: ClassVar[bool] = True

    def __call__(self, draft: Draft, target_probs: Tensor, noise: Noise) -> Verdict:
        verdict = Rejection()(draft, target_probs, noise)
        draft.lengths.add_(7)
        draft.tokens.fill_(1)
        noise.keys.add_(1)
        noise.first.add_(1)
        return verdict


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


def account(outcome: Outcome) -> Any:
    """Tokens, and what each step drafted, accepted and emitted for each request."""
    return outcome.tokens, [outcome.history(i) for i in range(len(outcome.tokens))]


@pytest.mark.parametrize("pair", PAIRINGS)
@pytest.mark.parametrize("parts", [1, 2])
def test_a_drafter_that_writes_to_lengths_and_assignments(
    parts: int, pair: str, device: torch.device
) -> None:
    """In an ensemble the first part writes, and the second drafts where the first does not."""

    def found(writes: bool) -> Any:
        each: tuple[Drafter, ...] = (Counts(writes), Counts(False))
        drafter = each[0] if parts == 1 else EnsembleDrafter(each, WORLD.vocab)
        warp = Sampling(temperature=1.0)
        setup = Setup(WORLD, device, PAIRINGS[pair], Fixed(5), lambda *_: drafter, warp=warp)
        requests = mixed_requests(WORLD) + same_prompt([1, 2, 3], 7, 3)
        return account(setup.outcome(requests))

    assert found(True) == found(False)


def test_a_part_of_an_ensemble_that_writes_to_its_lengths() -> None:
    """The next part is asked for as much as if it had not."""

    def found(writes: bool) -> list[list[int]]:
        after = Silent()
        drafter = EnsembleDrafter((Silent(writes), after), WORLD.vocab)
        setup = Setup(WORLD, torch.device("cpu"), policy=Fixed(5), drafter=lambda *_: drafter)
        setup.outcome(mixed_requests(WORLD))
        return after.asked

    assert found(True) == found(False)


@pytest.mark.parametrize("pair", PAIRINGS)
def test_a_part_of_an_ensemble_that_writes_to_all_that_it_is_given(
    pair: str, device: torch.device
) -> None:
    """The draft model after it drafts as if it had not: with its noise, in its cache."""

    def found(writes: bool) -> Any:
        drafter = By(Ensemble((Smears(writes), ModelDraft())))
        setup = Setup(WORLD, device, PAIRINGS[pair], Fixed(3), drafter, warp=Sampling())
        return account(setup.outcome(mixed_requests(WORLD) + same_prompt([1, 2, 3], 7, 3)))

    assert found(True) == found(False)


def test_what_a_part_of_an_ensemble_is_given_is_not_what_another_one_wrote() -> None:
    def found(writes: bool) -> list[Any]:
        after = Notes()
        drafter = By(Ensemble((Smears(writes), after)))
        setup = Setup(WORLD, torch.device("cpu"), policy=Fixed(3), drafter=drafter)
        setup.outcome(mixed_requests(WORLD))
        return after.given

    assert found(True) == found(False)


def test_a_recorded_policy_that_writes_to_its_feedback() -> None:
    """What is recorded is what the engine said."""

    def found(policy: DraftLengthPolicy[Any]) -> Any:
        into: list[RecordedStep] = []
        setup = Setup(WORLD, torch.device("cpu"), policy=Recorded(policy, into))
        setup.outcome(mixed_requests(WORLD))
        said = ("drafted", "accepted", "active")
        return [[getattr(r.feedback, name).tolist() for name in said] for r in into]

    assert found(Blots()) == found(Fixed(3))


def test_a_verifier_that_writes_to_its_draft_and_its_noise(device: torch.device) -> None:
    def found(verifier: Verifier) -> Any:
        setup = Setup(WORLD, device, policy=Fixed(3), verifier=verifier)
        return account(setup.outcome(mixed_requests(WORLD)))

    assert found(Scribbles()) == found(Rejection())


@pytest.mark.parametrize("pair", PAIRINGS)
def test_a_policy_that_writes_to_its_feedback_and_to_the_rows(
    pair: str, device: torch.device
) -> None:
    def found(policy: DraftLengthPolicy[Any]) -> Any:
        setup = Setup(WORLD, device, PAIRINGS[pair], policy)
        return account(setup.outcome(mixed_requests(WORLD)))

    assert found(Blots()) == found(Fixed(3))


@dataclass(frozen=True)
class Meddles(Drafter):
    """Drafts nothing, and may write to the rows of the run."""

    writes: bool

    def propose(
        self, sequences: Sequences, lengths: Tensor, k: int, noise: Noise, span: int
    ) -> Draft:
        if self.writes:
            sequences.sampling.add_(0.5)
        return Draft(lengths.new_zeros(len(lengths), k), None, torch.zeros_like(lengths))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("writes", [True, False])
def test_the_kit_reports_a_drafter_that_writes_to_the_rows_of_the_run(writes: bool) -> None:
    """Where the run itself cannot notice it."""
    checker = Checker("Meddles", 1)
    watched = CheckedDrafter(Meddles(writes), checker, WORLD.vocab)
    setup = Setup(WORLD, torch.device("cpu"), policy=Fixed(3), drafter=lambda *_: watched)
    requests = mixed_requests(WORLD) + same_prompt([1, 2, 3], 7, 3)
    if not writes:
        setup.outcome(requests)
        return
    with pytest.raises(ExactnessError) as error:
        setup.outcome(requests)
    assert error.value.property == LEAVES
