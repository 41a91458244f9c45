"""Metrics: identities among them on drawn runs, and figures worked out by hand.

What `Stats` has too is the same number.
"""

import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bass.analysis import acceptance, against_plain, speed
from bass.analysis.metrics import (
    COLUMNS,
    FIGURES,
    METRICS,
    OF_A_CALL,
    PROFILES,
    measure,
    profiles,
)
from bass.analysis.repeats import Repeat
from bass.api.results import Completion, Stats, judged_lengths, summarize
from bass.cli import display
from bass.engine.requests import StepRecord, Trace
from bass.runs.records import Summary
from bass.runs.settings import Limits
from support.drawn_runs import FACTS, Drawn, as_plain, runs

SPEEDUPS = [f"speedup_{name}" for name in ("tokens_per_second", "first", "last", "all")]


def close(x: float | None, y: float | None) -> bool:
    assert x is not None
    assert y is not None
    return math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-12)


@given(runs())
def test_every_value_is_a_finite_number_and_shares_are_shares(run: Drawn) -> None:
    repeat = run.repeat()
    measured = measure(replace(repeat, plain=as_plain(repeat), limits=Limits(ttft=1.0)))
    assert all(math.isfinite(value) for value in measured.values())
    for name, value in measured.items():
        # the drawn times may beat the drawn device
        if METRICS[name].unit == "share" and name not in ("mbu", "mfu", "mfu_kept"):
            assert -1e-12 <= value <= 1, name
    assert all(
        value is None or math.isfinite(value)
        for values in profiles(repeat).values()
        for value in values
    )


@given(runs())
def test_accounts_sum_to_the_committed_tokens(run: Drawn) -> None:
    repeat = run.repeat()
    committed = {
        line.request: int(repeat.rows.emitted[repeat.rows.requests == line.request].sum())
        for line in repeat.requests
    }
    assert sum(committed.values()) == repeat.counts.emitted
    assert all(len(line.tokens) <= committed[line.request] for line in repeat.requests)
    assert repeat.tokens == sum(len(line.tokens) for line in repeat.requests)


@given(runs())
def test_a_call_commits_what_it_accepted_and_one_more_unless_the_sequence_ended_before(
    run: Drawn,
) -> None:
    repeat = run.repeat()
    cut = int((repeat.rows.emitted == repeat.rows.accepted).sum())
    assert repeat.counts.emitted == repeat.counts.accepted + repeat.counts.row_steps - cut
    assert cut <= len(repeat.requests)
    lost = cut / repeat.counts.row_steps
    assert close(acceptance.tau(repeat), 1 + acceptance.accepted_per_call(repeat) - lost)


@given(runs(cuts=False))
def test_without_cuts_tau_is_one_more_than_accepted_per_call(run: Drawn) -> None:
    """vLLM's definition, 1 + accepted / drafts, is the same number where every call has a draft."""
    repeat = run.repeat()
    assert close(acceptance.tau(repeat), 1 + acceptance.accepted_per_call(repeat))


@given(runs(same_calls=True))
def test_pooled_tau_is_the_mean_of_requests_where_all_have_as_many_calls(run: Drawn) -> None:
    repeat = run.repeat()
    measured = measure(repeat)
    assert close(measured["tau"], measured["tau_of_requests"])


@given(runs())
def test_pooled_tau_is_the_mean_of_requests_weighed_by_their_calls(run: Drawn) -> None:
    repeat = run.repeat()
    lengths = acceptance.acceptance_lengths(repeat)
    calls = {r: int((repeat.rows.requests == r).sum()) for r in lengths}
    assert close(
        acceptance.tau(repeat), sum(lengths[r] * calls[r] for r in lengths) / sum(calls.values())
    )


@given(runs(cuts=False, same_length=True))
def test_with_equal_lengths_conditional_rates_multiply_to_unconditional_ones(run: Drawn) -> None:
    repeat = run.repeat()
    conditional, unconditional = (
        acceptance.acceptance_by_position(repeat),
        acceptance.unconditional_acceptance_by_position(repeat),
    )
    assert acceptance.judged_by_position(repeat) == [repeat.counts.row_steps] * len(unconditional)
    # no further, where every draft was rejected
    reached = [rate for rate in conditional if rate is not None]
    assert not any(unconditional[len(reached) :])
    np.testing.assert_allclose(np.cumprod(reached), unconditional[: len(reached)], atol=1e-12)
    assert close(acceptance.accepted_per_call(repeat), sum(rate or 0.0 for rate in unconditional))


@given(runs())
def test_rates_times_their_denominators_are_the_accepted_tokens(run: Drawn) -> None:
    repeat = run.repeat()
    for rates, counts in (
        (acceptance.acceptance_by_position(repeat), acceptance.reached_by_position(repeat)),
        (
            acceptance.unconditional_acceptance_by_position(repeat),
            acceptance.judged_by_position(repeat),
        ),
    ):
        assert [rate is None for rate in rates] == [n == 0 for n in counts]
        assert close(
            sum((rate or 0.0) * n for rate, n in zip(rates, counts, strict=True)),
            repeat.counts.accepted,
        )
    assert acceptance.reached_by_position(repeat)[:1] == acceptance.judged_by_position(repeat)[:1]


@given(runs())
def test_what_a_cut_left_unjudged_is_in_no_denominator(run: Drawn) -> None:
    repeat = run.repeat()
    assert sum(acceptance.judged_by_position(repeat)) == sum(
        int(judged_lengths(s).sum()) for s in repeat.steps
    )
    rejections = int((repeat.rows.judged > repeat.rows.accepted).sum())
    if repeat.counts.accepted + rejections:
        assert close(
            acceptance.token_acceptance_rate(repeat),
            repeat.counts.accepted / (repeat.counts.accepted + rejections),
        )


@given(runs())
def test_histograms_sum_to_calls_and_tokens(run: Drawn) -> None:
    repeat = run.repeat()
    counts = acceptance.histogram(repeat)
    drafted, accepted = acceptance.drafted_histogram(repeat), acceptance.accepted_histogram(repeat)
    assert counts.sum() == sum(drafted) == sum(accepted) == repeat.counts.row_steps
    assert sum(n * calls for n, calls in enumerate(drafted)) == repeat.counts.drafted
    assert sum(n * calls for n, calls in enumerate(accepted)) == repeat.counts.accepted
    assert not np.triu(counts, 1).any()  # nothing accepts more than it drafted
    by_length = acceptance.accepted_by_length(repeat)
    assert [mean is None for mean in by_length] == [calls == 0 for calls in drafted]
    assert close(
        sum((mean or 0.0) * calls for mean, calls in zip(by_length, drafted, strict=True)),
        repeat.counts.accepted,
    )


@given(runs())
def test_wasted_tokens_are_drafted_less_accepted(run: Drawn) -> None:
    repeat = run.repeat()
    measured = measure(repeat)
    assert measured["wasted_drafted_tokens"] == repeat.counts.drafted - repeat.counts.accepted
    if repeat.counts.drafted:
        assert close(
            measured["wasted_drafted_tokens"],
            repeat.counts.drafted * (1 - measured["acceptance_rate"]),
        )
    assert close(
        measured["wasted_per_token"] * measured["tau"],
        measured["drafted_per_call"] - measured["accepted_per_call"],
    )


@given(runs(plain=True))
def test_plain_decoding_commits_one_token_a_call_and_has_no_rate_of_acceptance(run: Drawn) -> None:
    repeat = run.repeat()
    measured = measure(replace(repeat, plain=repeat))
    assert measured["tau"] == measured["share_without_draft"] == 1
    assert measured["wasted_drafted_tokens"] == measured["drafted_per_call"] == 0
    assert not measured.keys() & {
        "acceptance_rate",
        "token_acceptance_rate",
        "draft_cost_ratio",
        "predicted_speedup",
        "goodput",
    }
    assert all(measured[name] == 1 for name in (*SPEEDUPS, "exact_match_rate"))
    assert measured["speedup_limit"] == 1
    summary = Summary("x", {}, "done", None, {}, [measured] * 3, 1.0)
    assert against_plain.impossible(summary) is None
    for name in ("speedup_tokens_per_second", "speedup_all"):
        found = replace(summary, repeats=[measured | {name: 1.01 + i / 1e3} for i in range(3)])
        assert f"`{name}`" in str(against_plain.impossible(found))
    assert "first_divergence" not in measured


def stats_of(repeat: Repeat) -> Stats:
    """What `LLM.generate` would have said of the same steps and requests."""
    lines = sorted(repeat.requests, key=lambda line: line.request)
    trace = Trace(repeat.steps, prefilled={line.request: line.prefill_seconds for line in lines})
    completions = [
        Completion(line.request, 0, None, line.tokens, line.logprobs, line.finish, line.seconds)
        for line in lines
    ]
    return summarize(trace, completions, FACTS.peaks, repeat.seconds, True)


def agree(repeat: Repeat) -> None:
    """Every name of `result.stats` is a metric's, with the same value, or none in both."""
    stats, measured, lists = stats_of(repeat).as_dict(), measure(repeat), profiles(repeat)
    for name, theirs in stats.items():
        if name in PROFILES:
            assert lists[name] == theirs, name
        elif name not in OF_A_CALL:
            assert METRICS[name].name == name
            ours = measured.get(name)
            assert (ours is None) == (theirs is None), name
            assert ours is None or close(ours, theirs), name


@given(runs())
def test_stats_and_metrics_have_the_same_names_and_numbers(run: Drawn) -> None:
    agree(run.repeat())


@given(runs(plain=True))
def test_stats_and_metrics_have_the_same_names_and_numbers_where_nothing_was_drafted(
    run: Drawn,
) -> None:
    repeat = run.repeat()
    agree(repeat)
    assert stats_of(repeat).acceptance_rate is None
    assert stats_of(repeat).drafted == measure(repeat)["drafted"] == 0


def step(
    drafted: list[int], accepted: list[int], emitted: list[int], at: float = 1.0
) -> StepRecord:
    values = [np.array(v) for v in (range(len(drafted)), drafted, accepted, emitted)]
    return StepRecord(max(drafted), 8, 10, *values, seconds=1.0, host_seconds=0.25, at=at)


def test_stats_and_metrics_have_the_same_names_and_numbers_where_nothing_was_done() -> None:
    agree(Repeat([], [], facts=replace(FACTS, peak_memory_bytes=None)))
    # nobody reached position 2
    agree(Repeat([step([2, 3], [0, 0], [1, 1])], [], facts=replace(FACTS, peak_memory_bytes=None)))


def test_every_place_that_shows_figures_takes_them_from_the_table() -> None:
    assert {*COLUMNS, *FIGURES, *display.FIGURES} <= METRICS.keys()
    assert not METRICS.keys() & PROFILES.keys()
    assert not OF_A_CALL.keys() & {*METRICS, *PROFILES}
    assert METRICS["tau"].show(None) == METRICS["all"].show(None) == "–"
    assert (METRICS["all"].show(0.01234), METRICS["all"].shown_unit) == ("12.3", "ms per token")
    assert (METRICS["acceptance_rate"].show(0.5), METRICS["acceptance_rate"].shown_unit) == (
        "50.0",
        "%",
    )


@given(runs())
def test_token_times_are_the_ends_of_steps_whether_they_were_noted_or_not(run: Drawn) -> None:
    repeat = run.repeat()
    forgotten = replace(
        repeat, requests=[replace(line, token_seconds=None) for line in repeat.requests]
    )
    for request, times in repeat.token_times.items():
        np.testing.assert_array_equal(times, forgotten.token_times[request])
        assert (np.diff(times) >= 0).all()


@given(runs())
def test_a_request_takes_its_first_token_and_then_tpot_for_each_other_one(run: Drawn) -> None:
    repeat = run.repeat()
    firsts, gaps = speed.first_token_times(repeat), speed.times_per_output_token(repeat)
    for line in repeat.requests:
        rest = gaps.get(line.request, 0.0) * (len(line.tokens) - 1)
        assert math.isclose(firsts[line.request] + rest, repeat.token_times[line.request][-1])
        assert firsts[line.request] >= line.prefill_seconds


@given(runs())
def test_intervals_between_tokens_sum_to_the_time_from_first_to_last(run: Drawn) -> None:
    repeat = run.repeat()
    total = sum(times[-1] - times[0] for times in repeat.token_times.values())
    assert math.isclose(speed.inter_token_latencies(repeat).sum(), total, abs_tol=1e-9)
    assert (speed.inter_token_latencies(repeat) > 0).all()


@given(runs())
def test_a_metric_with_values_by_request_is_their_mean(run: Drawn) -> None:
    repeat = run.repeat()
    repeat = replace(repeat, plain=as_plain(repeat))
    for metric in METRICS.values():
        if metric.by_request is not None:
            values = list(metric.by_request(repeat).values())
            assert (
                close(metric.function(repeat), float(np.mean(values)))
                if values
                else metric.function(repeat) is None
            )


@given(runs(), st.floats(0.01, 100))
def test_goodput_is_every_request_without_a_limit_that_binds_and_none_below_the_fastest(
    run: Drawn, limit: float
) -> None:
    repeat = run.repeat()
    every = len(repeat.requests) / repeat.seconds
    assert speed.goodput(repeat) is None
    assert close(speed.goodput(replace(repeat, limits=Limits(e2e=repeat.seconds + 1))), every)
    fastest = min(speed.first_token_times(repeat).values())
    assert speed.goodput(replace(repeat, limits=Limits(ttft=fastest * 0.99))) == 0
    assert speed.goodput(replace(repeat, limits=Limits(ttft=limit, tpot=limit))) <= speed.goodput(
        replace(repeat, limits=Limits(ttft=limit))
    )
    cut = [replace(line, finish="budget") for line in repeat.requests]
    assert speed.goodput(replace(repeat, requests=cut, limits=Limits(e2e=1e9))) == 0


@given(runs(same_length=True))
def test_with_equal_lengths_the_prediction_is_the_formula(run: Drawn) -> None:
    repeat = run.repeat()
    repeat = replace(repeat, plain=as_plain(repeat))
    a, c, k = (
        acceptance.token_acceptance_rate(repeat),
        against_plain.draft_cost_ratio(repeat),
        repeat.steps[0].k,
    )
    predicted = against_plain.predicted_speedup(repeat)
    if k * c + 1 <= 0:
        assert predicted is None
    elif a < 1:
        assert close(predicted, (1 - a ** (k + 1)) / ((1 - a) * (k * c + 1)))
    else:
        assert close(predicted, (k + 1) / (k * c + 1))


@given(runs(), st.floats(0.01, 2), st.floats(0.1, 10))
def test_c_is_what_a_drafted_position_adds_to_a_plain_step(
    run: Drawn, c: float, plain: float
) -> None:
    """Steps that take exactly 1 + c k times as long as plain ones have that c."""
    repeat = run.repeat()
    steps = [replace(s, seconds=plain * (1 + c * s.k)) for s in repeat.steps]
    found = against_plain.draft_cost_ratio(
        replace(repeat, steps=steps, plain=as_plain(repeat, plain))
    )
    assert found is None if not repeat.counts.drafted else math.isclose(found, c, rel_tol=1e-6)


# exact, so that two that end together still do
@given(runs(), st.sampled_from([0.25, 0.5, 2.0, 4.0]))
def test_a_plain_run_that_takes_so_many_times_as_long_gives_that_speedup(
    run: Drawn, times: float
) -> None:
    repeat = run.repeat()
    slower = [
        replace(r, prefill_seconds=r.prefill_seconds * times, seconds=r.seconds * times)
        for r in repeat.requests
    ]
    plain = replace(as_plain(repeat), requests=slower)
    measured = measure(
        replace(
            repeat, plain=replace(plain, steps=[replace(s, at=s.at * times) for s in plain.steps])
        )
    )
    for name in SPEEDUPS:
        assert math.isclose(measured[name], times)


@given(runs(), st.data())
def test_the_first_divergence_is_where_a_token_was_changed(run: Drawn, data: st.DataObject) -> None:
    repeat = run.repeat()
    which = data.draw(st.integers(0, len(repeat.requests) - 1))
    line = repeat.requests[which]
    at = data.draw(st.integers(0, len(line.tokens) - 1))
    changed = replace(line, tokens=[*line.tokens[:at], 9, *line.tokens[at + 1 :]])
    other = replace(
        repeat,
        requests=[*repeat.requests[:which], changed, *repeat.requests[which + 1 :]],
        plain=as_plain(repeat),
    )
    assert against_plain.first_divergence(other) == at
    assert close(measure(other)["exact_match_rate"], 1 - 1 / len(repeat.requests))
