"""Tier 1: greedy decoding by the engine, by the plain loop, and by the oracle that recomputes
everything: token for token.
"""

from typing import Any

import numpy as np
import pytest
import torch

from bass.engine.prefill import Part
from bass.engine.requests import Request
from bass.policies import BatchAdaptive, Fixed
from bass.records import CacheBudget, Sequences
from bass.sampling_params import Sampling
from bass.testing.doubles import ByRow, OwnPast
from bass.testing.small_models import Pairing, SmallLlama, SmallModel, SmallTable, dense_logits
from support.doubles import CheckedScorer, Cycle, SmallCounting
from support.engines import (
    DRAFTER_MAKERS,
    LOSSLESS,
    PAIRINGS,
    TABLE_DRAFTERS,
    TEST_POLICIES,
    RunOutput,
    Setup,
    mixed_requests,
    same_prompt,
    watched,
)
from support.matrix import matrix
from support.oracle import greedy
from support.plain_loop import plain_loop

LLAMA, TABLE = SmallLlama(), SmallTable()
GREEDY = Sampling(temperature=0)
EOS = (2, 5)  # both occur in the outputs of both worlds


def expected(
    world: SmallModel, requests: list[Request], eos: tuple[int, ...] = ()
) -> list[list[int]]:
    return [greedy(world, request.prompt, request.limit, eos) for request in requests]


@pytest.fixture(params=PAIRINGS)
def pairing(request: pytest.FixtureRequest) -> Pairing:
    return PAIRINGS[request.param]


@pytest.mark.usefixtures("small_buckets")
@matrix(
    apart=("policy", "drafter", "verifier"),
    pair=PAIRINGS,
    policy=TEST_POLICIES,
    drafter=DRAFTER_MAKERS,
    verifier=LOSSLESS,
)
def test_every_layout_backend_policy_drafter_and_verifier_emits_the_oracles_tokens(
    pair: str, policy: str, drafter: str, verifier: str, device: torch.device
) -> None:
    """Ragged prompts, two of a kind, seven requests for three poisoned rows, limits from 1 to 11
    new tokens, ends of sequence.

    Policies, drafters of a table and verifiers meet in the test of the account, below.
    """
    requests = mixed_requests(LLAMA, count=7, longest=11)
    setup = Setup(
        LLAMA,
        device,
        PAIRINGS[pair],
        TEST_POLICIES[policy],
        drafter,
        LOSSLESS[verifier],
        GREEDY,
        EOS,
    )
    outcome = setup.outcome(requests)
    assert outcome.tokens == expected(LLAMA, requests, EOS)
    assert all(outcome.done)


@matrix(strength=1, policy=TEST_POLICIES, drafter=TABLE_DRAFTERS, seed=range(6))
def test_a_target_that_hashes_its_whole_memory_emits_the_oracles_tokens(
    policy: str, drafter: str, seed: int, device: torch.device
) -> None:
    """Here one wrong or stale token anywhere in a row's past changes all that follows."""
    requests = mixed_requests(TABLE, seed, count=14)
    setup = Setup(
        TABLE, device, policy=TEST_POLICIES[policy], drafter=drafter, eos=(seed,), batch=1 + seed
    )
    assert setup.outcome(requests).tokens == expected(TABLE, requests, (seed,))


def test_a_model_in_float64_emits_the_oracles_tokens_and_its_log_probabilities(
    pairing: Pairing, device: torch.device
) -> None:
    world = SmallLlama(seed=8, dtype=torch.float64)
    requests = mixed_requests(world)
    outcome = Setup(world, device, pairing, OwnPast(), warp=GREEDY).outcome(requests)
    assert outcome.tokens == expected(world, requests)
    for request, tokens, logprobs in zip(requests, outcome.tokens, outcome.logprobs, strict=True):
        logits = world.oracle("target", np.array([request.prompt]))[0]
        # rotary angles are made in float32
        assert abs(logprobs[0] - (logits[tokens[0]] - np.logaddexp.reduce(logits))) < 1e-5


@pytest.mark.nightly
@pytest.mark.usefixtures("small_buckets")
@matrix(whole=False, pair=PAIRINGS, policy=TEST_POLICIES, drafter=DRAFTER_MAKERS, seed=range(8))
def test_many_models_and_batches_emit_the_oracles_tokens(
    pair: str, policy: str, drafter: str, seed: int, device: torch.device
) -> None:
    world = SmallLlama(
        vocab=9 + seed % 7,
        seed=100 + seed,
        unlikeness=(0.02, 0.1, 0.4)[seed % 3],
        dtype=torch.float64,
    )
    requests = mixed_requests(world, seed, count=16, longest=30)
    setup = Setup(
        world,
        device,
        PAIRINGS[pair],
        TEST_POLICIES[policy],
        drafter,
        warp=GREEDY,
        eos=(seed % 9,),
        batch=1 + seed % 6,
    )
    assert setup.outcome(requests).tokens == expected(world, requests, (seed % 9,))


@pytest.mark.parametrize("world", [LLAMA, TABLE], ids=["llama", "table"])
def test_the_plain_loop_emits_the_oracles_tokens(
    pairing: Pairing, world: SmallModel, device: torch.device
) -> None:
    requests = mixed_requests(world)
    capacities = np.array([request.limit for request in requests])
    sequences = Sequences.empty(len(requests), int(capacities.max()), list(EOS), device)
    for row, request in enumerate(requests):
        sequences.tokens[row, : len(request.prompt)] = torch.tensor(request.prompt, device=device)
        sequences.lens[row], sequences.limits[row], sequences.active[row] = (
            len(request.prompt),
            request.limit,
            True,
        )
    target = world.scorer("target", pairing, CacheBudget.of(capacities), device)
    tokens = plain_loop(
        target, GREEDY, sequences, [r.prompt for r in requests], int(capacities.max())
    )
    assert tokens == expected(world, requests, EOS)


@pytest.mark.usefixtures("small_buckets")
@pytest.mark.parametrize(
    "policy",
    [OwnPast(), ByRow(), Cycle(), Fixed(2), BatchAdaptive()],
    ids=lambda p: type(p).__name__,
)
@pytest.mark.parametrize(
    "drafter", ["model", "model that stops", "the target itself", "wrong now and then"]
)
def test_every_query_finds_its_rows_committed_tokens_and_no_others(
    policy: Any, drafter: str, device: torch.device
) -> None:
    """Positions are contiguous, windows start at the last committed token, and nothing committed is
    missing or stale.
    """
    witnesses: list[CheckedScorer] = []

    def watch(scorer: Any, sequences: Sequences, is_target: bool) -> CheckedScorer:
        witnesses.append(CheckedScorer(scorer, sequences, is_target))
        return witnesses[-1]

    for warp in (GREEDY, Sampling(temperature=1.0)):
        requests = mixed_requests(TABLE, 1, count=12)
        setup = Setup(TABLE, device, policy=policy, drafter=drafter, warp=warp, wrap=watched(watch))
        run = setup.engine(requests)
        for witness in witnesses:
            [witness.lacking] = run.schedule.lacking
        RunOutput(run)
    assert all(witness.passes for witness in witnesses)


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("drafter", ["always wrong", "always wrong, soft"])
def test_a_drafter_that_is_always_wrong_gives_plain_decoding_one_token_a_step(
    pairing: Pairing, drafter: str, k: int, device: torch.device
) -> None:
    requests = mixed_requests(LLAMA)
    outcome = Setup(LLAMA, device, pairing, Fixed(k), drafter).outcome(requests)
    assert outcome.tokens == expected(LLAMA, requests)
    assert outcome.acceptance()[1] == 0
    assert all(emitted == 1 for i in range(len(requests)) for _, _, emitted in outcome.history(i))


def test_a_row_that_rejects_all_and_a_row_that_accepts_all_do_not_disturb_each_other(
    pairing: Pairing, device: torch.device
) -> None:
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8], [9, 1], [3, 3, 3, 3]]
    # rows of even keys are always wrong
    requests = [Request(prompt, len(prompt) + 20, key=i) for i, prompt in enumerate(prompts)]
    outcome = Setup(LLAMA, device, pairing, Fixed(3), "right and wrong rows", batch=4).outcome(
        requests
    )
    assert outcome.tokens == expected(LLAMA, requests)
    for i in range(4):
        steps = outcome.history(i)
        assert len(steps) == (20 if i % 2 == 0 else 5)
        assert all(accepted == (0 if i % 2 == 0 else drafted) for drafted, accepted, _ in steps)


@matrix(
    strength=1,
    pair=PAIRINGS,
    policy=(
        Fixed(1),
        Fixed(4),
        Cycle(),
        Cycle((1, 0, 5, 0, 0, 0, 2)),
        ByRow(4),
        Cycle((0, 0, 0, 5, 0, 1), 1),
        Cycle((0,) * 40 + (3,) * 20, 7),
    ),
    warp=(GREEDY, Sampling(temperature=1.0), Sampling(0.8, top_p=0.9, repetition_penalty=1.5)),
)
def test_a_draft_equal_to_the_target_is_always_accepted(
    pair: str, policy: Any, warp: Sampling, device: torch.device
) -> None:
    """For many steps, and after steps in which no row or only others drafted: the draft's cache
    never lacks a token.
    """
    requests = mixed_requests(LLAMA, seed=4, count=7, longest=60)
    outcome = Setup(LLAMA, device, PAIRINGS[pair], policy, "the target itself", warp=warp).outcome(
        requests
    )
    drafted, accepted = outcome.acceptance()
    assert drafted == accepted
    assert drafted > 60
    if warp == GREEDY:
        assert outcome.tokens == expected(LLAMA, requests)


@pytest.mark.parametrize("k", [0, 1, 4, 6])
@pytest.mark.parametrize("ahead", range(1, 8))
@pytest.mark.parametrize("drafter", ["always right", "model"])
def test_an_end_of_sequence_within_an_accepted_draft_ends_that_row_there(
    k: int, ahead: int, drafter: str, device: torch.device
) -> None:
    """The world counts upwards, so the end comes `ahead` tokens after the prompt of the first row;
    the second has passed it.
    """
    world = SmallCounting()
    requests = [Request([3], 20, 1), Request([20], 12, 2), Request([0, 2], 9, 3)]
    outcome = Setup(
        world, device, policy=Fixed(k), drafter=drafter, eos=(3 + ahead, 39), batch=2
    ).outcome(requests)
    first, second, third = outcome.tokens
    assert first == list(range(4, 4 + ahead))
    assert second == list(range(21, 32))
    assert third == list(range(3, min(9 + 1, 3 + ahead + 1)))[:7]
    for request in range(3):
        for drafted, accepted, emitted in outcome.history(request):
            assert accepted <= drafted <= k
            assert emitted - accepted in (0, 1)


@pytest.mark.parametrize("drafter", ["model", "always right", "wrong now and then"])
def test_an_end_of_sequence_token_that_is_also_padding_ends_only_where_it_is_emitted(
    pairing: Pairing, drafter: str, device: torch.device
) -> None:
    requests = mixed_requests(LLAMA, seed=4)
    for eos in range(3):
        outcome = Setup(LLAMA, device, pairing, OwnPast(), drafter, eos=(eos,)).outcome(requests)
        assert outcome.tokens == expected(LLAMA, requests, (eos,))


@pytest.mark.parametrize("policy", TEST_POLICIES)
def test_a_row_at_its_limit_neither_stops_nor_truncates_nor_shortens_the_others(
    policy: str, device: torch.device
) -> None:
    requests = [Request([i], 1 + new, key=i) for i, new in enumerate((1, 2, 3, 5, 8, 13, 21, 34))]
    setup = Setup(TABLE, device, policy=TEST_POLICIES[policy], drafter="always right", batch=8)
    outcome = setup.outcome(requests)
    assert [len(tokens) for tokens in outcome.tokens] == [1, 2, 3, 5, 8, 13, 21, 34]
    assert outcome.tokens == expected(TABLE, requests)
    if policy == "fixed":
        for i, request in enumerate(requests):
            length = 1
            for drafted, _, emitted in outcome.history(i):
                assert drafted == min(Fixed().k, request.limit - length - 1)
                assert emitted == drafted + 1
                length += emitted


@matrix(policy=TEST_POLICIES, drafter=TABLE_DRAFTERS, verifier=LOSSLESS)
def test_the_account_of_drafted_and_accepted_tokens_adds_up_to_the_committed_ones(
    policy: str, drafter: str, verifier: str, device: torch.device
) -> None:
    """Each step of a row commits its accepted tokens and at most one of the verifier's; idle rows
    report nothing.

    The tokens are the oracle's, under every policy with every drafter of a table.
    """
    requests = mixed_requests(TABLE, seed=2, count=5)
    outcome = Setup(
        TABLE,
        device,
        policy=TEST_POLICIES[policy],
        drafter=drafter,
        verifier=LOSSLESS[verifier],
        eos=(2, 4),
    ).outcome(requests)
    assert outcome.tokens == expected(TABLE, requests, (2, 4))
    for i in range(len(requests)):
        steps = outcome.history(i)
        assert sum(emitted for *_, emitted in steps) == len(outcome.tokens[i])
        assert all(emitted == accepted + 1 for _, accepted, emitted in steps[:-1])
        assert all(
            accepted <= min(drafted, emitted) and emitted - accepted in (0, 1)
            for drafted, accepted, emitted in steps
        )
    for step in outcome.steps:
        idle = step.requests < 0
        assert not step.drafted[idle].any()
        assert not step.accepted[idle].any()
        assert not step.emitted[idle].any()
        assert (step.drafted <= step.k).all()


def test_a_stop_rule_ends_a_draft_right_after_the_token_at_which_it_fires(
    device: torch.device,
) -> None:
    """Counting upwards, the rule fires at 2, 5, 8, ...: that token is still drafted, and is the
    last of its draft.
    """
    requests = [Request([start], 30, start) for start in (0, 1, 5)]
    outcome = Setup(
        SmallCounting(), device, policy=Fixed(6), drafter="model that stops", batch=3
    ).outcome(requests)
    for i, request in enumerate(requests):
        last = request.prompt[0]
        for drafted, accepted, emitted in outcome.history(i):
            left = request.limit - (last - request.prompt[0] + 1) - 1
            assert drafted == min(next(n for n in range(1, 7) if (last + n) % 3 == 2), left)
            assert accepted == drafted
            last += emitted


@pytest.mark.parametrize("drafter", ["model", "none", "always right"])
def test_log_probabilities_are_the_targets_own(
    pairing: Pairing, drafter: str, device: torch.device
) -> None:
    requests = mixed_requests(LLAMA, seed=5)
    outcome = Setup(
        LLAMA, device, pairing, OwnPast(), drafter, warp=Sampling(0.7, top_p=0.9)
    ).outcome(requests)
    for request, tokens, logprobs in zip(requests, outcome.tokens, outcome.logprobs, strict=True):
        logits = dense_logits(LLAMA.models["target"], np.array([request.prompt + tokens]))[
            0, len(request.prompt) - 1 : -1
        ]
        own = logits[np.arange(len(tokens)), tokens] - np.logaddexp.reduce(logits, 1)
        np.testing.assert_allclose(logprobs, own, rtol=0, atol=1e-4)


@pytest.mark.usefixtures("small_buckets")
def test_samples_of_one_prompt_share_one_prefill_and_still_agree_with_the_oracle(
    pairing: Pairing, device: torch.device
) -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    requests = same_prompt(prompt, 9, 7) + same_prompt(prompt[:5], 5, 3)
    run = Setup(LLAMA, device, pairing, OwnPast(), batch=4, warp=GREEDY).engine(requests)
    prefill, fed = run.step.prefill, list[int]()

    def counted(rows: Sequences, parts: list[Part]) -> None:
        fed.extend(part.last - part.first for part in parts)
        prefill(rows, parts)

    object.__setattr__(run.step, "prefill", counted)
    assert RunOutput(run).tokens == expected(LLAMA, requests)
    assert 0 < sum(fed) < 3 * len(prompt)
