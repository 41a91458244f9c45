"""What a step says of its drafts, and what timing the parts of one does to a run: nothing."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bass.engine.parts import PARTS, parts_of
from bass.engine.requests import Request, StepRecord
from bass.records import History
from bass.runs.drafts import DraftLine
from bass.sampling import Sampling
from bass.testing.policies import Cycle
from bass.testing.worlds import LlamaWorld, TableWorld
from support.drawn_runs import Drawn, runs
from support.engines import DRAFTER_MAKERS, Outcome, Setup, mixed_requests

TABLE, LLAMA = TableWorld(), LlamaWorld()
WARP = Sampling(temperature=0.8, top_p=0.9)
SURE = ("ngram", "replay")  # they put all mass on their token


def calls(
    requests: list[Request], outcome: Outcome
) -> list[tuple[StepRecord, int, list[int], list[int]]]:
    """Of every step and active row: what its sequence was before, and what it committed."""
    taken, found = [0] * len(requests), []
    for step in outcome.steps:
        for row in np.flatnonzero(step.active):
            request = int(step.requests[row])
            before, until = taken[request], taken[request] + int(step.emitted[row])
            tokens = outcome.tokens[request]
            found.append(
                (step, int(row), requests[request].prompt + tokens[:before], tokens[before:until])
            )
            taken[request] = until
    return found


@pytest.mark.parametrize("drafter", DRAFTER_MAKERS)
def test_what_was_drafted_and_accepted_is_what_was_committed_and_what_was_refused_is_not(
    drafter: str, device: torch.device
) -> None:
    """By rejection sampling: where it refuses a token, it draws from a residual in which that token
    has no mass.
    """
    requests = mixed_requests(TABLE)
    outcome = Setup(TABLE, device, policy=Cycle(), drafter=drafter, warp=WARP, eos=(2,)).outcome(
        requests
    )
    for step, row, _, committed in calls(requests, outcome):
        assert step.draft_tokens is not None
        drafted, accepted = (
            step.draft_tokens[row, : step.drafted[row]].tolist(),
            int(step.accepted[row]),
        )
        assert len(drafted) == step.drafted[row]
        assert drafted[:accepted] == committed[:accepted]
        if accepted < len(drafted) and len(committed) == accepted + 1:
            assert drafted[accepted] != committed[accepted]


def test_the_probability_of_a_drafted_token_is_that_of_the_distribution_it_was_drawn_from(
    device: torch.device,
) -> None:
    requests = mixed_requests(TABLE)
    outcome = Setup(TABLE, device, policy=Cycle(), warp=WARP).outcome(requests)
    seen = 0
    for step, row, before, _ in calls(requests, outcome):
        assert step.draft_tokens is not None
        assert step.draft_probs is not None
        for i in range(int(step.drafted[row])):
            prefix = np.array([before + step.draft_tokens[row, :i].tolist()])
            logits = torch.as_tensor(TABLE.oracle("draft", prefix)[:, None])
            nothing = torch.zeros(1, 0, dtype=torch.int64)
            probs = WARP(logits, History(nothing, torch.zeros(1, dtype=torch.int64), nothing))[0, 0]
            assert step.draft_probs[row, i] == pytest.approx(
                float(probs[step.draft_tokens[row, i]]), abs=1e-5
            )
            seen += 1
    assert seen > 20


@pytest.mark.parametrize("drafter", [name for name in DRAFTER_MAKERS if name in SURE])
def test_a_drafter_without_a_distribution_has_no_probabilities(
    drafter: str, device: torch.device
) -> None:
    for step in (
        Setup(TABLE, device, policy=Cycle(), drafter=drafter, warp=WARP)
        .outcome(mixed_requests(TABLE))
        .steps
    ):
        assert step.draft_probs is not None
        assert np.isnan(step.draft_probs).all()


@given(runs(), st.integers(0, 3), st.booleans(), st.data())
def test_a_line_of_drafts_has_what_each_row_drafted_and_nothing_beyond(
    run: Drawn, more: int, sure: bool, data: st.DataObject
) -> None:
    for number, step in enumerate(run.repeat().steps):
        shape = len(step.drafted), int(step.drafted.max()) + more
        seed = data.draw(st.integers(0, 99))
        rng = np.random.default_rng(seed)
        tokens, probs = (
            rng.integers(0, 9, shape),
            np.full(shape, np.nan) if sure else rng.uniform(1e-9, 1, shape),
        )
        beyond = np.arange(shape[1]) >= step.drafted[:, None]
        probs[beyond] = np.nan  # a step may leave anything there
        line = DraftLine.of(
            dataclasses.replace(step, draft_tokens=tokens, draft_probs=probs), 0, number
        )
        assert DraftLine.from_json(line.to_json()) == line
        assert [len(row) for row in line.tokens] == step.drafted.tolist()
        assert [token for row in line.tokens for token in row] == tokens[~beyond].tolist()
        if sure or beyond.all():
            assert line.probs is None
        else:
            assert line.probs is not None
            assert [len(row) for row in line.probs] == step.drafted.tolist()
            np.testing.assert_allclose(
                [p for row in line.probs for p in row], probs[~beyond], rtol=1e-3
            )


@pytest.mark.parametrize("drafter", ["model", "ngram", "self"])
def test_timing_the_parts_of_a_step_changes_nothing_of_the_run(
    drafter: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops a run before every third step, at every length that may occur."""
    monkeypatch.setattr("bass.engine.parts.MOST_SECONDS", 0.0)
    requests = mixed_requests(LLAMA)
    # whose steps are over when they are told
    setup = Setup(LLAMA, device, policy=Cycle(), drafter=drafter, warp=WARP, graphs=False)
    expected = setup.outcome(requests)
    run, tokens = setup.engine(requests), [list[int]() for _ in requests]
    timed = 0
    for emission in run:
        tokens[emission.request] += emission.tokens
        if len(run.trace.steps) > 3 * timed and bool(run.sequences.active.any()):
            k = timed % 4
            seconds = parts_of(run.step, run.sequences, k)
            assert tuple(seconds) == PARTS
            assert seconds["verify"] > 0 < seconds["sample"]
            assert seconds["draft"] >= 0 <= seconds["host"]
            assert k or not seconds["draft"]
            timed += 1
    assert timed > 3
    assert tokens == expected.tokens
    for ours, theirs in zip(run.trace.steps, expected.steps, strict=True):
        np.testing.assert_array_equal(ours.accepted, theirs.accepted)
