"""Metrics: identities among them on drawn calls, and figures worked out by hand."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bass.analysis.frames import measured
from bass.analysis.metrics import (
    METRICS,
    PROFILES,
    Measurement,
    independent,
    measure,
    profile,
)
from bass.api.results import Completion
from bass.engine.requests import StepRecord
from support.drawn_calls import Drawn, as_plain, runs


def close(x: float | None, y: float | None) -> bool:
    assert x is not None
    assert y is not None
    return math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-12)


def metric(m: Measurement, name: str, plain: Measurement | None = None) -> float | None:
    return METRICS[name](m, plain)


@given(runs())
def test_every_value_is_a_finite_number_and_shares_are_shares(run: Drawn) -> None:
    m = run.measurement()
    limited = {**m.facts, "ttft_limit": 1.0}
    for name, value in measure(replace(m, facts=limited), plain=as_plain(m)).items():
        assert math.isfinite(value), name
        # the drawn times may beat the drawn device
        if METRICS[name].unit == "share" and name not in ("mbu", "mfu"):
            assert -1e-12 <= value <= 1, name
    for name in PROFILES:
        assert all(value is None or math.isfinite(value) for value in profile(m, name))


@given(runs())
def test_a_row_step_commits_what_it_accepted_and_one_more_unless_the_sequence_ended(
    run: Drawn,
) -> None:
    m = run.measurement()
    cut = int((m.rows["emitted"] == m.rows["accepted"]).sum())
    assert m.counts.emitted == m.counts.accepted + m.counts.row_steps - cut
    assert cut <= len(m.requests)
    assert metric(m, "tokens") <= m.counts.emitted


@given(runs(cuts=False))
def test_without_cuts_tau_is_one_more_than_accepted_per_row_step(run: Drawn) -> None:
    """vLLM's definition, 1 + accepted / drafts, is the same where every row step has a draft."""
    m = run.measurement()
    assert close(metric(m, "tau"), 1 + m.counts.accepted / m.counts.row_steps)


@given(runs(cuts=False, same_length=True))
def test_with_equal_lengths_conditional_rates_multiply_to_unconditional_ones(run: Drawn) -> None:
    m = run.measurement()
    conditional = profile(m, "acceptance_by_position")
    unconditional = profile(m, "unconditional_acceptance_by_position")
    reached = [rate for rate in conditional if rate is not None]
    assert not any(unconditional[len(reached) :])
    np.testing.assert_allclose(np.cumprod(reached), unconditional[: len(reached)], atol=1e-12)
    assert close(m.counts.accepted / m.counts.row_steps, sum(rate or 0.0 for rate in unconditional))


@given(runs())
def test_rates_times_their_denominators_are_the_accepted_tokens(run: Drawn) -> None:
    m = run.measurement()
    for rates, counts in (
        ("acceptance_by_position", "reached_by_position"),
        ("unconditional_acceptance_by_position", "judged_by_position"),
    ):
        pairs = [*zip(profile(m, rates), profile(m, counts), strict=True)]
        assert all((rate is None) == (n == 0) for rate, n in pairs)
        assert close(sum((rate or 0.0) * n for rate, n in pairs), m.counts.accepted)
    assert sum(profile(m, "reached_by_position")) == m.counts.reached
    rejections = int((m.rows["judged"] > m.rows["accepted"]).sum())
    assert m.counts.reached == m.counts.accepted + rejections


@given(runs())
def test_histograms_sum_to_row_steps_and_tokens(run: Drawn) -> None:
    m = run.measurement()
    drafted, accepted = (profile(m, f"{name}_histogram") for name in ("drafted", "accepted"))
    assert sum(drafted) == sum(accepted) == m.counts.row_steps
    assert sum(n * count for n, count in enumerate(drafted)) == m.counts.drafted
    assert sum(n * count for n, count in enumerate(accepted)) == m.counts.accepted
    by_length = profile(m, "accepted_by_length")
    assert [mean is None for mean in by_length] == [count == 0 for count in drafted]
    total = sum((mean or 0.0) * count for mean, count in zip(by_length, drafted, strict=True))
    assert close(total, m.counts.accepted)


@given(runs(plain=True))
def test_autoregressive_decoding_commits_one_token_a_row_step_and_has_no_acceptance_rate(
    run: Drawn,
) -> None:
    m = run.measurement()
    measured = measure(m, plain=m)
    assert measured["tau"] == 1
    assert measured["exact_match_rate"] == 1
    assert measured["drafted_per_row_step"] == 0
    missing = {"acceptance_rate", "token_acceptance_rate", "draft_cost_ratio", "goodput"}
    assert not measured.keys() & (missing | {"predicted_speedup", "first_divergence"})


@given(runs())
def test_a_request_takes_its_first_token_and_then_tpot_for_each_other_one(run: Drawn) -> None:
    m = run.measurement()
    for times, tokens in zip(m.token_times, m.requests["token_ids"], strict=True):
        assert len(times) == len(tokens)
        assert (np.diff(times) >= 0).all()
    several = [times for times in m.token_times if len(times) > 1]
    expected = [(times[-1] - times[0]) / (len(times) - 1) for times in several]
    assert metric(m, "tpot") == (pytest.approx(np.mean(expected)) if several else None)
    assert metric(m, "ttft") >= metric(m, "prefill_seconds")


@given(runs(), st.floats(0.01, 100))
def test_goodput_is_every_request_without_a_limit_that_binds_and_none_below_the_fastest(
    run: Drawn, limit: float
) -> None:
    m = run.measurement()

    def goodput(**limits: float) -> float | None:
        return metric(replace(m, facts=limits), "goodput")

    total = metric(m, "seconds")
    assert goodput() is None
    assert close(goodput(e2e_limit=total + 1), len(m.requests) / total)
    assert goodput(ttft_limit=min(times[0] for times in m.token_times) * 0.99) == 0
    assert goodput(ttft_limit=limit, tpot_limit=limit) <= goodput(ttft_limit=limit)


@given(runs(same_length=True))
def test_with_equal_lengths_the_prediction_is_the_formula(run: Drawn) -> None:
    m = run.measurement()
    a, c, predicted = (
        metric(m, name, as_plain(m))
        for name in ("token_acceptance_rate", "draft_cost_ratio", "predicted_speedup")
    )
    k = int(m.steps["k"].iloc[0])
    if k * c + 1 <= 0:
        assert predicted is None
    else:
        expected = k + 1 if a == 1 else (1 - a ** (k + 1)) / (1 - a)
        assert close(predicted, expected / (k * c + 1))


@given(runs(), st.floats(0.01, 2), st.floats(0.1, 10))
def test_c_is_what_a_drafted_position_adds_to_an_autoregressive_step(
    run: Drawn, c: float, plain: float
) -> None:
    """Steps that take exactly 1 + c k times as long as autoregressive ones have that c."""
    m = run.measurement()
    steps = m.steps.assign(seconds=plain * (1 + c * m.steps["k"]))
    found = metric(replace(m, steps=steps), "draft_cost_ratio", as_plain(m, plain))
    assert found is None if not m.counts.drafted else math.isclose(found, c, rel_tol=1e-6)


@given(runs(), st.data())
def test_the_first_divergence_is_where_a_token_was_changed(run: Drawn, data: st.DataObject) -> None:
    m = run.measurement()
    which = data.draw(st.integers(0, len(m.requests) - 1))
    tokens = list(m.requests["token_ids"])
    at = data.draw(st.integers(0, len(tokens[which]) - 1))
    tokens[which] = [*tokens[which][:at], 9, *tokens[which][at + 1 :]]
    changed, plain = replace(m, requests=m.requests.assign(token_ids=tokens)), as_plain(m)
    assert metric(changed, "first_divergence", plain) == at
    assert close(metric(changed, "exact_match_rate", plain), 1 - 1 / len(tokens))


def step(
    drafted: list[int], accepted: list[int], emitted: list[int], at: float, requests: list[int]
) -> StepRecord:
    arrays = [np.array(values) for values in (requests, drafted, accepted, emitted)]
    return StepRecord(max(drafted), *arrays, seconds=1.0, host_seconds=0.25, at=at)


def completion(
    prompt: int, tokens: list[int], finish: str = "eos", prefill: float = 0.5, seconds: float = 1.0
) -> Completion:
    logprobs = [-1.0] * len(tokens)
    return Completion(prompt, 0, None, tokens, logprobs, finish, seconds, 1, prefill)


@pytest.mark.parametrize(
    ("tokens", "finish", "at"),
    [
        ([1, 2], "eos", 2),
        ([1, 2], "time", None),
        ([1, 2, 3], "eos", None),
        ([1, 2, 3, 4], "eos", 3),
        ([2], "time", 0),
    ],
)
def test_a_sequence_that_ends_early_parts_where_it_ends_unless_the_budget_ended_it(
    tokens: list[int], finish: str, at: int | None
) -> None:
    plain = measured([], [completion(0, [1, 2, 3])])
    m = measured([], [completion(0, tokens, finish)])
    assert metric(m, "first_divergence", plain) == at
    assert metric(m, "exact_match_rate", plain) == float(at is None)


def test_a_call_by_hand() -> None:
    # Two rows: the first accepts 2 of 3, the second ends with its first drafted token; then the
    # first alone accepts 0 of 1.
    steps = [step([3, 2], [2, 1], [3, 1], 2.0, [0, 1]), step([1, 0], [0, 0], [1, 0], 4.0, [0, -1])]
    completions = [completion(0, [1, 2, 3, 4], seconds=3.5), completion(1, [5], seconds=1.5)]
    m = measured(steps, completions, {"tpot_limit": 0.5})
    assert measure(m) == pytest.approx(
        {
            "steps": 2,
            "row_steps": 3,
            "drafted": 6,
            "accepted": 3,
            "emitted": 5,
            "tokens": 5,
            "seconds": 4.0,
            "prefill_seconds": 0.5,
            "tau": 5 / 3,
            "drafted_per_row_step": 2.0,
            "acceptance_rate": 3 / 6,
            # two were rejected; the second row's draft beyond its end was not judged
            "token_acceptance_rate": 3 / 5,
            "padding_waste": 1 - 9 / 12,  # windows of 4 and 2 for two rows; 3+1, 2+1, 1+1 used
            "active_rows": (2 / 2 + 1 / 2) / 2,
            "first": 1.5,
            "last": 3.5 / 4,
            "all": (1.5 + 3.5 / 4) / 2,
            "ttft": 2.0,
            "tpot": 2 / 3,
            "itl_p50": 2.0,
            "itl_p99": 2.0,
            "tokens_per_second": 5 / 4,
            "tokens_per_second_per_user": (4 / 3.5 + 1 / 1.5) / 2,
            "goodput": 1 / 4,
            "host_share": 0.5 / 2.5,
        }
    )
    assert {name: profile(m, name) for name in PROFILES} == {
        "acceptance_by_position": [2 / 3, 1.0, 0.0],
        "reached_by_position": [3, 1, 1],
        "unconditional_acceptance_by_position": [2 / 3, 1.0, 0.0],
        "judged_by_position": [3, 1, 1],
        "drafted_histogram": [0, 1, 1, 1],
        "accepted_histogram": [1, 1, 1, 0],
        "accepted_by_length": [None, 0, 1, 2],
    }


def test_an_empty_call_has_no_metrics_but_counts_of_nothing() -> None:
    empty = measured([], [], {"bandwidth": 1.0, "flops": 1.0, "e2e_limit": 1.0})
    counts = ("steps", "row_steps", "drafted", "accepted", "emitted", "tokens", "seconds")
    assert measure(empty, plain=empty) == dict.fromkeys(counts, 0.0)


def test_acceptance_has_a_value_per_prompt_and_time_one_per_repeat() -> None:
    """Two repeats of two prompts, in one call each: tau pools the repeats of a prompt."""
    steps, requests = [], []
    for repeat, accepted in ((0, [2, 0]), (1, [1, 1])):
        rows = step([2, 2], accepted, [a + 1 for a in accepted], 1.0 + repeat, [0, 1])
        done = [completion(i, [1] * (a + 1), seconds=0.5 + repeat) for i, a in enumerate(accepted)]
        m = measured([rows], done)
        steps.append(m.steps.assign(repeat=repeat))
        requests.append(m.requests.assign(repeat=repeat))
    m = Measurement(pd.concat(steps), pd.concat(requests))
    assert independent(m, "tau").to_dict() == {0: (3 + 2) / 2, 1: (1 + 2) / 2}
    assert independent(m, "tokens_per_second").to_dict() == {0: 4 / 1.0, 1: 4 / 2.0}
    assert metric(m.where(repeat=1), "tau") == 2
    # a call of two prompts has no steps of one of them alone
    assert metric(m.where(prompt=0), "steps") == 0
    assert metric(m.where(prompt=0), "row_steps") == 2


def test_every_metric_says_what_it_is() -> None:
    assert not METRICS.keys() & PROFILES.keys()
    for one in METRICS.values():
        assert len(one.doc) > 40
        assert one.unit
    assert METRICS["tau"].show(None) == METRICS["all"].show(math.nan) == "–"
    assert (METRICS["all"].show(0.01234), METRICS["all"].heading) == ("12.3", "all, ms per token")
    assert (METRICS["acceptance_rate"].show(0.5), METRICS["mbu"].heading) == ("50.0", "MBU, %")


def test_the_page_of_metrics_has_every_metric() -> None:
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    text = page.read_text(encoding="utf-8")
    assert [name for name in (*METRICS, *PROFILES) if f"`{name}`" not in text] == []
