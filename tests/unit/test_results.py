"""The statistics of a run of three steps, against figures worked out by hand."""

import numpy as np
import pytest

from bass.api.results import Completion, Result, Stats
from bass.engine.cost import Peaks, Work
from bass.engine.requests import StepRecord

PEAKS = Peaks(bandwidth=8120.0, flops=10000.0)


def step(
    k: int,
    span: int,
    requests: list[int],
    drafted: list[int],
    accepted: list[int],
    emitted: list[int],
    seconds: float,
    work: Work,
) -> StepRecord:
    arrays = [np.array(values) for values in (requests, drafted, accepted, emitted)]
    positions = span * int((arrays[0] >= 0).sum())
    return StepRecord(
        k, span, positions, *arrays, seconds=seconds, host_seconds=0.0625, at=0.0, work=work
    )


# Four requests, two rows. 1 ends in the first step, 0 in the second, 2 (which had to wait for a
# row) in the third; 3 never ran.
STEPS = [
    step(2, 8, [0, 1], [2, 2], [2, 0], [3, 1], 0.5, Work(1392, 660, 440)),
    step(3, 8, [0, 2], [3, 3], [1, 1], [2, 2], 0.5, Work(1508, 880, 440)),
    step(0, 16, [-1, 2], [0, 0], [0, 0], [0, 1], 0.25, Work(1160, 100, 100)),
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


@pytest.fixture(scope="module")
def stats() -> Stats:
    return Result(COMPLETIONS, STEPS, lambda: PEAKS).stats


def test_the_counts_are_sums_over_steps_and_rows(stats: Stats) -> None:
    assert (stats.steps, stats.row_steps) == (3, 2 + 2 + 1)
    assert (stats.drafted, stats.accepted) == (4 + 6, 2 + 2)
    assert (stats.emitted, stats.tokens) == (4 + 4 + 1, 4 + 1 + 3)
    assert stats.lossless


def test_tau_is_emitted_tokens_per_row_step(stats: Stats) -> None:
    assert stats.tau == 9 / 5


def test_the_acceptance_rate_is_accepted_per_drafted(stats: Stats) -> None:
    assert stats.acceptance_rate == 4 / 10


def test_tokens_per_second_are_kept_tokens_over_the_whole_time(stats: Stats) -> None:
    assert stats.tokens_per_second == 8 / 2.5


def test_acceptance_at_a_position_is_among_the_drafts_accepted_up_to_it(stats: Stats) -> None:
    # (drafted, accepted): (2, 2), (2, 0), (3, 1), (3, 1).
    # Position 1: all 4 reached it, 3 were accepted. Position 2: (2, 0) no longer counts; of 3, the
    # first was accepted. Position 3: two drafted it, but their second tokens were rejected: nobody
    # reached it, so that it has no rate.
    assert stats.reached_by_position == [4, 3, 0]
    assert stats.acceptance_by_position == [3 / 4, 1 / 3, None]


def test_first_and_last_are_the_rates_of_the_sequences_in_the_order_in_which_they_ended(
    stats: Stats,
) -> None:
    # Ends: 1 at 0.5 + 0.625 = 1.125; 0 at 0.5 + 1.5 = 2.0; 2 at 1.75 + 0.75 = 2.5, although it took
    # less time than 0.
    assert stats.first == 0.625 / 1
    assert stats.last == 0.75 / 3


def test_all_is_the_mean_of_the_rates_of_the_sequences_that_have_tokens(stats: Stats) -> None:
    assert stats.all == pytest.approx((1.5 / 4 + 0.625 / 1 + 0.75 / 3) / 3)


def test_the_prefill_time_is_that_of_the_first_prefill(stats: Stats) -> None:
    assert stats.prefill_seconds == 0.5
    assert stats.seconds == 2.5


def test_the_bound_is_the_bytes_of_all_steps_over_the_bandwidth(stats: Stats) -> None:
    assert stats.bound_seconds == pytest.approx((1392 + 1508 + 1160) / 8120)
    assert stats.bound_seconds == pytest.approx(0.5)


def test_mbu_is_the_bound_over_the_time_in_steps(stats: Stats) -> None:
    assert stats.mbu == pytest.approx(0.5 / (0.5 + 0.5 + 0.25))


def test_mfu_is_the_work_done_and_mfu_kept_the_work_kept_over_what_the_time_in_steps_allows(
    stats: Stats,
) -> None:
    assert stats.mfu == pytest.approx((660 + 880 + 100) / 10000 / 1.25)
    assert stats.mfu_kept == pytest.approx((440 + 440 + 100) / 10000 / 1.25)


def test_the_mean_logprob_is_per_token_and_zero_without_tokens() -> None:
    assert Completion(0, 0, None, [1, 2], [-1.0, -2.0], "eos", 1.0).mean_logprob == -1.5
    assert completion(0, 0, 0.0, "time").mean_logprob == 0.0


@pytest.mark.parametrize(
    ("reason", "finished"),
    [("eos", True), ("stop", True), ("length", True), ("time", False), ("interrupted", False)],
)
def test_a_completion_is_finished_when_it_came_to_its_own_end(reason: str, finished: bool) -> None:
    assert completion(0, 1, 1.0, reason).finished is finished
