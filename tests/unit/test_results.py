"""The statistics of a run of three steps, against figures worked out by hand."""

import numpy as np
import pytest

from bass.api.results import Completion, Result
from bass.engine.cost import Peaks, Work
from bass.engine.requests import StepRecord

PEAKS = Peaks(bandwidth=8120.0, flops=10000.0)


def step(
    k: int,
    requests: list[int],
    drafted: list[int],
    accepted: list[int],
    emitted: list[int],
    seconds: float,
    work: Work,
) -> StepRecord:
    arrays = [np.array(values) for values in (requests, drafted, accepted, emitted)]
    return StepRecord(k, *arrays, seconds=seconds, host_seconds=0.0625, at=0.0, work=work)


# Four requests, two rows. 1 ends in the first step, 0 in the second, 2 (which had to wait for a
# row) in the third; 3 never ran.
STEPS = [
    step(2, [0, 1], [2, 2], [2, 0], [3, 1], 0.5, Work(1392, 660)),
    step(3, [0, 2], [3, 3], [1, 1], [2, 2], 0.5, Work(1508, 880)),
    step(0, [-1, 2], [0, 0], [0, 0], [0, 1], 0.25, Work(1160, 100)),
]
PREFILLED = {0: 0.5, 1: 0.5, 2: 1.75}


def completion(index: int, tokens: int, seconds: float, reason: str) -> Completion:
    logprobs = [-1.0] * tokens
    prefilled = PREFILLED.get(index)
    return Completion(index, 0, None, list(range(tokens)), logprobs, reason, seconds, 1, prefilled)


COMPLETIONS = [
    completion(0, 4, 1.5, "stop"),  # ended at 2.0; a stop string cut one of its 5 tokens
    completion(1, 1, 0.625, "eos"),  # ended at 1.125
    completion(2, 3, 0.75, "length"),  # ended at 2.5
    completion(3, 0, 0.0, "time"),
]


def test_the_figures_of_a_run_are_those_worked_out_by_hand() -> None:
    measured: list[Peaks] = []

    def peaks() -> Peaks:
        measured.append(PEAKS)
        return PEAKS

    result = Result(COMPLETIONS, STEPS, peaks)
    stats = result.stats
    assert {"tau", "mbu", "acceptance_by_position", "as_dict"} <= {*dir(stats)}
    assert (repr(result), stats.tau, measured) == (repr(result), 9 / 5, [])
    expected = {
        "steps": 3,
        "row_steps": 2 + 2 + 1,
        "drafted": 4 + 6,
        "accepted": 2 + 2,
        "emitted": 4 + 4 + 1,
        "tokens": 4 + 1 + 3,
        "acceptance_rate": 4 / 10,
        "tokens_per_second": 8 / 2.5,
        # Ends: 1 at 0.5 + 0.625 = 1.125; 0 at 0.5 + 1.5 = 2.0; 2 at 1.75 + 0.75 = 2.5, although it
        # took less time than 0. `all` is the mean of the sequences that have tokens.
        "first": 0.625 / 1,
        "last": 0.75 / 3,
        "all": (1.5 / 4 + 0.625 / 1 + 0.75 / 3) / 3,
        "prefill_seconds": 0.5,
        "seconds": 2.5,
        "bound_seconds": (1392 + 1508 + 1160) / 8120,
        "mbu": 0.5 / (0.5 + 0.5 + 0.25),
        "mfu": (660 + 880 + 100) / 10000 / 1.25,
    }
    assert {name: getattr(stats, name) for name in expected} == pytest.approx(expected)
    # (drafted, accepted): (2, 2), (2, 0), (3, 1), (3, 1).
    # Position 1: all 4 reached it, 3 were accepted. Position 2: (2, 0) no longer counts; of 3, the
    # first was accepted. Position 3: two drafted it, but their second tokens were rejected: nobody
    # reached it, so that it has no rate.
    assert stats.reached_by_position == [4, 3, 0]
    assert stats.acceptance_by_position == [3 / 4, 1 / 3, None]
    assert stats.lossless


def test_the_mean_logprob_is_per_token_and_zero_without_tokens() -> None:
    assert Completion(0, 0, None, [1, 2], [-1.0, -2.0], "eos", 1.0).mean_logprob == -1.5
    assert completion(0, 0, 0.0, "time").mean_logprob == 0.0


@pytest.mark.parametrize(
    ("reason", "finished"),
    [("eos", True), ("stop", True), ("length", True), ("time", False), ("interrupted", False)],
)
def test_a_completion_is_finished_when_it_came_to_its_own_end(reason: str, finished: bool) -> None:
    assert completion(0, 1, 1.0, reason).finished is finished
