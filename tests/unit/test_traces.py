"""Traces of acceptance: what the steps recorded, and a replay that is the simulator's own."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given

from bass.analysis.frames import Run, open_run
from bass.errors import OptionError
from bass.experiments.traces import Trace, measured_cost, replay, trace_of
from bass.policies import BatchAdaptive, Fixed
from bass.policies.simulate import LONGEST, Constant, CostModel, RecordedAcceptance, simulate
from support.drawn_calls import Drawn, runs
from support.run_folders import write_run

COST = CostModel.from_ratio(0.1)
FIXED = {"class_path": "fixed", "init_args": {"k": 2}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return open_run(write_run(tmp_path_factory.mktemp("runs") / "one"))


@pytest.fixture(scope="module")
def varied(run: Run) -> Trace:
    """A trace whose steps are of two lengths, as those of a policy."""
    long, short = trace_of(run.measurement("bass-b4")), trace_of(run.measurement("fixed-b4"))
    return replace(long, steps=pd.concat([long.steps, short.steps], ignore_index=True))


@given(runs())
def test_a_trace_has_every_row_step_in_the_order_of_its_request(drawn: Drawn) -> None:
    measured = drawn.measurement()
    if not measured.counts.drafted:
        with pytest.raises(OptionError, match="Nothing was drafted"):
            trace_of(measured)
        return
    trace = trace_of(measured)
    expected = []
    for request in range(len(drawn.requests)):
        for _, requests, drafted, accepted, emitted, *_ in drawn.steps:
            for b in np.flatnonzero(requests == request):
                cut = emitted[b] == accepted[b]  # the text ended inside the draft
                judged = accepted[b] if cut else drafted[b]
                expected.append((drafted[b], judged, accepted[b]))
    assert [*trace.row_steps.itertuples(index=False, name=None)] == expected
    assert trace.censored.tolist() == [accepted == judged for _, judged, accepted in expected]
    assert trace.steps["k"].tolist() == [step[0] for step in drawn.steps]
    assert trace.batch == len(drawn.steps[0][1])
    acceptance = trace.acceptance
    assert acceptance.accepted.tolist() == [accepted for *_, accepted in expected]
    reached = sum(min(judged, accepted + 1) for _, judged, accepted in expected)
    assert acceptance.tail == pytest.approx(sum(acceptance.accepted) / max(reached, 1))


def test_a_replay_of_complete_row_steps_is_the_simulators_own() -> None:
    would = Constant(0.8).draw(np.random.default_rng(3), 500, 4)
    accepted = would.T.ravel()
    row_steps = pd.DataFrame({"drafted": LONGEST + 1, "judged": LONGEST + 1, "accepted": accepted})
    trace = Trace(4, row_steps, pd.DataFrame({"k": [1], "milliseconds": [1.0]}))
    found = replay(trace, {"algorithm 1": "bass"}, COST)
    own = simulate(BatchAdaptive(), trace.acceptance, 4, COST, steps=500)
    np.testing.assert_array_equal(own.would, would)
    row = found.loc["algorithm 1"]
    assert (row["tau"], row["drafted"]) == (own.tau, own.mean_length)
    assert row["speedup"] == pytest.approx(1 / own.ms_per_token)
    assert found.at["no drafts", "speedup"] == 1
    best = found.index[1]
    assert found.at[best, "regret"] == pytest.approx(0)
    k = int(best.rpartition("=")[2])
    assert found.at[best, "ms_per_token"] == pytest.approx((1 + 0.1 * k) / found.at[best, "tau"])
    assert found.at["oracle", "tau"] == pytest.approx(would.mean() + 1)
    assert found.at["oracle", "drafted"] == pytest.approx(would.mean())


@pytest.mark.parametrize("k", [1, 3, 7])
def test_completed_row_steps_have_the_law_of_the_complete_ones(k: int) -> None:
    """Of a run with fixed drafts: 40,000 row steps give every share of at least n accepted tokens
    within 0.0125, five standard deviations; and the best length in hindsight within one.
    """
    would = Constant(0.8).draw(np.random.default_rng(k), 40_000, 1)[:, 0]
    accepted = np.minimum(would, k)
    row_steps = pd.DataFrame({"drafted": k, "judged": k, "accepted": accepted})
    recorded = Trace(1, row_steps, pd.DataFrame({"k": [k], "milliseconds": [1.0]})).acceptance
    drawn = recorded.completed(np.random.default_rng(9))
    for n in range(1, 13):
        assert (drawn >= n).mean() == pytest.approx((would >= n).mean(), abs=0.0125)
    np.testing.assert_array_equal(drawn[would < k], would[would < k])
    assert (drawn >= accepted).all()
    complete = RecordedAcceptance(would, would < 0, recorded.rates, recorded.tail)
    best = [
        int(simulate(Fixed(0), one, 1, COST, steps=40_000).fixed().argmin())
        for one in (recorded, complete)
    ]
    assert abs(best[0] - best[1]) <= 1


def test_the_measured_cost_is_the_line_through_the_steps(run: Run, varied: Trace) -> None:
    medians = varied.steps.groupby("k")["milliseconds"].median()
    (short, long), (low, high) = medians.index, medians
    cost = measured_cost(varied)
    assert cost.draft_weights == pytest.approx((high - low) / (long - short))
    assert cost.weights == pytest.approx(low - short * cost.draft_weights)
    assert replay(varied).index[-1] == "auto"
    with pytest.raises(OptionError, match="does not show what a drafted token costs"):
        measured_cost(trace_of(run.measurement("fixed-b4")))
    falling = varied.steps.assign(milliseconds=10.0 - varied.steps["k"])
    with pytest.raises(OptionError, match="do not grow with their lengths"):
        measured_cost(replace(varied, steps=falling))


def test_no_policy_is_faster_than_the_oracle_at_batch_1(run: Run) -> None:
    trace = trace_of(run.measurement("bass-b1"))
    found = replay(trace, ["bass", FIXED], COST)
    assert [*found.index[2:]] == ["oracle", "bass", "fixed(k=2)"]
    assert (found.at["oracle", "ms_per_token"] <= found["ms_per_token"]).all()
    pd.testing.assert_frame_equal(found, replay(trace, ["bass", FIXED], COST))
    wide = replay(trace, [FIXED], COST, batch=2)
    assert wide.at["fixed(k=2)", "drafted"] == 2
