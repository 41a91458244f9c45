"""Heads that read the target: the output is the target's, and their caches hold true features."""

import pytest
import torch

from bass.policies import Fixed
from bass.sampling_params import Sampling
from bass.testing import check_drafter
from bass.testing.doubles import ByRow
from bass.testing.small_models import SmallLlama
from bass.testing.statistics import count
from support.doubles import Cycle
from support.engines import PAIRINGS, By, Setup, mixed_requests, same_prompt
from support.heads import FORMS, PRODUCED, Headed, published, states_of, target_states
from support.matrix import by_day, matrix
from support.oracle import joint_law
from support.samples import assert_law, first_tokens

WORLD, WIDTH = SmallLlama(layers=3), 32
NARROW = SmallLlama(vocab=3, layers=3, seed=2, unlikeness=0.4, sharpness=0.3)
POLICIES = {"fixed": Fixed(3), "cycle": Cycle(), "by row": ByRow(4)}


@pytest.mark.parametrize("form", by_day(FORMS, ("eagle3, reduced vocabulary",)))
def test_the_joint_law_of_three_tokens_is_the_targets(
    form: str, device: torch.device, unchecked: None
) -> None:
    """Greedy decoding, and independence of other rows, are properties of every named drafter."""
    warp, prompt, new = Sampling(temperature=0.9), [0, 2], 3
    setup = Setup(NARROW, device, policy=ByRow(3), drafter=By(Headed(form)), warp=warp)
    tokens, _ = first_tokens(setup, prompt, new, 53248)
    assert_law(count(tokens, NARROW.vocab), joint_law(NARROW, prompt, new, warp))


def test_a_sample_that_starts_later_gets_the_drafts_it_gets_alone(device: torch.device) -> None:
    """Its row's state is a copy of the prompt's, not of what the row it is copied from has now."""
    setup = Setup(WORLD, device, drafter=By(Headed()), warp=Sampling(1.0))
    requests = same_prompt([5, 1, 8, 2], 12, 6)
    alone = [setup.outcome([request]) for request in requests]
    together = setup.outcome(requests)
    assert together.tokens == [one.tokens[0] for one in alone]
    assert together.histories() == [one.history(0) for one in alone]


@pytest.mark.nightly
@pytest.mark.parametrize("form", FORMS)
def test_the_output_is_the_targets(form: str) -> None:
    check_drafter(Headed(form), examples=3)


@matrix(pairing=PAIRINGS, policy=POLICIES, form=FORMS)
def test_states_and_logits_are_those_of_the_whole_text(
    pairing: str, policy: str, form: str, device: torch.device
) -> None:
    """After each step, a reference in float64 that reads the whole row with the target's own
    states has the recurrent state and the logits of the next draft: what earlier drafts wrote to
    the head's cache is gone.
    """
    method = Headed(form)
    setup = Setup(
        WORLD, device, PAIRINGS[pairing], POLICIES[policy], By(method), warp=Sampling(1.0), eos=(3,)
    )
    run, seen = setup.engine(mixed_requests(WORLD, count=6, longest=9)), 0
    s, head = run.sequences, published(form, WORLD.vocab, WIDTH)
    states_read, target = (FORMS | PRODUCED)[form].states, WORLD.models["target"]
    for _ in run:
        [drafter] = method.made
        for row in torch.nonzero(s.active & (s.lens > 1))[:, 0].tolist():
            tokens = s.tokens[row, : s.lens[row]].clone()
            features = target_states(WORLD, tokens[:-1], states_read)
            states, logits = states_of(head, features, tokens.cpu(), target)
            assert int(drafter.last.at[row]) == len(tokens) - 2
            own = drafter.last.values[row].double().cpu()
            torch.testing.assert_close(own, states[-1], rtol=1e-4, atol=1e-4)
            with torch.inference_mode():
                u = drafter.last.values[row][None, None]
                found = drafter.logits(drafter.head.read(u))[0, 0].double().cpu()
            torch.testing.assert_close(found, logits[-1], rtol=1e-4, atol=1e-4)
            seen += 1
    assert seen > 10  # in graphs fewer: the next step is in flight, which ends some rows


@pytest.mark.parametrize("form", PRODUCED)
def test_each_producers_form_is_read(form: str, device: torch.device) -> None:
    turn = [*PRODUCED].index(form) % len(PAIRINGS)
    pairing = [*PAIRINGS][turn]
    test_states_and_logits_are_those_of_the_whole_text(pairing, "cycle", form, device)
