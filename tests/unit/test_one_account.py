"""What `result.stats` says of a call, and a run folder of the same call, is one account."""

from pathlib import Path

import pytest

from bass.analysis.metrics import METRICS, measure, profiles
from bass.analysis.repeats import Repeat
from bass.api.llm import load
from bass.experiments.cells import _record
from bass.prompts.entries import Entry
from bass.runs.lines import read_lines
from bass.runs.machine import Conditions
from bass.runs.records import RequestLine, StepLine
from bass.runs.run_folder import RunFolder, _request_or_end
from bass.runs.settings import Call
from unit.checkpoints import Pair


@pytest.mark.parametrize("time_budget", [None, 1e-9])
def test_stats_and_metrics_of_a_run_folder_agree(
    time_budget: float | None, pair: Pair, tmp_path: Path
) -> None:
    """Within the shortest budget one row takes one step, and two samples never have a row."""
    llm = load(pair.target, pair.draft, max_batch_size=1, num_speculative_tokens=2)
    options = {"max_new_tokens": 6, "ignore_eos": True, "time_budget": time_budget}
    generation = llm.stream([1, 2, 3], num_return_sequences=3, **options)
    stats = generation.result().stats.as_dict()
    call = Call(0, [Entry((1, 2, 3))], 3, 0, 0, [0])
    _record(tmp_path, call, generation, Conditions(llm.models.device).line(0))
    steps = read_lines(tmp_path / RunFolder.STEPS, StepLine.from_json).values
    lines = read_lines(tmp_path / RunFolder.REQUESTS, _request_or_end).values
    requests = [line for line in lines if isinstance(line, RequestLine)]
    waiting = 0 if time_budget is None else 2
    assert sum(line.prefill_seconds is None for line in requests) == waiting
    repeat = Repeat([line.record() for line in steps], requests)
    found = measure(repeat) | profiles(repeat)
    shared = [name for name in (*METRICS, *profiles(repeat)) if name in found and name in stats]
    assert {"seconds", "prefill_seconds", "tokens_per_second", "tau"} <= {*shared}
    for name in shared:
        assert found[name] == pytest.approx(stats[name]), name
