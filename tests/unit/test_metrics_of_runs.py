"""Metrics of runs written by hand, and the table that defines them."""

from dataclasses import replace
from pathlib import Path

import pytest

from bass.analysis import against_plain, speed
from bass.analysis.metrics import (
    METRICS,
    OF_A_CALL,
    PROFILES,
    means,
    measure,
    profiles,
)
from bass.analysis.repeats import Repeat
from bass.errors import OptionError, RunFolderError
from bass.runs.records import RequestLine
from bass.runs.settings import Limits
from support.drawn_runs import FACTS
from unit.test_metrics import step


def line(
    request: int, tokens: list[int], finish: str = "eos", prefill: float = 0.0, seconds: float = 1.0
) -> RequestLine:
    return RequestLine(
        request, 0, 1, tokens, None, [-1.0] * len(tokens), finish, prefill, seconds, None, 0
    )


@pytest.mark.parametrize(
    ("tokens", "finish", "at"),
    [
        ([1, 2], "eos", 2),
        ([1, 2], "budget", None),
        ([1, 2, 3], "eos", None),
        ([1, 2, 3, 4], "eos", 3),
        ([2], "budget", 0),
    ],
)
def test_a_sequence_that_ends_early_parts_where_it_ends_unless_the_budget_ended_it(
    tokens: list[int], finish: str, at: int | None
) -> None:
    repeat = Repeat([], [line(0, tokens, finish)], plain=Repeat([], [line(0, [1, 2, 3])]))
    assert against_plain.divergences(repeat) == {0: at}


def test_a_run_by_hand() -> None:
    # Two rows: the first accepts 2 of 3, the second ends with its first drafted token; then the
    # first alone accepts 0 of 1.
    steps = [step([3, 2], [2, 1], [3, 1], at=2.0), step([1, 0], [0, 0], [1, 0], at=4.0)]
    steps[1].requests[1] = -1
    repeat = Repeat(
        steps,
        [line(0, [1, 2, 3, 4], prefill=0.5, seconds=3.5), line(1, [5], prefill=0.5, seconds=1.5)],
        limits=Limits(tpot=0.5),
    )
    measured = measure(repeat)
    expected = {
        "steps": 2,
        "row_steps": 3,
        "drafted": 6,
        "accepted": 3,
        "emitted": 5,
        "tokens": 5,
        "seconds": 4.0,
        "prefill_seconds": 0.5,
        "tau": 5 / 3,
        "tau_of_requests": (4 / 2 + 1) / 2,
        "accepted_per_call": 1.0,
        "drafted_per_call": 2.0,
        "acceptance_rate": 3 / 6,
        # two were refused, and of what the second row drafted beyond its end nobody knows
        "token_acceptance_rate": 3 / 5,
        "wasted_drafted_tokens": 3.0,
        "wasted_per_token": 3 / 5,
        "share_without_draft": 0.0,
        "padding_waste": 1 - 9 / 12,  # windows of 4 and 2 for two rows; 3+1, 2+1 and 1+1 were used
        "cache_padding_waste": 1 - 20 / 32,
        "first": 1.5,
        "last": 3.5 / 4,
        "all": (1.5 + 3.5 / 4) / 2,
        "ttft": 2.0,
        "tpot": 2 / 3,
        "itl_p50": 2.0,
        "itl_p99": 2.0,
        "tokens_per_second": 5 / 4,
        "tokens_per_second_per_user": (4 / 3.5 + 1 / 1.5) / 2,
        "decode_tokens_per_second": 5 / 2,
        "goodput": 1 / 4,
        "host_share": 0.5 / 2.5,
    }
    assert measured == pytest.approx(expected)
    assert profiles(repeat) == {
        "acceptance_by_position": [2 / 3, 1.0, 0.0],
        "reached_by_position": [3, 1, 1],
        "unconditional_acceptance_by_position": [2 / 3, 1.0, 0.0],
        "judged_by_position": [3, 1, 1],
        "drafted_histogram": [0, 1, 1, 1],
        "accepted_histogram": [1, 1, 1, 0],
        "accepted_by_length": [None, 0, 1, 2],
    }


def test_an_empty_repeat_has_no_metrics_but_counts_of_nothing() -> None:
    empty = Repeat([], [], facts=replace(FACTS, peak_memory_bytes=None), limits=Limits(e2e=1.0))
    counts = ("steps", "row_steps", "drafted", "accepted", "emitted", "tokens", "seconds")
    assert measure(replace(empty, plain=empty)) == dict.fromkeys(counts, 0.0)
    assert all(values in ([], [0.0], [None]) for values in profiles(empty).values())


def test_a_repeat_is_held_against_plain_decoding_at_its_own_batch_only() -> None:
    drafting, narrow, plain = (
        Repeat([step([1, 1], [0, 0], [1, 1])], []),
        Repeat([step([0], [0], [1])], []),
        Repeat([step([0, 0], [0, 0], [1, 1])], []),
    )
    assert replace(drafting, plain=plain).plain is plain
    with pytest.raises(OptionError, match="drafted 2 tokens"):
        replace(plain, plain=drafting)
    with pytest.raises(
        OptionError, match="batch 2 cannot be compared with autoregressive decoding at batch 1"
    ):
        replace(drafting, plain=narrow)


def test_requests_with_more_tokens_than_their_steps_committed_are_refused() -> None:
    repeat = Repeat([step([0], [0], [1])], [line(0, [1, 2])])
    with pytest.raises(
        RunFolderError, match="Request 0 has 2 tokens, and the steps of its repeat committed 1"
    ):
        speed.itl_p50(repeat)


def test_a_limit_is_a_positive_time() -> None:
    with pytest.raises(OptionError, match="`tpot=0`"):
        Limits(tpot=0)


def test_a_cell_has_the_mean_of_its_repeats_where_a_metric_applies() -> None:
    assert means([{"all": 1.0}, {"all": 9.0, "mfu": 0.5}, {"all": 2.0}]) == {
        "all": 4.0,
        "mfu": 0.5,
    }


def test_every_metric_says_what_it_is() -> None:
    assert len(METRICS) == 45
    for name, metric in METRICS.items():
        assert metric.name == name
        assert len(metric.doc) > 40
        assert metric.unit
    assert all(len(profile.doc) > 20 for profile in PROFILES.values())


def test_the_page_of_metrics_has_every_definition() -> None:
    page = (
        (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8").splitlines()
    )
    rows = [
        f"| `{m.name}` | {m.unit} | {m.heading}, {m.shown_unit} | {m.better} | {m.over} | {m.doc} |"
        for m in METRICS.values()
    ]
    rows += [f"| `{name}` | {doc} |" for name, doc in OF_A_CALL.items()]
    rows += [f"| `{p.name}` | {p.doc} |" for p in PROFILES.values()]
    assert [row for row in rows if row not in page] == []
    assert [line for line in page if line.startswith("| `") and line not in rows] == []
