"""Acceptance traces: what is exported is what the steps recorded, and a replay of complete calls is
the simulator's own; censored calls do not bias it.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bass.analysis import traces
from bass.analysis.traces import CellTrace, measured_cost
from bass.cli.trace import replayed
from bass.errors import BassError, OptionError
from bass.policies import BatchAdaptive, Fixed
from bass.policies.recorded_acceptance import RecordedAcceptance
from bass.policies.simulate import LONGEST, Constant, CostModel, simulate
from bass.runs.run_folder import RunFolder
from support.run_folders import write_run
from unit.checkpoints import Said

Command = Callable[..., Said]
COST = CostModel.from_ratio(0.1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return write_run(tmp_path_factory.mktemp("runs") / "one")


@pytest.fixture(scope="module")
def file(run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "one.jsonl"
    traces.export(run, path)
    return path


def test_a_trace_has_every_call_of_the_cells_that_draft(run: RunFolder, file: Path) -> None:
    found = {one.cell: one for one in traces.read(file)}
    assert [*found] == [cell.id for cell in run.cells if cell.settings["policy"] != "plain"]
    for cell, one in found.items():
        steps = run.lines(cell).steps
        active = [(s, i) for s in steps for i, request in enumerate(s.request_rows) if request >= 0]
        assert sum(map(sum, one.drafted)) == sum(s.drafted[i] for s, i in active)
        assert sum(map(sum, one.accepted)) == sum(s.accepted[i] for s, i in active)
        assert sum(map(len, one.would)) == len(active)
        known = [
            s.accepted[i]
            for s, i in active
            # a token was rejected: the step emitted a correction for it
            if s.accepted[i] < s.drafted[i] and s.emitted[i] > s.accepted[i]
        ]
        assert sorted(w for calls in one.would for w in calls if w >= 0) == sorted(known)
        assert len(one.step_k) == len(steps)
    assert CellTrace.from_json(found[cell].to_json()) == found[cell]


def test_a_replay_of_complete_calls_is_the_simulators_own() -> None:
    would = Constant(0.8).draw(np.random.default_rng(3), 500, 4)
    recorded = RecordedAcceptance(would.T.ravel(), np.zeros(2000, dtype=bool), np.ones(0), 0.0)
    assert recorded.steps(4) == 500
    replay = simulate(BatchAdaptive(), recorded, 4, COST, steps=500)
    np.testing.assert_array_equal(replay.would, would)
    assert replay.regret() >= 0


@pytest.mark.parametrize("k", [1, 3, 7])
def test_completed_calls_have_the_law_of_the_complete_ones(k: int) -> None:
    """Of a run with fixed drafts: 40,000 calls give every share of at least n accepted tokens
    within 0.0125, five standard deviations; and the best length in hindsight within one.
    """
    would = Constant(0.8).draw(np.random.default_rng(k), 40_000, 1)[:, 0]
    censored = would >= k
    rates, tail = np.full(k, 0.8), 0.8
    accepted = np.minimum(would, k)
    recorded = RecordedAcceptance(accepted, censored, rates, tail)
    drawn = recorded.completed(np.random.default_rng(9))
    for n in range(1, 13):
        assert (drawn >= n).mean() == pytest.approx((would >= n).mean(), abs=0.0125)
    np.testing.assert_array_equal(drawn[~censored], would[~censored])
    assert (drawn >= accepted).all()
    assert drawn.max() <= LONGEST
    best = [
        int(simulate(Fixed(0), one, 1, COST, steps=40_000).fixed().argmin())
        for one in (recorded, RecordedAcceptance(would, censored & False, rates, tail))
    ]
    assert abs(best[0] - best[1]) <= 1


def test_the_measured_cost_is_the_line_through_the_steps(file: Path) -> None:
    """Steps of the drawn runs take 5 ms, 0.4 ms for each drafted token, and up to 1 ms for
    positions and the host.
    """
    by_cell = {one.cell: one for one in traces.read(file)}
    varied = next(one for cell, one in by_cell.items() if "bass-b4" in cell)
    cost = measured_cost([varied])
    assert cost.weights == pytest.approx(5.8, abs=1.5)
    assert cost.draft_weights == pytest.approx(0.4, abs=0.2)
    fixed = next(one for cell, one in by_cell.items() if "fixed-b4" in cell)
    with pytest.raises(OptionError, match="does not show what a drafted token costs"):
        measured_cost([fixed])
    assert measured_cost([fixed, varied]).weights == pytest.approx(cost.weights, abs=1.0)


def test_a_cell_whose_times_show_no_cost_is_left_out_of_several(
    file: Path, tmp_path: Path, bass_command: Command
) -> None:
    by_cell = {one.cell: one for one in traces.read(file)}
    varied = next(one for cell, one in by_cell.items() if "bass-b4" in cell)
    fixed = replace(next(one for cell, one in by_cell.items() if "fixed-b4" in cell), batch=5)
    path = tmp_path / "two.jsonl"
    path.write_text(f"{fixed.to_json()}\n{varied.to_json()}\n", encoding="utf-8")
    said = bass_command("trace", "replay", str(path))
    assert said.status == 0
    assert f"`{fixed.cell}` is left out. All steps" in said.err
    assert varied.cell in said.out
    said = bass_command("trace", "replay", str(path), "--cell", fixed.cell)
    assert said.status == 2


def test_no_policy_is_faster_than_the_lower_bound_of_the_oracle_at_batch_1(file: Path) -> None:
    one = next(one for one in traces.read(file) if one.batch == 1)
    rows = replayed(one, [("bass", "bass"), ("fixed", "fixed")], COST, 1, 0)
    by_name = {row.policy.partition(",")[0]: row for row in rows}
    assert by_name["no drafts"].speedup == pytest.approx(1)
    assert by_name["best fixed length"].regret == pytest.approx(0)
    assert all(by_name["oracle"].ms_per_token <= row.ms_per_token for row in rows)


def test_the_commands(run: RunFolder, tmp_path: Path, bass_command: Command) -> None:
    path = tmp_path / "trace.jsonl"
    said = bass_command("trace", "export", str(run.path), "--output", str(path))
    assert said.status == 0
    assert said.out.count("might have accepted more than they drafted") == 4
    cell = traces.read(path)[0].cell
    policies = ("bass", "{class_path: fixed, init_args: {k: 2}}")
    command = ("trace", "replay", str(path), "--cell", cell, "--cost", "c=0.1", "--policies")
    said = bass_command(*command, *policies)
    assert said.status == 0
    assert all(name in said.out for name in ("no drafts", "oracle", "bass", "fixed(k=2)"))
    assert bass_command(*command, *policies).out == said.out
    assert bass_command("trace", "--help").status == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show"], "Unknown action of `bass trace` `show`. Known: export, replay."),
        (["export", "RUN"], "needs `--output FILE.jsonl`"),
        (["export", "none", "--output", "FILE"], "is no folder"),
        (["export", "RUN", "--output", "RUN/manifest.json"], "give one that ends in .jsonl"),
        (["export", "RUN", "--output", "RUN/new.jsonl"], "is in the run folder, whose files"),
        (["export", "RUN", "--output", "RUN/cells/../x.jsonl"], "is in the run folder"),
        (["replay", "none.jsonl"], "is no file: give one that `bass trace export` wrote"),
        (["replay", "TRACE", "--cost", "x"], "give measured, h200, or a ratio as c=0.1"),
        (["replay", "TRACE", "--cost", "c=x"], "give measured, h200, or a ratio as c=0.1"),
        (["replay", "TRACE", "--policies", "none"], "none"),
        (["replay", "TRACE", "--policies", "{a"], "is not YAML"),
        (["replay", "TRACE", "--cell", "x"], "Unknown cell `x`"),
        (["replay", "TRACE", "--batch", "0"], "batch"),
        (["replay", "TRACE", "--batch", "3"], "leave it out, or give another `--cost`"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str],
    says: str,
    run: RunFolder,
    file: Path,
    tmp_path: Path,
    bass_command: Command,
) -> None:
    places = {"TRACE": str(file), "FILE": str(tmp_path / "x.jsonl")}
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    given = [word.replace("RUN", str(run.path)) for word in arguments]
    said = bass_command("trace", *(places.get(word, word) for word in given))
    assert said.status == 2
    assert before == {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    assert said.err.count("\n") == 1
    assert says in said.err


@pytest.mark.parametrize("damage", ["cut", "calls", "rates", "version", "empty"])
def test_a_damaged_file_is_an_error(damage: str, file: Path, tmp_path: Path) -> None:
    text = file.read_text(encoding="utf-8")
    first = json.loads(text.splitlines()[0])
    changed = {
        "cut": text[:-5],
        "calls": json.dumps(first | {"accepted": first["accepted"][1:]}) + "\n",
        "rates": json.dumps(first | {"rates": [2.0]}) + "\n",
        "version": json.dumps(first | {"format": 9}) + "\n",
        "empty": "",
    }[damage]
    (path := tmp_path / "x.jsonl").write_text(changed, encoding="utf-8")
    with pytest.raises(BassError):
        traces.read(path)
