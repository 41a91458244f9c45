"""The benchmark of attention: what it counts and concludes, and that it runs.

Its figures mean something on a GPU only.
"""

import importlib
import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from unit.test_package import ROOT


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """The script, which imports modules that lie beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("attention")


def timing(benchmark: ModuleType, seconds: float) -> Any:
    return benchmark.Timing(seconds, seconds, seconds, None)


def test_one_row_has_the_whole_context_and_skewed_others_an_eighth(benchmark: ModuleType) -> None:
    for batch in (1, 2, 5, 32):
        equal, skewed = (
            benchmark.Case("toy", 2, skew, batch, 64).lengths for skew in (False, True)
        )
        assert equal.tolist() == [64] * batch
        assert sorted(skewed.tolist()) == [8] * (batch - 1) + [64]


def test_the_needed_bytes_are_those_of_the_visible_keys(benchmark: ModuleType) -> None:
    for skewed in (False, True):
        case, heads = benchmark.Case("toy", 3, skewed, 4, 40), benchmark.PAIRS["toy"]
        own = case.lengths[:, None] + np.arange(-case.window, 0)
        visible = (np.arange(case.context) <= own[..., None]).any(1)  # [B, S], by some query
        assert (
            case.key_bytes
            == visible.sum() * torch.zeros(2, heads.key, heads.dim, dtype=torch.bfloat16).nbytes
        )
        assert (
            case.query_bytes
            == 2 * torch.zeros(*own.shape, heads.query, heads.dim, dtype=torch.bfloat16).nbytes
        )


def test_the_answers_follow_from_the_times(
    benchmark: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    bandwidth = 1e12
    fast, slow, short = (
        benchmark.Case("paper", 8, False, batch, context)
        for batch, context in ((8, 2048), (16, 2048), (8, 512))
    )
    # seconds at the bandwidth
    at = {case: case.key_bytes / bandwidth for case in (fast, slow, short)}
    # pad, split, ragged
    shares = {fast: (0.5, 0.4, 0.8), slow: (0.6, 0.61, 0.6), short: (0.3, 0.5, 0.4)}
    timings = {
        case: {
            name: timing(benchmark, at[case] / share)
            for name, share in zip(("pad", "split", "ragged"), of_case, strict=True)
        }
        for case, of_case in shares.items()
    }
    assert benchmark.lead(timings[fast]) == pytest.approx(0.8 / 0.5)
    assert benchmark.split_over_pad(timings)[fast] == pytest.approx(0.5 / 0.4)
    found = benchmark.answers(timings, bandwidth, Console(width=150))
    # the short context is not asked for
    assert found["ragged_lowest_share"] == {benchmark.named(slow): 0.6}
    # 0.61 over 0.6 is within the slack
    assert found["ragged_slower"] == {benchmark.named(short): ["split", 1.25]}
    assert found["pad_against_split"] == {"pad": 1, "split": 1, "tie": 1}
    said = capsys.readouterr().out
    assert "no: paper, window 8, equal lengths: at least 60% (batch 16)" in said
    timings[slow]["ragged"] = timing(benchmark, at[slow] / 0.7)
    assert benchmark.reaches_the_aim(timings, bandwidth)[slow.group] == (pytest.approx(0.7), slow)


def test_it_times_and_checks_every_backend(
    benchmark: ModuleType, capsys: pytest.CaptureFixture[str], device: torch.device
) -> None:
    toy = "--pairs toy --windows 2 --batches 1 3 --contexts 24 --rotate 0 --repeats 1"
    benchmark.main([*toy.split(), "--device", str(device)])
    *_, last = capsys.readouterr().out.splitlines()
    record = json.loads(last)
    backends = record["config"]["backends"]
    assert set(backends) == {"pad", "split", "ragged", "paged", "sdpa"}
    assert len(record["us"]) == 3
    assert all(
        found.keys() == set(backends) and all(us > 0 for times in found.values() for us in times)
        for found in record["us"].values()
    )
    assert all(0 < error < benchmark.TOLERANCE for error in record["summary"]["error"].values())
