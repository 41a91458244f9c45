"""Coupled verification: a seed fixes the tokens, whatever is drafted; over seeds they follow the
target.

In float32 a window's probabilities may differ from a single token's by about 1e-7, which flips a
token about once in 10^6; the worlds that look their logits up in tables have no such sums.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from bass.drafters import ModelDraft, ModelDrafter
from bass.engine.assembly import own_draw
from bass.engine.requests import Request
from bass.interfaces import DraftLengthPolicy
from bass.ops.noise import exponential_race, exponentials, minus_log, philox, uniforms
from bass.policies import BatchAdaptive, Fixed
from bass.sampling_params import Sampling
from bass.testing import engine
from bass.testing.doubles import ByRow, OwnPast
from bass.testing.small_models import SmallLlama, SmallTable
from bass.testing.statistics import count
from support.doubles import Cycle, Scripted
from support.engines import (
    COUPLED,
    PAIRINGS,
    TABLE_DRAFTERS,
    Built,
    By,
    DrafterMaker,
    Setup,
    by_the_target,
    mixed_requests,
)
from support.matrix import matrix
from support.samples import assert_law

LLAMA, TABLE = SmallLlama(seed=7), SmallTable(seed=7)
WARPS = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.3),
    Sampling(1.5, top_p=0.9, repetition_penalty=1.2),
    Sampling(0.7, top_k=5, min_p=0.02),
]
LENGTHS = [Fixed(1), Fixed(5), BatchAdaptive(), OwnPast(), ByRow(), Cycle()]


@pytest.fixture(params=COUPLED)
def setup(request: pytest.FixtureRequest, device: torch.device) -> Setup:
    """Autoregressive decoding; rows of any batch."""
    return Setup(
        TABLE, device, policy=Fixed(0), drafter="none", verifier=COUPLED[request.param], eos=(2,)
    )


def replaying(
    tokens: list[list[int]], errs: Callable[[int, int], bool] = lambda *_: False, soft: bool = False
) -> DrafterMaker:
    """A drafter that knows the output of each request."""

    def make(setup: engine.Setup, requests: list[Request]) -> By:
        known = {r.key: r.prompt + out for r, out in zip(requests, tokens, strict=True)}
        return By(Scripted(known, errs, setup.model.vocab, soft))

    return make


@matrix(strength=1, drafter=TABLE_DRAFTERS, warp=WARPS[:3], policy=LENGTHS)
def test_every_drafter_policy_and_length_gives_the_tokens_of_plain_decoding(
    setup: Setup, drafter: str, warp: Sampling, policy: DraftLengthPolicy[Any]
) -> None:
    requests = mixed_requests(TABLE, seed=1)
    plain = setup.but(warp=warp)
    drafting = plain.but(policy=policy, drafter=drafter, batch=4)
    assert drafting.outcome(requests).tokens == plain.outcome(requests).tokens


@pytest.mark.usefixtures("small_buckets")
@matrix(
    strength=1,
    warp=WARPS[2:],
    pairing=PAIRINGS,
    drafts=[("none", Fixed(0), 9), ("model", OwnPast(), 4), ("model that stops", ByRow(), 1)],
)
def test_every_layout_backend_and_batch_gives_the_tokens_of_plain_decoding(
    setup: Setup, pairing: str, warp: Sampling, drafts: tuple[str, Any, int]
) -> None:
    requests, (drafter, policy, batch) = mixed_requests(LLAMA, seed=2), drafts
    llama = setup.but(model=LLAMA, warp=warp)
    drafting = llama.but(pairing=PAIRINGS[pairing], drafter=drafter, policy=policy, batch=batch)
    plain = llama.outcome(requests).tokens
    assert drafting.outcome(requests[::-1]).tokens[::-1] == plain


def test_a_drafter_that_knows_the_tokens_of_the_seed_is_always_right(setup: Setup) -> None:
    requests = mixed_requests(TABLE, seed=3)
    sampled = setup.but(warp=WARPS[0], eos=())
    plain = sampled.outcome(requests).tokens
    for soft in (False, True):
        outcome = sampled.but(drafter=replaying(plain, soft=soft), policy=Fixed(4)).outcome(
            requests
        )
        drafted, accepted = outcome.acceptance()
        assert outcome.tokens == plain
        assert accepted == drafted > 50


def test_a_draft_is_kept_up_to_its_first_difference(setup: Setup) -> None:
    """The script errs at every third position: at none of these is a drafted token accepted, and at
    all others it is.
    """
    requests = mixed_requests(TABLE, seed=4)
    sampled = setup.but(warp=WARPS[0], eos=())
    plain = sampled.outcome(requests).tokens
    outcome = sampled.but(
        drafter=replaying(plain, lambda _, p: p % 3 == 0), policy=Fixed(4)
    ).outcome(requests)
    assert outcome.tokens == plain
    for i, request in enumerate(requests):
        length = len(request.prompt)
        for drafted, accepted, emitted in outcome.history(i):
            assert accepted == min(drafted, -length % 3)
            length += emitted


def test_a_drafter_in_the_same_race_is_right_more_often_than_one_with_noise_of_its_own(
    setup: Setup,
) -> None:
    requests = mixed_requests(TABLE, seed=5, count=40, longest=30)
    sampled = setup.but(warp=WARPS[0], eos=(), batch=8, policy=Fixed(4))
    alone = Built(lambda c: ModelDrafter(c.draft(), c.warp, own_draw))
    own = sampled.but(drafter=By(alone)).outcome(requests)
    same = sampled.but(drafter=By(ModelDraft())).outcome(requests)
    itself = sampled.but(drafter=By(Built(by_the_target))).outcome(requests)
    assert own.tokens == same.tokens == itself.tokens
    (drafted, accepted), (all_drafted, all_accepted) = same.acceptance(), itself.acceptance()
    assert accepted / drafted > 1.3 * own.acceptance()[1] / own.acceptance()[0]
    assert all_accepted == all_drafted


def test_a_seed_gives_one_output_and_another_seed_another(setup: Setup) -> None:
    requests = mixed_requests(TABLE, seed=6, longest=30)
    others = [Request(r.prompt, r.limit, r.key + 1) for r in requests]
    sampled = setup.but(warp=WARPS[0])
    assert (
        sampled.outcome(requests).tokens
        == sampled.outcome(requests).tokens
        != sampled.outcome(others).tokens
    )


def test_over_keys_the_tokens_of_two_positions_are_independent_draws(device: torch.device) -> None:
    """Six tokens, so that two calls of the generator serve a position; one of probability zero, and
    weights that sum to 2.
    """
    n = 262144
    probs = torch.tensor(
        [[0.1, 0.4, 0.0, 0.1, 0.9, 0.5], [0.2, 0.2, 0.2, 0.4, 0.0, 1.0]], device=device
    ).expand(n, -1, -1)
    tokens = (
        exponential_race(
            probs, torch.arange(n, device=device) * 7919, torch.full((n,), 11, device=device)
        )
        .cpu()
        .numpy()
    )
    first, second = (probs[0] / 2).double().cpu().numpy()
    assert_law(count(tokens, 6), first[:, None] * second)


def test_the_noise_of_a_position_is_a_word_of_the_generator_at_that_position_and_of_its_own_domain(
    device: torch.device,
) -> None:
    keys, first = (
        torch.tensor([5, (3 << 32) + 9], device=device),
        torch.tensor([0, 41], device=device),
    )
    got = exponentials(keys, first, 3, 10)
    assert got.shape == (2, 3, 10)
    for row, slot, token in np.ndindex(2, 3, 10):
        counter = torch.tensor([int(first[row]) + slot, token // 4, 1, 0])
        word = philox(counter, torch.tensor([int(keys[row]) & 0xFFFFFFFF, int(keys[row]) >> 32]))[
            token % 4
        ]
        assert float(got[row, slot, token]) == pytest.approx(
            -np.log((int(word) + 0.5) / 2**32), rel=1e-11
        )
    step = minus_log(uniforms(keys, first, 9))
    assert len(torch.cat((got.flatten(), step.flatten())).unique()) == got.numel() + step.numel()


def test_the_logarithm_is_that_of_the_ends_the_middle_and_the_powers_of_two() -> None:
    grid = torch.cat(
        (
            torch.arange(64),
            2 ** torch.arange(32),
            2 ** torch.arange(32) - 1,
            2**32 - 1 - torch.arange(64),
        )
    )
    x = (grid.to(torch.float64) + 0.5) / 2**32
    torch.testing.assert_close(minus_log(x), -x.log(), rtol=1e-11, atol=0)
    assert minus_log(x).min() > 0
