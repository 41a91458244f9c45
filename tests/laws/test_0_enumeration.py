"""Tier 0: the verifier's output law is the target's, exactly.

No sampling: `bass.testing.enumeration` adds up every case.
"""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bass.interfaces import Verifier
from bass.testing.enumeration import CUTS, Problem, boxes, constant_in_boxes, judge, output_laws
from bass.testing.inputs import batches, single_problems
from support.engines import BY_STEP

TOLERANCE = 1e-12  # float64 sums of up to some 10^4 terms
of_both_kinds = pytest.mark.parametrize(
    "deterministic", [False, True], ids=["sampled drafts", "deterministic drafts"]
)


@pytest.fixture(params=BY_STEP, scope="module")
def verifier(request: pytest.FixtureRequest) -> Verifier:
    """A coupled verifier, which makes its own noise, is judged in `test_6_coupled.py`."""
    chosen = BY_STEP[request.param]
    assert type(chosen) in CUTS, (
        f"say in `CUTS` at which uniforms the verdicts of `{request.param}` change"
    )
    return chosen


@of_both_kinds
@given(data=st.data())
def test_the_output_law_is_the_targets(
    verifier: Verifier, deterministic: bool, data: st.DataObject, device: torch.device
) -> None:
    generic = single_problems(deterministic, ((4, 2), (2, 4)), generic=True)
    rows, k, _ = data.draw(batches(deterministic) | generic)
    for problem, law in zip(rows, output_laws(verifier, rows, k, device), strict=True):
        np.testing.assert_allclose(law, problem.target_law(), rtol=0, atol=TOLERANCE)


@of_both_kinds
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_a_verdict_is_constant_in_each_box_of_the_noise(
    verifier: Verifier, deterministic: bool, data: st.DataObject, seed: int, device: torch.device
) -> None:
    """So the midpoints of tier 0 stand for all uniforms: its result is an integral, not a
    sample.
    """
    rows, k, _ = data.draw(batches(deterministic))
    assert constant_in_boxes(verifier, rows, k, device, seed=seed)


@given(data=st.data())
def test_the_boxes_of_a_problem_fill_the_whole_space(
    verifier: Verifier, data: st.DataObject
) -> None:
    rows, *_ = data.draw(batches(deterministic=False))
    for problem in rows:
        assert abs(boxes(problem, CUTS[type(verifier)]).weight.sum() - 1) < 1e-9


@given(data=st.data())
def test_rejection_accepts_the_first_token_as_often_as_any_exact_verifier_can(
    data: st.DataObject, device: torch.device
) -> None:
    """With probability sum(min(target, draft)): a verifier that rejects everything is exact too,
    and useless.
    """
    rows, k, _ = data.draw(batches(deterministic=False))
    rows = [problem for problem in rows if problem.length]
    if rows:
        parts = judge(BY_STEP["rejection"], rows, k, device)
        for problem, (part, _, accepted) in zip(rows, parts, strict=True):
            share = part.weight[accepted > 0].sum()
            assert abs(share - np.minimum(problem.target[()], problem.draft[()]).sum()) < TOLERANCE


def mean_accepted(
    verifier: Verifier, problems: list[Problem], k: int, device: torch.device
) -> list[float]:
    """Each problem's expected number of accepted tokens."""
    judged = judge(verifier, problems, k, device)
    return [float(accepted @ part.weight) for part, _, accepted in judged]


@of_both_kinds
@given(data=st.data())
def test_block_accepts_no_fewer_tokens_than_rejection_and_that_than_exact_match(
    deterministic: bool, data: st.DataObject, device: torch.device
) -> None:
    rows, k, _ = data.draw(batches(deterministic))
    block, rejection, match = (
        mean_accepted(BY_STEP[name], rows, k, device)
        for name in ("block", "rejection", "exact-match")
    )
    for problem, *means in zip(rows, block, rejection, match, strict=True):
        most, some, least = means
        assert most > some - TOLERANCE
        assert some > least - TOLERANCE
        if problem.length < 2:
            assert abs(most - some) < TOLERANCE  # a prefix of one token is a token


@given(data=st.data())
def test_block_is_rejection_where_a_draft_is_certain(
    data: st.DataObject, device: torch.device
) -> None:
    """Whether its distributions are one-hot or not reported: accepted and emitted tokens have the
    same joint law.
    """
    rows, k, _ = data.draw(batches(deterministic=True))
    one_hot = [
        replace(row, path=None, draft={p: row.guess(p) for p in row.draft if len(p) < row.length})
        for row in rows
    ]
    laws = []
    for name, problems in (("rejection", rows), ("block", rows), ("block", one_hot)):
        laws.append([Counter[tuple[int, ...]]() for _ in rows])
        judged = judge(BY_STEP[name], problems, k, device)
        for law, (part, emitted, accepted) in zip(laws[-1], judged, strict=True):
            for key, weight in zip(np.c_[accepted, emitted].tolist(), part.weight, strict=True):
                law[tuple(key)] += weight
    for by_token, *by_block in zip(*laws, strict=True):
        for law in by_block:
            for key in by_token | law:
                assert abs(by_token[key] - law[key]) < TOLERANCE


def test_block_verification_accepts_11_ninths_where_rejection_accepts_10(
    device: torch.device,
) -> None:
    """The example of Sun et al. (2024): target (1/3, 2/3), draft (2/3, 1/3), two drafted tokens."""
    prefixes = [p for n in range(3) for p in itertools.product(range(2), repeat=n)]
    problem = Problem(
        2,
        2,
        dict.fromkeys(prefixes, np.array([1, 2]) / 3),
        dict.fromkeys(prefixes, np.array([2, 1]) / 3),
    )
    for name, expected in (("rejection", 10 / 9), ("block", 11 / 9)):
        assert abs(mean_accepted(BY_STEP[name], [problem], 2, device)[0] - expected) < TOLERANCE


def test_what_the_bonus_the_boundary_and_the_residual_may_be() -> None:
    """The three laws of the last token, by hand: draft (1, 0, 0), target (.5, .3, .2) at every
    position.
    """
    half, sure = np.array([0.5, 0.3, 0.2]), np.array([1.0, 0.0, 0.0])
    prefixes = [p for n in range(3) for p in itertools.product(range(3), repeat=n)]
    problem = Problem(3, 2, dict.fromkeys(prefixes, half), dict.fromkeys(prefixes, sure))
    [(part, emitted, accepted)] = judge(BY_STEP["rejection"], [problem], 3)
    for count, expected in ((0, [0, 0.3, 0.2]), (1, [0, 0.15, 0.1]), (2, [0.125, 0.075, 0.05])):
        mass = np.zeros(3)
        np.add.at(mass, emitted[accepted == count, count], part.weight[accepted == count])
        np.testing.assert_allclose(mass, expected, atol=TOLERANCE)
