"""Tier 2: a request's tokens are a function of its prompt, seed and sample index; batch, slot,
layout and backend are not in it.

In float32 a sum in another order moves a probability by about 1e-7, so a uniform falls between the
two values about once in 10^6 draws. The seeds are fixed, and these tests make some 10^4 draws.
"""

from dataclasses import replace
from typing import Any, final
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bass.engine.requests import Request, Source
from bass.engine.shapes import StepShapes
from bass.policies import Fixed
from bass.records import CacheBudget, Sequences
from bass.sampling import RowSampling
from bass.sampling_params import Sampling
from bass.testing.doubles import OwnPast
from bass.testing.small_models import SmallLlama, SmallModel, SmallTable
from support.engines import (
    BY_STEP,
    DRAFTER_MAKERS,
    EVERY_VERIFIER,
    PAIRINGS,
    RunOutput,
    Setup,
    mixed_requests,
)
from support.matrix import matrix
from support.plain_loop import plain_loop
from support.queued import Queued

LLAMA, TABLE = SmallLlama(seed=7), SmallTable(seed=7)
WARPS = [
    Sampling(temperature=1.0),
    Sampling(0.8, top_p=0.9, repetition_penalty=1.2),
    Sampling(0.6, top_k=5, min_p=0.02),
]
# a row's lengths depend on nothing of the other rows
OWN_POLICIES = {"fixed": Fixed(3), "plain": Fixed(0), "own-past": OwnPast()}
# a table has no layout
PLACES: dict[str, tuple[SmallModel, Any]] = {name: (LLAMA, pair) for name, pair in PAIRINGS.items()}
PLACES["table"] = (TABLE, next(iter(PAIRINGS.values())))


@pytest.mark.usefixtures("small_buckets")
@matrix(
    strength=1,  # pairs of them meet in tier 1
    pair=PAIRINGS,
    own=OWN_POLICIES,
    drafter=DRAFTER_MAKERS,
    verifier=EVERY_VERIFIER,
)
def test_the_same_noise_gives_the_same_tokens_in_every_combination(
    pair: str, own: str, drafter: str, verifier: str, device: torch.device
) -> None:
    """In this layout and this batch as in the first layout, one request at a time."""
    requests = mixed_requests(LLAMA, seed=9, count=5, longest=8)
    setup = Setup(
        LLAMA,
        device,
        policy=OWN_POLICIES[own],
        drafter=drafter,
        verifier=EVERY_VERIFIER[verifier],
        warp=WARPS[0],
        eos=(2,),
    )
    # its scripts are those of all requests, also when there is one
    setup = setup.but(drafter=setup.drafts(requests))
    together = setup.but(pairing=PAIRINGS[pair]).outcome(requests)
    alone = [setup.but(batch=1).outcome([request]) for request in requests]
    assert together.tokens == [one.tokens[0] for one in alone]
    assert together.histories() == [one.history(0) for one in alone]


@matrix(strength=1, place=PLACES, own=OWN_POLICIES, drafter=("model", "model that stops"))
def test_a_request_alone_and_in_any_batch_gives_the_same_tokens_and_acceptance(
    place: str, own: str, drafter: str, device: torch.device
) -> None:
    """Solo, two or all nine at once, in reverse order (other slots, other mates): the whole history
    of each request is equal.
    """
    world, pairing = PLACES[place]
    requests = mixed_requests(world, seed=2)
    setup = Setup(world, device, pairing, OWN_POLICIES[own], drafter, warp=WARPS[1], eos=(2,))
    alone = [setup.but(batch=1).outcome([request]) for request in requests]
    tokens, steps = [a.tokens[0] for a in alone], [a.history(0) for a in alone]
    for batch in (2, 9):
        together = setup.but(batch=batch).outcome(requests)
        assert together.tokens == tokens
        assert together.histories() == steps
    backwards = setup.but(batch=3).outcome(requests[::-1])
    assert backwards.tokens[::-1] == tokens
    assert backwards.histories()[::-1] == steps


ROWS = [
    Sampling(1.0, frequency_penalty=0.8, min_new_tokens=4),
    Sampling(0.0, repetition_penalty=1.3),
    Sampling(0.7, top_k=4, top_p=0.9, presence_penalty=-0.5),
    Sampling(1.2, min_p=0.05),
]


@pytest.mark.parametrize("drafter", ["model", "model that stops"])
@pytest.mark.parametrize("world", [LLAMA, TABLE], ids=["llama", "table"])
def test_a_request_with_options_of_its_own_gets_the_same_tokens_in_any_batch(
    world: SmallModel, drafter: str, device: torch.device
) -> None:
    """Whatever the options of the rows next to it, and of those that had its row before."""
    requests = [
        replace(request, sampling=ROWS[i % 4], end_tokens=((2,), (3, 2), ())[i % 3])
        for i, request in enumerate(mixed_requests(world, seed=4))
    ]
    setup = Setup(world, device, policy=OwnPast(), drafter=drafter, warp=RowSampling(), batch=3)
    alone = [setup.but(batch=1).outcome([request]) for request in requests]
    together, backwards = setup.outcome(requests), setup.outcome(requests[::-1])
    assert together.tokens == backwards.tokens[::-1] == [one.tokens[0] for one in alone]
    assert together.histories() == [one.history(0) for one in alone]
    for request, tokens in zip(requests, together.tokens, strict=True):
        new, least = request.limit - len(request.prompt), int(request.sampling[-1])
        ends = [i for i, token in enumerate(tokens) if token in request.end_tokens]
        assert ends in ([], [len(tokens) - 1])
        assert len(tokens) >= min(least, new)


@final
class Drawn(Source):
    """The requests in groups, one group for each time that it is asked."""

    def __init__(self, groups: list[list[Request]]) -> None:
        self.groups = groups

    def poll(self, now: float) -> list[Request]:
        return self.groups.pop(0) if self.groups else []

    def wait(self, now: float) -> bool:
        return bool(self.groups)


@pytest.mark.usefixtures("small_buckets")
@matrix(strength=1, pairing=PAIRINGS, ahead=(False, True), joins=(True, False))
@given(data=st.data())
def test_a_request_gives_the_same_tokens_alone_and_from_any_queue(
    pairing: str, ahead: bool, joins: bool, data: st.DataObject, device: torch.device
) -> None:
    """Whatever the order and the step in which the others arrive, the rows, the tokens of prompts
    that are fed between two steps or by them, and the longest draft of each request.
    """
    own = Fixed(3) if ahead else data.draw(st.sampled_from([*OWN_POLICIES.values()]))
    drafts = data.draw(st.lists(st.sampled_from([None, 0, 1, 3]), min_size=7, max_size=7))
    mixed = mixed_requests(LLAMA, seed=8, count=7, longest=9)
    requests = [  # three prompts twice: one may be fed while the other arrives
        replace(mixed[i], max_draft_length=most)
        for i, most in zip((0, 1, 2, 3, 5, 2, 5), drafts, strict=True)
    ]
    drafter = data.draw(st.sampled_from(["model", "eagle", "block"])) if joins else "model"
    setup = Setup(
        LLAMA, device, PAIRINGS[pairing], own, drafter, warp=WARPS[0], eos=(2,), graphs=False
    )
    one_by_one = setup.but(batch=1).engine(requests)
    asked, alone = one_by_one.requests, RunOutput(one_by_one)
    order = data.draw(st.permutations(range(7)))
    cuts = sorted(data.draw(st.lists(st.integers(0, 7), max_size=9)))
    bounds = [*zip((0, *cuts), (*cuts, 7), strict=True)]
    groups = [[asked[i] for i in order[a:b]] for a, b in bounds]
    made = setup.but(batch=data.draw(st.integers(1, 4))).engine(requests)
    if joins:
        segments = sorted(data.draw(st.sets(st.integers(1, 4), min_size=1)))
        shapes = StepShapes(segments=tuple(segments), feeding=data.draw(st.integers(1, 3)))
        object.__setattr__(made.step, "shapes", shapes)
    step = Queued(made.step, lambda shape: True) if ahead else made.step
    with patch("bass.engine.prefill.SEGMENT", data.draw(st.integers(1, 3))):
        run = replace(made, requests=[], step=step, source=Drawn(groups))
        run.schedule.chunk = run.schedule.chunk if joins else data.draw(st.integers(1, 9))
        found = RunOutput(run)
    assert [found.tokens[order.index(i)] for i in range(7)] == alone.tokens
    for i, most in enumerate(drafts):
        history = found.history(order.index(i))
        assert history == alone.history(i)
        assert most is None or all(drafted <= most for drafted, *_ in history)


def test_a_batch_twice_gives_the_same_tokens_and_another_seed_gives_others(
    device: torch.device,
) -> None:
    setup = Setup(TABLE, device, policy=OwnPast(), warp=WARPS[0], batch=4)
    requests = mixed_requests(TABLE, seed=3, longest=30)
    other = [Request(r.prompt, r.limit, r.key + 1) for r in requests]
    assert setup.outcome(requests).tokens == setup.outcome(requests).tokens
    assert setup.outcome(requests).tokens != setup.outcome(other).tokens


@matrix(strength=1, drafter=("model", "none"), pairing=PAIRINGS, verifier=BY_STEP)
def test_without_drafts_the_engine_samples_the_plain_loops_tokens(
    verifier: str, pairing: str, drafter: str, device: torch.device
) -> None:
    """With the verifiers that draw a step's last token as the loop does; a coupled one draws by
    position.
    """
    requests = mixed_requests(LLAMA, seed=4)
    capacities = np.array([request.limit for request in requests])
    sequences = Sequences.empty(len(requests), int(capacities.max()), [2], device)
    for row, r in enumerate(requests):
        sequences.tokens[row, : len(r.prompt)] = torch.tensor(r.prompt, device=device)
        sequences.lens[row], sequences.limits[row], sequences.keys[row] = (
            len(r.prompt),
            r.limit,
            r.key,
        )
    sequences.active.fill_(True)
    target = LLAMA.scorer("target", PAIRINGS[pairing], CacheBudget.of(capacities), device)
    plain = plain_loop(
        target, WARPS[1], sequences, [r.prompt for r in requests], int(capacities.max())
    )
    setup = Setup(
        LLAMA, device, PAIRINGS[pairing], Fixed(0), drafter, BY_STEP[verifier], WARPS[1], (2,)
    )
    assert plain == setup.outcome(requests).tokens


def test_no_global_generator_is_touched(device: torch.device) -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    Setup(TABLE, device, warp=WARPS[0]).outcome(mixed_requests(TABLE))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()


@matrix(strength=1, pairing=PAIRINGS, own=OWN_POLICIES)
def test_a_request_that_is_ended_early_leaves_the_others_as_they_were(
    pairing: str, own: str, device: torch.device
) -> None:
    """As at a stop string: its row goes to the next request at once, and its own tokens are the
    beginning of what they were.
    """
    requests = mixed_requests(LLAMA, seed=6, count=12)
    setup = Setup(LLAMA, device, PAIRINGS[pairing], OWN_POLICIES[own], warp=WARPS[0], batch=3)
    whole = setup.outcome(requests).tokens
    run = setup.engine(requests)
    tokens: list[list[int]] = [[] for _ in requests]
    ended = {0, 2, 5, 9}
    for emission in run:
        tokens[emission.request] += emission.tokens
        if emission.request in ended and len(tokens[emission.request]) >= 3:
            run.finish(emission.request)
    for i, (some, full) in enumerate(zip(tokens, whole, strict=True)):
        assert some == (full[: len(some)] if i in ended else full)
    assert any(len(tokens[i]) < len(whole[i]) for i in ended)
