"""Tier 3: a rule that ends drafts early leaves the output exact. Every registered rule, as its
defaults make it.

A rule is tried in a world in which it ends some drafts and leaves others, found by `world_for`. The
joint laws fail a correct rule with a probability of 1e-6 at most and see a bias of 0.029; a token
that is taken back because it was improbable was seen to cause 0.08 and more.
"""

import functools
import itertools
from typing import Any

import numpy as np
import pytest
import torch

from bass.drafters import ModelDraft, SelfDraft
from bass.engine.requests import Request
from bass.interfaces import DraftLengthPolicy, StopRule
from bass.policies import BatchAdaptive, Fixed
from bass.sampling_params import Sampling
from bass.stop_rules import STOP_RULES
from bass.testing.doubles import ByRow, OwnPast
from bass.testing.small_models import SmallLlama, SmallTable
from bass.testing.statistics import count
from support.doubles import Cycle
from support.engines import By, Setup, mixed_requests
from support.matrix import matrix
from support.oracle import greedy, joint_law
from support.samples import assert_law, first_tokens

LLAMA = SmallLlama(seed=7)
PROMPT = [0, 2]
# of which the law is that of the first three: so drafts of three tokens occur, and end after two
NEW = 4
SAMPLES = 53248
POLICIES = [Fixed(4), BatchAdaptive(), OwnPast(), ByRow(4), Cycle()]
LAWS: list[tuple[DraftLengthPolicy[Any], Sampling]] = [
    (Fixed(3), Sampling(temperature=1.0)),
    (ByRow(3), Sampling(temperature=0.7)),
    (BatchAdaptive(3), Sampling(temperature=1.0, top_p=0.8)),
]


@functools.cache
def world_for(rule: StopRule, vocab: int) -> SmallTable:
    """The first small world in which the rule never ends a draft after its first token, and now and
    then after its second; where draft and target are unlike, so that a token which is kept or
    dropped for a wrong reason shows.
    """
    for sharpness, seed in itertools.product((1.5, 3.0, 5.0, 2.0, 1.0, 0.7, 8.0), range(300)):
        world = SmallTable(vocab, order=2, seed=seed, sharpness=sharpness, likeness=0.4)
        first = own_probs(world, [PROMPT])
        second = own_probs(world, [[*PROMPT, token] for token in range(vocab)])
        fires = rule(torch.as_tensor(second), 1).double().numpy()
        distance = (
            np.abs(first - np.exp(log_softmax(world.oracle("target", np.array([PROMPT]))))).sum()
            / 2
        )
        if (
            not rule(torch.as_tensor(first), 0).any()
            and 0.2 < float(fires @ first[0]) < 0.8
            and distance > 0.1
        ):
            return world
    raise AssertionError(
        f"in none of these worlds does {rule} end some drafts and leave others: try others"
    )


def own_probs(world: SmallTable, prefixes: list[list[int]]) -> np.ndarray:
    """The draft's own distributions, in float64."""
    return np.exp(log_softmax(world.oracle("draft", np.array(prefixes))))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.logaddexp.reduce(logits, 1, keepdims=True)


@pytest.fixture(params=STOP_RULES)
def rule(request: pytest.FixtureRequest) -> StopRule:
    return STOP_RULES[request.param]()


@matrix(strength=1, name=STOP_RULES, policy=POLICIES)
def test_greedy_decoding_emits_the_oracles_tokens(
    name: str, policy: Any, device: torch.device
) -> None:
    """With a draft model, and with a target that drafts with its own first layer."""
    rule = STOP_RULES[name]()
    for world, method in (
        (world_for(rule, 7), ModelDraft()),
        (LLAMA, ModelDraft()),
        (LLAMA, SelfDraft(1)),
    ):
        requests = mixed_requests(world, seed=4)
        setup = Setup(world, device, policy=policy, drafter=By(method, rule), eos=(2,))
        assert setup.outcome(requests).tokens == [
            greedy(world, r.prompt, r.limit, (2,)) for r in requests
        ]


def test_a_draft_ends_with_the_first_token_at_which_the_rule_fires_and_keeps_it(
    rule: StopRule, device: torch.device
) -> None:
    """By the oracle: the draft is continued greedily, and the rule asked about the draft model's
    own distributions, in float64.
    """
    world, k = world_for(rule, 7), 5
    requests = mixed_requests(world, seed=5, count=16, longest=30)
    outcome = Setup(world, device, policy=Fixed(k), drafter=By(ModelDraft(), rule)).outcome(
        requests
    )
    ended = 0
    for i, request in enumerate(requests):
        tokens = list(request.prompt)
        for drafted, _, emitted in outcome.history(i):
            asked = min(k, request.limit - len(tokens) - 1)
            draft, length = list(tokens), 0
            while length < asked:
                probs = own_probs(world, [draft])
                draft.append(int(probs.argmax()))
                length += 1
                if rule(torch.as_tensor(probs), length - 1).any():
                    break
            assert drafted == length
            ended += length < asked
            tokens += outcome.tokens[i][len(tokens) - len(request.prompt) :][:emitted]
    steps = sum(len(outcome.history(i)) for i in range(len(requests)))
    assert 0 < ended < steps


@matrix(strength=1, name=STOP_RULES, law=LAWS)
def test_the_joint_law_of_three_tokens_is_the_targets(
    name: str, law: tuple[DraftLengthPolicy[Any], Sampling], device: torch.device
) -> None:
    rule, (policy, warp) = STOP_RULES[name](), law
    world = world_for(rule, 3)
    setup = Setup(world, device, policy=policy, drafter=By(ModelDraft(), rule), warp=warp)
    tokens, drafted = first_tokens(setup, PROMPT, NEW, SAMPLES)
    assert_law(count(tokens[:, :3], 3), joint_law(world, PROMPT, 3, warp))
    _, asked = first_tokens(setup.but(drafter=By(ModelDraft())), PROMPT, NEW, SAMPLES // 13)
    assert 0 < drafted.mean() < asked.mean()


def test_a_rule_asks_the_draft_model_and_not_the_warped_distribution(
    rule: StopRule, device: torch.device
) -> None:
    """The same greedy drafts end at the same places whatever the temperature of a one-hot; a warped
    one-hot would end none.
    """
    world = world_for(rule, 7)
    requests = [Request(r.prompt, r.limit, r.key) for r in mixed_requests(world, seed=7)]
    setup = Setup(world, device, policy=Fixed(4), drafter=By(ModelDraft(), rule))
    greedily, narrowly = (
        setup.but(warp=warp).outcome(requests) for warp in (Sampling(0.0), Sampling(1.0, top_k=1))
    )
    unruled = setup.but(drafter=By(ModelDraft())).outcome(requests)
    assert greedily.histories() == narrowly.histories()
    assert greedily.acceptance()[0] < unruled.acceptance()[0]
