"""Heads that draft several tokens in one pass: the output is the target's, and what they draft from
is what an independent reference computes for the whole text.
"""

import pytest
import torch
from torch import Tensor

from bass.ops.batch_state import clipped
from bass.ops.noise import step_noise
from bass.policies import Fixed
from bass.sampling_params import Sampling
from bass.testing import check_drafter
from bass.testing.doubles import ByRow
from bass.testing.small_models import SmallLlama
from support.block_heads import (
    ALL_SURE,
    FORMS,
    MEDUSAS,
    SURE,
    WithHead,
    block_logits,
    medusa_logits,
    peagle_logits,
    published,
    states_read,
)
from support.doubles import Cycle
from support.engines import PAIRINGS, By, Setup, mixed_requests
from support.heads import target_states
from support.matrix import matrix

WORLD, WIDTH, LONGEST = SmallLlama(layers=3), 32, 4
POLICIES = {"fixed": Fixed(3), "cycle": Cycle(), "by row": ByRow(LONGEST)}


@pytest.mark.nightly
@pytest.mark.parametrize("form", FORMS)
def test_the_output_is_the_targets(form: str) -> None:
    check_drafter(WithHead(form), examples=8)


def reference(form: str, tokens: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and confidences of the tokens drafted after a text."""
    head, target = published(form, WORLD.vocab, WIDTH), WORLD.models["target"]
    states = target_states(WORLD, tokens[:-1], states_read(head))
    if form.startswith("P-EAGLE"):
        logits = peagle_logits(head, states, tokens.cpu(), len(drafted), target)
        return logits, torch.ones(len(logits))
    if form not in MEDUSAS:
        return block_logits(head, states, tokens.cpu(), drafted.cpu(), target)
    logits = medusa_logits(head, states[0][-1], target.head.weight.cpu())  # type: ignore[union-attr]
    return logits, torch.ones(len(logits))


@matrix(strength=1, form=FORMS, pairing=PAIRINGS, policy=POLICIES)
def test_drafts_follow_from_the_whole_text(
    form: str, pairing: str, policy: str, device: torch.device
) -> None:
    """After each step, in a batch of drafts of several lengths: what earlier drafts wrote to the
    head's cache is gone.
    """
    method, requests = WithHead(form), mixed_requests(WORLD, count=6, longest=12)
    setup = Setup(
        WORLD, device, PAIRINGS[pairing], POLICIES[policy], By(method), warp=Sampling(1.0), eos=(3,)
    )
    run, seen = setup.engine(requests), 0
    s = run.sequences
    for step, _ in enumerate(run):
        [drafter] = method.made
        lengths = (torch.arange(len(s.lens), device=device) + step) % LONGEST + 1
        lengths = clipped(lengths, s.lens, s.limits, s.active)
        noise = step_noise(s.keys, s.steps, s.lens, LONGEST)
        with torch.inference_mode():
            draft = drafter.propose(s, lengths, LONGEST, noise, s.capacity)
        for row in torch.nonzero(s.active & (s.lens > 1) & (lengths > 0))[:, 0].tolist():
            tokens = s.tokens[row, : s.lens[row]].clone()
            most = min(int(lengths[row]), draft.tokens.shape[1])
            logits, sure = reference(form, tokens, draft.tokens[row, :most])
            doubtful = (sure < SURE) | (sure.cumprod(0) < ALL_SURE)
            count = min([most, len(logits), *torch.nonzero(doubtful)[:1, 0].tolist()])
            assert int(draft.lengths[row]) == count
            found = draft.probs[row, :count].double().cpu()
            torch.testing.assert_close(found, logits[:count].softmax(-1), rtol=1e-3, atol=1e-4)
            seen += count
    assert seen > 8
