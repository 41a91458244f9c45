"""Tier 4: the joint law of the first tokens, end to end, on models of three tokens.

A narrow vocabulary on purpose: in a wide one, noise that is used twice hides. Every assertion fails
a correct engine with a probability of 1e-6 at most, and would see a bias of 0.029 (total
variation): see `bass.testing.statistics`.
"""

from typing import Any

import numpy as np
import pytest
import torch

from bass.engine.requests import Request
from bass.ops.noise import row_key
from bass.policies import Fixed
from bass.sampling import RowSampling
from bass.sampling_params import Sampling
from bass.testing import engine
from bass.testing.doubles import ByRow, OwnPast
from bass.testing.small_models import SmallLlama, SmallTable
from bass.testing.statistics import FALSE_FAILURE, MISS, count, detectable, distance, threshold
from support.engines import LOSSLESS, PAIRINGS, TABLE_DRAFTERS, TEST_POLICIES, Setup, same_prompt
from support.matrix import matrix
from support.oracle import joint_law
from support.samples import SEEN_BIAS, assert_law, first_tokens

TABLE = SmallTable(vocab=3, order=2, seed=1, sharpness=1.2, likeness=0.5)
LLAMA = SmallLlama(vocab=3, layers=1, seed=2, unlikeness=0.4, sharpness=0.3)
PROMPT = [0, 2]
ROWS = 8192  # a batch
WARPS = [
    Sampling(temperature=1.0, repetition_penalty=1.5),
    Sampling(temperature=0.2),
    Sampling(temperature=0.8),
    Sampling(temperature=1.0),
    Sampling(temperature=1.0, top_p=0.8),
    Sampling(temperature=0.8, top_p=0.95),
    Sampling(temperature=1.0, top_k=2),
    Sampling(temperature=1.2, min_p=0.25),
    Sampling(temperature=0.8, top_k=2, top_p=0.9, repetition_penalty=0.7),
    Sampling(temperature=1.0, presence_penalty=0.9, frequency_penalty=-0.6),
]


# with so many rows, checks of types and shapes would take most of the time
pytestmark = pytest.mark.usefixtures("unchecked")


def sampled(setup: Setup, new: int, samples: int, seed: int = 0) -> np.ndarray:
    """Counts of the first `new` tokens over `samples` requests of one prompt, in batches of
    `ROWS`.
    """
    requests = same_prompt(PROMPT, new, samples, seed, (setup.warp,))
    outcome = setup.but(batch=ROWS, warp=RowSampling()).outcome(requests)
    return count(np.array(outcome.tokens), setup.model.vocab)


def stepped(setup: Setup, samples: int = 53248, new: int = 3) -> np.ndarray:
    """Counts of the first `new` tokens, by the engine's steps alone; rows that are given to one
    request after another are below.
    """
    return count(first_tokens(setup, PROMPT, new, samples)[0], setup.model.vocab)


@matrix(strength=1, warp=WARPS, drafter=("model", "model that stops"))
def test_the_joint_law_of_three_tokens_is_the_targets(
    warp: Sampling, drafter: str, device: torch.device
) -> None:
    """Rows of every length 0..3 in every batch; with a rule that ends drafts early, too."""
    setup = Setup(TABLE, device, policy=ByRow(3), drafter=drafter, warp=warp)
    assert_law(stepped(setup), joint_law(TABLE, PROMPT, 3, warp))


@matrix(strength=1, policy=TEST_POLICIES, drafter=TABLE_DRAFTERS, verifier=LOSSLESS)
def test_the_joint_law_is_the_targets_under_every_policy_drafter_and_verifier(
    policy: str, drafter: str, verifier: str, device: torch.device
) -> None:
    """Policies that learn from what was accepted may use the past: it is no secret of the tokens to
    come. A script that knows the greedy output proposes without chance: sampling must not follow.
    """
    warp = Sampling(temperature=0.9)
    setup = Setup(
        TABLE,
        device,
        policy=TEST_POLICIES[policy],
        drafter=drafter,
        verifier=LOSSLESS[verifier],
        warp=warp,
    )
    assert_law(stepped(setup), joint_law(TABLE, PROMPT, 3, warp))


ROW_BY_ROW = "split+per-row"  # ten times as long as any other; every night


@pytest.mark.parametrize(
    "pairing",
    [pytest.param(p, marks=pytest.mark.nightly) if p == ROW_BY_ROW else p for p in PAIRINGS],
)
def test_the_joint_law_is_the_targets_in_every_layout_and_backend(
    pairing: str, device: torch.device
) -> None:
    warp = Sampling(0.8, top_p=0.95)
    setup = Setup(LLAMA, device, PAIRINGS[pairing], ByRow(2), "model that stops", warp=warp)
    assert_law(sampled(setup, 2, 45056), joint_law(LLAMA, PROMPT, 2, warp))


def test_the_token_after_full_acceptance_comes_from_the_target(device: torch.device) -> None:
    """Draft = target: every draft is accepted, so the second token is always a bonus token."""
    warp = Sampling(temperature=1.0)
    setup = Setup(TABLE, device, policy=Fixed(1), drafter="the target itself", warp=warp)
    outcome = setup.but(batch=ROWS).outcome(same_prompt(PROMPT, 2, 45056))
    drafted, accepted = outcome.acceptance()
    assert accepted == drafted == 45056
    assert_law(count(np.array(outcome.tokens), 3), joint_law(TABLE, PROMPT, 2, warp))


def test_no_step_draws_with_the_noise_of_rejected_tokens(device: torch.device) -> None:
    """Block verification judges a draft as a whole: it is biased where the next step draws with the
    noise of positions that it rejected. Two tokens, unlike distributions: half of them are.
    """
    warp = Sampling(temperature=1.0)
    block = LOSSLESS["block"]
    setup = Setup(engine.COIN, device, policy=Fixed(4), verifier=block, warp=warp)
    assert_law(stepped(setup, new=4), joint_law(engine.COIN, PROMPT, 4, warp))


def test_consecutive_steps_share_no_noise(device: torch.device) -> None:
    """Three tokens in three steps of autoregressive decoding: a step that reused the last one's
    uniforms would repeat its token.
    """
    warp = Sampling(temperature=1.0)
    setup = Setup(TABLE, device, policy=Fixed(0), warp=warp)
    assert_law(sampled(setup, 3, 53248), joint_law(TABLE, PROMPT, 3, warp))


def test_two_samples_of_one_prompt_in_one_batch_are_independent(device: torch.device) -> None:
    """The law of the pair (first token of an even sample, first token of the next) is the product
    of the two.
    """
    warp = Sampling(temperature=1.0)
    setup = Setup(TABLE, device, policy=ByRow(2), warp=warp, batch=ROWS)
    tokens = np.array(setup.outcome(same_prompt(PROMPT, 1, 2 * 45056)).tokens)[:, 0].reshape(-1, 2)
    law = joint_law(TABLE, PROMPT, 1, warp)
    assert_law(count(tokens, 3), law[:, None] * law)


def test_rows_with_requests_of_three_kinds_each_follow_their_own_law(device: torch.device) -> None:
    """Each kind has its own prompt, limit, longest draft and options: penalties, cuts and none in
    one batch, in rows that are filled again; prompts are fed in chunks while others run, or copied.
    """
    kinds = (
        ([0, 2, 1, 1, 0, 2, 2], 3, None, WARPS[-1]),
        ([1], 2, 1, Sampling(temperature=0.7, top_k=2, repetition_penalty=1.4)),
        ([0, 2], 3, 0, Sampling(temperature=0.9)),
    )
    requests = [
        Request(prompt, len(prompt) + new, row_key(5, prompt, i), sampling=warp, max_draft_length=k)
        for i in range(53248)
        for prompt, new, k, warp in kinds
    ]
    setup = Setup(TABLE, device, policy=OwnPast(3), drafter="model that stops", warp=RowSampling())
    outcome = setup.but(batch=ROWS).outcome(requests)
    assert {int(step.drafted.max()) for step in outcome.steps} == {0, 1, 2}
    for i, (prompt, new, _, warp) in enumerate(kinds):
        counts = count(np.array(outcome.tokens[i :: len(kinds)]), 3)
        assert_law(counts, joint_law(TABLE, prompt, new, warp))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "world", [TABLE, LLAMA, SmallTable(4, 3, 5, 1.0, 0.3), SmallTable(3, 2, 9, 3.0, 0.7)], ids=repr
)
@pytest.mark.parametrize("warp", WARPS, ids=repr)
def test_the_joint_law_holds_to_one_percent(
    world: Any, warp: Sampling, device: torch.device
) -> None:
    setup = Setup(world, device, policy=OwnPast(3), drafter="model that stops", warp=warp)
    assert_law(
        sampled(setup, 3, 655360, seed=11), joint_law(world, PROMPT, 3, warp), must_see=0.012
    )


def test_the_statistics_keep_their_promises() -> None:
    """On simulated samples: the law itself never fails, a bias of the detectable size always
    does.
    """
    random = np.random.default_rng(0)
    law, n = np.array([0.5, 0.3, 0.2]), 40960
    bias, most = detectable(law, n), threshold(law, n)
    assert bias < SEEN_BIAS
    biased = law + bias * np.array([-1, 0.5, 0.5])
    assert all(distance(random.multinomial(n, law), law) <= most for _ in range(2000))
    assert all(distance(random.multinomial(n, biased), law) > most for _ in range(2000))
    assert (FALSE_FAILURE, MISS) == (1e-6, 1e-3)
    with pytest.raises(AssertionError, match="use more"):
        assert_law(random.multinomial(400, law), law)
