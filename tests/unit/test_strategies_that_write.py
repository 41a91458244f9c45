"""A strategy that says that it writes to its inputs (`writes_inputs`) changes its own view alone:
not the rows, not the record of the run, and nothing that another strategy reads.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from bass.drafters.ensemble import EnsembleDrafter
from bass.interfaces import Drafter, Verifier
from bass.policies import Fixed
from bass.records import Draft, Noise, RowAssignment, Sequences, Verdict
from bass.sampling_params import Sampling
from bass.testing.small_models import SmallLlama
from bass.verifiers.rejection import Rejection
from support.engines import PAIRINGS, By, RunOutput, Setup, mixed_requests, same_prompt

WORLD = SmallLlama()


@dataclass(frozen=True)
class Counts(Drafter):
    """Drafts 0, 1, 2, ... and may write to the lengths, the noise and the rows' assignment."""

    writes: bool

    @property
    def writes_inputs(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.writes

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
class Scribbles(Verifier):
    """Judges as `Rejection`, then writes into what it was given."""

    lossless: ClassVar[bool] = True
    writes_inputs: ClassVar[bool] = True

    def __call__(self, draft: Draft, target_probs: Tensor, noise: Noise) -> Verdict:
        verdict = Rejection()(draft, target_probs, noise)
        draft.lengths.add_(7)
        draft.tokens.fill_(1)
        noise.keys.add_(1)
        noise.first.add_(1)
        return verdict


def account(outcome: RunOutput) -> Any:
    """Tokens, and what each step drafted, accepted and emitted for each request."""
    return outcome.tokens, outcome.histories()


@pytest.mark.parametrize("pair", PAIRINGS)
@pytest.mark.parametrize("parts", [1, 2])
def test_a_drafter_that_writes_to_lengths_and_assignments(
    parts: int, pair: str, device: torch.device
) -> None:
    """In an ensemble the first part writes, and the second drafts where the first does not."""

    def found(writes: bool) -> Any:
        each: tuple[Drafter, ...] = (Counts(writes), Counts(False))
        drafter = each[0] if parts == 1 else EnsembleDrafter(each, WORLD.vocab, ((), ()))
        warp = Sampling(temperature=1.0)
        setup = Setup(WORLD, device, PAIRINGS[pair], Fixed(5), By(drafter), warp=warp)
        requests = mixed_requests(WORLD) + same_prompt([1, 2, 3], 7, 3)
        return account(setup.outcome(requests))

    assert found(True) == found(False)


def test_a_verifier_that_writes_to_its_draft_and_its_noise(device: torch.device) -> None:
    def found(verifier: Verifier) -> Any:
        setup = Setup(WORLD, device, policy=Fixed(3), verifier=verifier)
        return account(setup.outcome(mixed_requests(WORLD)))

    assert found(Scribbles()) == found(Rejection())
