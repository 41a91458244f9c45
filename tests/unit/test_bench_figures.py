"""The figures of `bass bench`, and what they are computed from. Times mean nothing here."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bass.api.llm import load, plain
from bass.engine.schedule import Schedule
from bass.errors import RunFolderError
from bass.experiments.bench.figures import bound, expected_tau, figures_of, tau_of
from bass.experiments.bench.measure import Bench, measure_machine, pass_bytes
from bass.experiments.bench.record import BenchRecord, Call, Machine, Parts, Setting, WarmUp
from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy
from unit.checkpoints import Pair

MACHINE = Machine("a machine", 1e9, 2e9, 1e12, 4e9)
CPU = torch.device("cpu")


def call(**changed: Any) -> Call:
    figures: dict[str, Any] = {
        "seed": 1,
        "wall_seconds": 2.0,
        "capture_seconds": 0.0,
        "prefill_seconds": 0.5,
        "first": 0.1,
        "last": 0.2,
        "all": 0.15,
        "steps": 40,
        "row_steps": 80,
        "drafted": 320,
        "accepted": 120,
        "emitted": 200,
        "draft_passes": 160,
        "bytes": 10**9,
        "flops": 10**11,
        "flops_kept": 10**10,
        "step_seconds": 1.6,
        "step_median": 0.04,
        "between_median": 0.001,
        "between_p90": 0.002,
    }
    return Call(**figures | changed)


def setting(**changed: Any) -> Setting:
    figures: dict[str, Any] = {
        "method": "k=4",
        "policy": "{}",
        "batch": 2,
        "length": 4,
        "target_bytes": 10**7,
        "draft_bytes": 10**6,
        "peak_bytes": 3 * 10**9,
        "warm_up": WarmUp(1.0, 5, 2.0, 0.5),
        "calls": [call(), call(wall_seconds=3.0), call(wall_seconds=2.2)],
        "parts": Parts(4, 0.01, 0.02, 0.005, 0.004),
    }
    return Setting(**figures | changed)


def test_tau_of_imposed_acceptance() -> None:
    assert expected_tau(0.8, 7) == pytest.approx(4.16, abs=0.01)
    assert expected_tau(0.8, 4) == pytest.approx(3.36, abs=0.01)
    assert (expected_tau(1.0, 5), expected_tau(0.0, 5)) == (6.0, 1.0)
    assert (tau_of(0, None), tau_of(4, None), tau_of(None, 0.8)) == (1.0, None, None)


def test_the_figures_follow_from_the_calls() -> None:
    f = figures_of(setting(), MACHINE, new_tokens=100)
    assert f["wall_ms_per_token"] == pytest.approx(22)
    assert f["spread"] == [pytest.approx(20), pytest.approx(30)]
    assert f["tau"] == 2.5
    # 14 MB at 1 GB/s take 14 ms a step
    assert bound(10**7, 10**6, 4, 1e9) == pytest.approx(0.014)
    assert f["bound_ms_per_token"] == pytest.approx(14 / 2.5)
    assert f["share_of_bound"] == pytest.approx(14 / 2.5 / 22)
    assert f["wall_ms_per_step"] == pytest.approx(55)
    assert f["wall_ms_per_step_over_expected_tau"] is None
    assert f["mbu"] == pytest.approx(1 / 2.2)
    assert f["mbu_data_sheet"] == pytest.approx(1 / 2.2 / 4)
    assert f["mfu"] == pytest.approx(0.1 / 2.2)
    assert f["mbu_of_steps"] == pytest.approx(1 / 1.6 / 2)
    assert f["parts_ms"]["host"] == pytest.approx(55 - 35)
    assert f["sampling_share"] == pytest.approx(9 / 55)
    assert (f["speedup"], f["peak_gb"], f["mean_draft_length"]) == (None, 3.0, 4.0)


def test_imposed_acceptance_gives_the_expected_tau_to_bound_and_step() -> None:
    f = figures_of(setting(), MACHINE, 100, acceptance=0.8)
    tau = expected_tau(0.8, 4)
    assert f["bound_ms_per_token"] == pytest.approx(14 / tau)
    assert f["wall_ms_per_step_over_expected_tau"] == pytest.approx(55 / tau)
    assert f["device_ms_per_token"] == pytest.approx(35 / tau)
    # a plain step takes 20 ms on the device, and one of 4 drafted tokens 40 ms
    fast = setting(method="plain", calls=[call(steps=100, step_seconds=2.0, draft_passes=0)])
    assert figures_of(setting(), MACHINE, 100, 0.8, fast)["draft_cost_ratio"] == pytest.approx(0.25)
    assert figures_of(fast, MACHINE, 100, 0.8, fast)["draft_cost_ratio"] is None
    assert f["draft_cost_ratio"] is None
    long = Parts(4, 0.03, 0.02, 0.01, 0.004)  # of a noisier pass than the 55 ms of wall time
    assert figures_of(setting(parts=long), MACHINE, 100)["parts_ms"]["host"] is None
    slower = setting(method="plain", calls=[call(wall_seconds=w) for w in (4.4, 9.9, 1.0)])
    assert figures_of(setting(), MACHINE, 100, 0.8, slower)["speedup"] == pytest.approx(2)
    unknown = replace(MACHINE, data_sheet_bandwidth=None)
    assert figures_of(setting(parts=None), unknown, 100)["mbu_data_sheet"] is None
    assert figures_of(setting(parts=None), unknown, 100)["parts_ms"] is None


def test_a_pass_reads_the_weights_and_the_keys_of_all_rows(pair: Pair) -> None:
    llm = load(pair.target, pair.draft, num_speculative_tokens=3)
    for batch, length in ((1, 10), (4, 30)):
        target, draft = pass_bytes(llm, batch, length)
        for model, read in ((llm.models.target, target), (llm.models.draft, draft)):
            assert model is not None
            shape, weights = model.shape, sum(p.nbytes for p in model.parameters())
            keys = 2 * shape.layers * shape.kv_heads * shape.head_dim * 4
            assert read == weights + batch * length * keys
    assert pass_bytes(plain(llm), 1, 10) == (pass_bytes(llm, 1, 10)[0], 0)


class Slow(DraftLengthPolicy[int]):
    """Two tokens, after a pause of the host."""

    max_length = 2

    def init(self, batch_size: int) -> int:
        return batch_size

    def lengths(self, state: int) -> np.ndarray:
        return np.full(state, 2)

    def update(self, state: int, feedback: Feedback) -> int:
        time.sleep(0.02)
        return state


def test_wall_time_leaves_nothing_out(pair: Pair, device: torch.device) -> None:
    """The host's time between steps is part of it, and the prefill is not."""
    llm = load(pair.target, pair.draft, Slow(), cuda_graphs=False)
    prompts = np.ones((2, 8), int).tolist()
    one = Bench(llm, [prompts], {"max_new_tokens": 12, "temperature": 1.0, "ignore_eos": True})
    warm_up, peak = one.warm_up(0)
    assert (warm_up.graphs, peak is None, warm_up.seconds > 0) == (0, device.type == "cpu", True)
    began = time.perf_counter()
    timed = one.call(1)
    whole = time.perf_counter() - began
    assert timed.wall_seconds > 0.02 * timed.steps
    assert timed.step_seconds < timed.wall_seconds < whole - timed.prefill_seconds
    assert timed.emitted == 24
    assert timed.steps < timed.draft_passes <= 2 * timed.steps
    parts = one.parts()
    assert parts is not None
    assert parts.k == 2
    assert min(parts.draft, parts.verify, parts.sample, parts.draft_sampling) > 0


def test_the_prefill_is_no_part_of_the_wall_time(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Bench(load(pair.target, num_speculative_tokens=0), [[[1] * 8]], {"max_new_tokens": 4})
    one.warm_up(0)
    admit, pauses = Schedule.admit, [2.0]

    def slow(self: Schedule) -> Any:
        time.sleep(pauses.pop() if pauses else 0)
        return admit(self)

    monkeypatch.setattr(Schedule, "admit", slow)
    timed = one.call(1)
    assert timed.prefill_seconds > 2 > timed.wall_seconds


def test_figures_that_no_measurement_has_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    record = BenchRecord({}, MACHINE, [setting()])
    record.save(path)
    assert BenchRecord.opened(path, {}) == record
    for old, new in (('"wall_seconds": 2.0', '"wall_seconds": 0.0'), ("1000000000.0", "-1.0")):
        path.write_text(record.to_json(indent=1).replace(old, new), encoding="utf-8")
        with pytest.raises(RunFolderError, match="must be > 0"):
            BenchRecord.opened(path, {})


def test_the_machine_is_measured_on_a_processor() -> None:
    machine = measure_machine(CPU, torch.float32)
    assert machine.copy_bandwidth > 1e8
    assert machine.data_sheet_bandwidth is None
