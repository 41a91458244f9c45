"""What a step records of its drafts, and that timing the parts of a step changes nothing."""

import numpy as np
import pytest
import torch

from bass.engine.parts import parts_at
from bass.engine.requests import Request, StepRecord
from bass.records import History
from bass.sampling_params import Sampling
from bass.testing.small_models import SmallLlama, SmallTable
from support.doubles import Cycle, warped
from support.engines import TABLE_DRAFTERS, RunOutput, Setup, mixed_requests

TABLE, LLAMA = SmallTable(), SmallLlama()
WARP = Sampling(temperature=0.8, top_p=0.9)
SURE = ("ngram", "replay")  # they put all mass on their token


def calls(
    requests: list[Request], outcome: RunOutput
) -> list[tuple[StepRecord, int, list[int], list[int]]]:
    """Of every step and active row: its sequence before the step, and what the step committed."""
    taken, found = [0] * len(requests), []
    for step in outcome.steps:
        for row in np.flatnonzero(step.requests >= 0):
            request = int(step.requests[row])
            before, until = taken[request], taken[request] + int(step.emitted[row])
            tokens = outcome.tokens[request]
            found.append(
                (step, int(row), requests[request].prompt + tokens[:before], tokens[before:until])
            )
            taken[request] = until
    return found


@pytest.mark.parametrize("drafter", TABLE_DRAFTERS)
def test_accepted_drafts_are_committed_and_rejected_ones_are_not(
    drafter: str, device: torch.device
) -> None:
    """A rejected token has no mass in the residual that rejection sampling draws from."""
    requests = mixed_requests(TABLE)
    setup = Setup(TABLE, device, policy=Cycle(), drafter=drafter, warp=WARP, eos=(2,))
    for step, row, _, committed in calls(requests, setup.outcome(requests)):
        drafted = step.draft_tokens[row, : step.drafted[row]].tolist()
        accepted = int(step.accepted[row])
        assert drafted[:accepted] == committed[:accepted]
        if accepted < len(drafted) and len(committed) == accepted + 1:
            assert drafted[accepted] != committed[accepted]


def test_a_recorded_probability_is_that_of_the_distribution_drawn_from(
    device: torch.device,
) -> None:
    requests = mixed_requests(TABLE)
    outcome = Setup(TABLE, device, policy=Cycle(), warp=WARP).outcome(requests)
    seen = 0
    for step, row, before, _ in calls(requests, outcome):
        for i in range(int(step.drafted[row])):
            prefix = np.array([before + step.draft_tokens[row, :i].tolist()])
            logits = torch.as_tensor(TABLE.oracle("draft", prefix)[:, None])
            nothing = torch.zeros(1, 0, dtype=torch.int64)
            zero = torch.zeros(1, dtype=torch.int64)
            history = History(nothing, zero, nothing, zero, nothing, nothing.double())
            probs = warped(WARP, logits, history)[0, 0]
            expected = float(probs[step.draft_tokens[row, i]])
            assert step.draft_probs[row, i] == pytest.approx(expected, abs=1e-5)
            seen += 1
    assert seen > 20


@pytest.mark.parametrize("drafter", [name for name in TABLE_DRAFTERS if name in SURE])
def test_a_drafter_without_a_distribution_has_no_probabilities(
    drafter: str, device: torch.device
) -> None:
    setup = Setup(TABLE, device, policy=Cycle(), drafter=drafter, warp=WARP)
    for step in setup.outcome(mixed_requests(TABLE)).steps:
        assert np.isnan(step.draft_probs).all()


@pytest.mark.parametrize("drafter", ["model", "ngram", "self"])
@pytest.mark.parametrize("k", [0, 3])
def test_the_parts_of_a_step_take_time_and_leave_no_row_active(
    drafter: str, k: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bass.engine.parts.MOST_SECONDS", 0.0)
    setup = Setup(LLAMA, device, policy=Cycle(), drafter=drafter, warp=WARP, graphs=False)
    run = setup.engine(mixed_requests(LLAMA))
    next(iter(run))
    parts = parts_at(run.step, run.sequences, k, run.sequences.capacity)
    assert parts["verify_ms"] > 0 < parts["sample_ms"]
    assert (parts["draft_ms"] > 0) == (k > 0)
    assert not run.sequences.active.any()
