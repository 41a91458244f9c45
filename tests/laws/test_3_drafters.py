"""Tier 3: what the registered drafters add to the laws that `DRAFTER_MAKERS` enrols them in: the
joint law, caches that lack nothing of what another drafter proposed, a
target that is not disturbed by drafting for itself.
"""

from dataclasses import replace
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch

from bass.drafters import Choice, Ensemble, ModelDraft, Ngram, Replay, SelfDraft
from bass.engine.requests import Request
from bass.errors import PolicyError
from bass.interfaces import Scorer
from bass.models.llama import Llama, LlamaConfig
from bass.policies import Fixed
from bass.records import Sequences
from bass.sampling_params import Sampling
from bass.testing.doubles import ByRow, OwnPast
from bass.testing.small_models import SmallLlama, SmallModel, SmallTable, dense_logits
from bass.testing.statistics import count
from bass.verifiers import Coupled
from support.doubles import CheckedScorer, Cycle, Turns
from support.engines import (
    PAIRINGS,
    Built,
    By,
    RunOutput,
    Setup,
    by_the_target,
    mixed_requests,
    watched,
)
from support.matrix import matrix, night
from support.oracle import greedy, joint_law
from support.samples import assert_law, first_tokens

LLAMA, TABLE = SmallLlama(seed=7, layers=3), SmallTable(seed=7)
NARROW, NARROW_LLAMA = (
    SmallTable(vocab=3, order=3, seed=1, sharpness=1.2, likeness=0.5),
    SmallLlama(vocab=3, seed=2, sharpness=0.3),
)
PROMPT = [0, 2, 1, 0, 2]  # whose end occurred before
SAMPLES = 53248
NUMBERS = ("drafted", "accepted")


def scripts(world: SmallModel) -> Replay:
    """What every other of some requests will say, all but its last token but four."""
    known = [
        [*r.prompt, *greedy(world, r.prompt, r.limit)] for r in mixed_requests(world, seed=2)[::2]
    ]
    return Replay(
        [[*script[:-5], (script[-5] + 1) % world.vocab, *script[-4:]] for script in known]
    )


ENSEMBLES = {
    "ngram, then model": lambda world: Ensemble((Ngram(longest=2), ModelDraft())),
    "replay, then ngram, then model": lambda world: Ensemble(
        (scripts(world), Ngram(), ModelDraft())
    ),
    "replay or model": lambda world: Choice((scripts(world), ModelDraft())),
}


@pytest.mark.parametrize(
    ("method", "world"),
    [
        (Ngram(), NARROW),
        (Replay([[*PROMPT, 1, 1, 0, 2], [*PROMPT, 0, 0, 0]]), NARROW),
        night(SelfDraft(1), NARROW_LLAMA),
        night(Ensemble((Ngram(shortest=2), ModelDraft())), NARROW),
        (
            Ensemble((Replay([[*PROMPT, 1], [*PROMPT, 0, 2, 1]]), Ngram(shortest=2), ModelDraft())),
            NARROW,
        ),
        (Choice((Ngram(shortest=2), ModelDraft())), NARROW),
    ],
    ids=lambda part: type(part).__name__,
)
def test_the_joint_law_of_the_first_tokens_is_the_targets(
    method: Any, world: SmallModel, device: torch.device
) -> None:
    """Of three tokens, at a false-failure rate of 1e-6; four are generated, so that drafts are
    longer than one token.
    """
    warp = Sampling(temperature=0.8, top_p=0.9)
    policy = Turns(((0, 2), (1, 3), (1, 0), (0, 3), (1, 2)), 1)
    setup = Setup(
        world, device, drafter=By(method), warp=warp,
        policy=policy if isinstance(method, Choice) else ByRow(3),
    )  # fmt: skip
    jaxtyping.config.update("jaxtyping_disable", True)  # in so many rows it takes most of the time
    try:
        tokens, drafted = first_tokens(setup, PROMPT, 4, SAMPLES)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
    assert drafted.any()
    assert_law(count(tokens[:, :3], 3), joint_law(world, PROMPT, 3, warp))


@pytest.mark.parametrize(
    ("drafts", "policy"),
    [
        pytest.param(drafts, policy, id=f"{drafts}, {type(policy).__name__}")
        for drafts in ENSEMBLES
        for policy in (Fixed(3), Cycle(), ByRow(), OwnPast(), Turns(), Turns(shift=1))
        if isinstance(policy, Turns) == ("or" in drafts.split())
    ],
)
def test_a_model_among_drafters_has_been_fed_every_committed_token(
    drafts: str, policy: Any, device: torch.device
) -> None:
    """By a witness of all that target and draft model are fed, in greedy steps, where scripts are
    accepted, and in sampled ones.
    """
    witnesses: list[CheckedScorer] = []

    def watch(scorer: Scorer, sequences: Sequences, is_target: bool) -> CheckedScorer:
        witnesses.append(CheckedScorer(scorer, sequences, is_target))
        return witnesses[-1]

    for warp in (Sampling(0.0), Sampling(1.0)):
        requests = mixed_requests(TABLE, 2, count=12)
        setup = Setup(TABLE, device, policy=policy, drafter=By(ENSEMBLES[drafts](TABLE)), warp=warp)
        run = setup.but(wrap=watched(watch)).engine(requests)
        for witness in witnesses:
            witness.lacking = run.schedule.lacking[-1]
        RunOutput(run)
    assert len(witnesses) == 4
    assert all(witness.passes for witness in witnesses)


@pytest.mark.parametrize("policy", [Fixed(4), Cycle(), ByRow(4)], ids=lambda p: type(p).__name__)
def test_a_model_equal_to_the_target_is_always_right_after_the_drafts_of_another(
    policy: Any, device: torch.device
) -> None:
    """Scripts that know most of the output are accepted whole, and then the model's drafts, whose
    cache must lack none of it.
    """
    requests = [
        Request(r.prompt, len(r.prompt) + 28, r.key) for r in mixed_requests(LLAMA, seed=4, count=8)
    ]
    known = Replay([[*r.prompt, *greedy(LLAMA, r.prompt, r.limit - 14)] for r in requests])

    method = Ensemble((known, Built(by_the_target)))
    outcome = Setup(LLAMA, device, policy=policy, drafter=By(method)).outcome(requests)
    drafted, accepted = outcome.acceptance()
    assert drafted == accepted > 80
    assert outcome.tokens == [greedy(LLAMA, r.prompt, r.limit) for r in requests]


EXACT = Built(by_the_target)
CHOICES = {
    "ngram or the target": (Ngram(longest=2), EXACT),
    "the target or ngram": (EXACT, Ngram(longest=2)),
    "the target or its first layer": (EXACT, SelfDraft(1)),
    "the target twice": (EXACT, EXACT),
}


TURNS = {
    "mixed": Turns(),
    "mixed, other lengths by row": Turns(shift=3),
    "nine steps each": Turns(tuple((i // 9 % 2, i % 4) for i in range(18)), 1),
    "late": Turns(((0, 0),) * 20 + ((0, 2),) * 5 + ((1, 3),) * 5, 7),
}


@matrix(strength=1, pair=PAIRINGS, methods=CHOICES, turns=TURNS, temperature=(0, 1.0))
def test_a_part_equal_to_the_target_is_always_accepted(
    pair: str, methods: str, turns: str, temperature: float, device: torch.device
) -> None:
    """Also right after steps in which another part drafted: its cache never lacks a token. Requests
    wait for rows, and each prompt has two samples.
    """
    requests = [
        replace(request, key=request.key + sample)
        for request in mixed_requests(LLAMA, seed=4, count=7, longest=60)
        for sample in range(2)
    ]
    method, warp = Choice(CHOICES[methods]), Sampling(temperature)
    setup = Setup(LLAMA, device, PAIRINGS[pair], TURNS[turns], By(method), warp=warp)
    outcome = setup.outcome(requests)
    parts = [i for i, one in enumerate(method.methods) if one is EXACT]
    for part in (0, 1):
        steps = [step for step in outcome.steps if step.drafter == part and step.k]
        drafted, accepted = (sum(getattr(s, n).sum() for s in steps) for n in NUMBERS)
        assert drafted > (20 if part in parts else 0)
        assert drafted == accepted or part not in parts
    if temperature == 0:
        assert outcome.tokens == [greedy(LLAMA, r.prompt, r.limit) for r in requests]


@pytest.mark.parametrize("methods", CHOICES)
def test_coupled_tokens_do_not_depend_on_the_part_that_drafts(
    methods: str, device: torch.device
) -> None:
    requests, method = mixed_requests(LLAMA, seed=4, count=7, longest=30), Choice(CHOICES[methods])
    setup = Setup(LLAMA, device, verifier=Coupled(), warp=Sampling(1.0), drafter=By(method))
    expected = setup.but(policy=Fixed(0)).outcome(requests).tokens
    for policy in (Fixed(3), Turns(), Turns(shift=3)):
        assert setup.but(policy=policy).outcome(requests).tokens == expected


def test_a_policy_that_chooses_a_part_that_is_not_there_says_so(device: torch.device) -> None:
    setup = Setup(TABLE, device, policy=Turns(((2, 1),)), drafter="choice")
    with pytest.raises(PolicyError, match="drafter` returned 2, and the run has 2 drafters:"):
        setup.outcome(mixed_requests(TABLE))


@pytest.mark.parametrize("layers", [1, 2])
def test_a_target_that_drafts_for_itself_proposes_what_its_first_layers_say(
    layers: int, device: torch.device
) -> None:
    """By an independent model made of these layers, the target's norm and its head."""
    whole = LLAMA.models["target"]
    short = Llama(
        LlamaConfig(LLAMA.vocab, 32, 48, layers, 4, 2, 8, max_position_embeddings=128), "cpu"
    )
    short.load_state_dict(
        {name: value for name, value in whole.state_dict().items() if name in short.state_dict()}
    )
    requests = mixed_requests(LLAMA, seed=5)
    # the watcher reads on the host
    setup = Setup(LLAMA, device, policy=Fixed(3), drafter=By(SelfDraft(layers)), graphs=False)
    run = setup.engine(requests)
    drafts: list[tuple[list[int], list[int]]] = []
    propose = run.step.drafter.propose

    def watched(sequences: Sequences, lengths: torch.Tensor, *rest: Any) -> Any:
        draft = propose(sequences, lengths, *rest)
        for b in torch.nonzero(sequences.active)[:, 0].tolist():
            length = int(draft.lengths[b])
            drafts.append(
                (
                    sequences.tokens[b, : int(sequences.lens[b])].tolist(),
                    draft.tokens[b, :length].tolist(),
                )
            )
        return draft

    object.__setattr__(run.step.drafter, "propose", watched)
    for _ in run:
        pass
    assert sum(len(draft) for _, draft in drafts) > 50
    for committed, draft in drafts:
        for i, token in enumerate(draft):
            assert (
                token == dense_logits(short, np.array([[*committed, *draft[:i]]]))[0, -1].argmax()
            )


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_a_target_that_drafts_for_itself_keeps_the_keys_and_values_of_plain_decoding(
    pairing: str, device: torch.device
) -> None:
    """Its outputs afterwards show it: log-probabilities of every token, after drafts that were
    mostly refused.
    """
    requests = mixed_requests(LLAMA, seed=6)
    setup = Setup(LLAMA, device, PAIRINGS[pairing], Fixed(4), By(SelfDraft(1)))
    outcome = setup.outcome(requests)
    drafted, accepted = outcome.acceptance()
    assert drafted > 2 * accepted
    for request, tokens, logprobs in zip(requests, outcome.tokens, outcome.logprobs, strict=True):
        logits = dense_logits(LLAMA.models["target"], np.array([request.prompt + tokens]))[
            0, len(request.prompt) - 1 : -1
        ]
        expected = logits[np.arange(len(tokens)), tokens] - np.logaddexp.reduce(logits, 1)
        np.testing.assert_allclose(logprobs, expected, atol=1e-4)
