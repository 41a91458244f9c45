"""The rules of rejection sampling as functions of tensors, by hand.

Their exact law is in `laws/test_0_enumeration.py`.
"""

import pytest
import torch

from bass.ops.verification import accept_probs, next_probs
from bass.records import Draft, Verdict
from bass.verifiers import Rejection
from unit.test_verifiers_vectors import TARGET, draft, noise


@pytest.mark.parametrize(("tokens", "expected"), [([0, 1], [1.0, 0.4]), ([1, 2], [0.4, 1.0])])
def test_a_drafted_token_is_accepted_with_the_ratio_of_target_to_draft(
    tokens: list[int], expected: list[float]
) -> None:
    torch.testing.assert_close(
        accept_probs(draft(tokens, 2), TARGET)[0], torch.tensor(expected, dtype=torch.float64)
    )


def test_a_deterministic_token_is_accepted_with_its_target_probability() -> None:
    assert accept_probs(draft([1, 2], 2, sure=True), TARGET)[0].tolist() == [0.3, 0.6]


@pytest.mark.parametrize(
    ("accepted", "length", "sure", "expected"),
    [
        (0, 2, False, [0.25, 0.0, 0.2]),  # the residual of position 0
        (1, 2, False, [0.2, 0.0, 0.1]),  # of position 1
        (2, 2, False, [0.0, 1.0, 0.0]),  # the bonus: the target of position 2
        (1, 1, False, [0.2, 0.2, 0.6]),  # the row's own boundary, inside a longer batch: the target
        (0, 0, False, [0.5, 0.3, 0.2]),  # no draft: the target
        (0, 2, True, [0.5, 0.0, 0.2]),  # what was refused for certain is not drawn again
        (1, 1, True, [0.2, 0.2, 0.6]),
    ],
)
def test_the_token_after_the_accepted_ones(
    accepted: int, length: int, sure: bool, expected: list[float]
) -> None:
    got = next_probs(draft([1, 1], length, sure), TARGET, torch.tensor([accepted]))
    torch.testing.assert_close(got[0], torch.tensor(expected, dtype=torch.float64))


def test_a_residual_that_rounding_has_emptied_gives_the_target() -> None:
    same = Draft(torch.tensor([[1, 1]]), TARGET[:, :2], torch.tensor([2]))
    assert next_probs(same, TARGET, torch.tensor([0]))[0].tolist() == [0.5, 0.3, 0.2]


@pytest.mark.parametrize(
    ("accept", "accepted", "tokens"),
    [
        ([0.39, 0.99, 0.5], 2, [1, 2, 1]),  # all kept, then the bonus
        # the first refused: what follows does not matter; residual (.25, 0, .2) at 0.9
        ([0.41, 0.0, 0.5], 0, [2]),
    ],
)
def test_a_verdict_is_a_prefix_of_the_draft_and_one_token(
    accept: list[float], accepted: int, tokens: list[int]
) -> None:
    verdict: Verdict = Rejection()(draft([1, 2], 2), TARGET, noise(accept, [0.9, 0.9, 0.9]))
    assert int(verdict.accepted[0]) == accepted
    assert verdict.tokens[0, : accepted + 1].tolist() == tokens
