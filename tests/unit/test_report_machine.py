"""Two runs are compared in times only where the machine's speed does not explain the difference."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bass.analysis.evaluated import both, read_evaluation
from bass.analysis.metrics import METRICS
from bass.analysis.noise import Speeds
from bass.provenance import environment
from bass.provenance.environment import device_name, quotas
from bass.report.cells import read_cells
from bass.report.compared import compared
from bass.report.evaluation import page as page_of_evaluation
from bass.report.page import comparison
from bass.report.paired import Pair
from bass.runs.conditions import CONDITIONS
from bass.runs.run_folder import RunFolder
from support.evaluation_folders import machine, write_evaluation
from support.run_folders import append_line, write_run_of

BASE = {"batch": 2, "policy": "fixed", "policy.k": 4}
OTHER = "The machine had another speed in B than in A: a fixed matrix product took "


def run(folder: Path, slower: float, products: list[float]) -> RunFolder:
    made = write_run_of(folder, {"base": BASE, "axes": {"batch": [2, 4]}}, slower=slower)
    for cell in made.cells:
        for number, product in enumerate(products):
            line = replace(machine(number, product), read=None)
            append_line(made.cell_folder(cell.id) / CONDITIONS, line)
    return made


# factor of B's times, B's calibrations (A's: 40 ms), and what B is
CASES = {
    "another speed": (0.25, [0.01] * 4, "machine"),
    "another speed, and no difference": (1.0, [0.02] * 4, "machine, unseen"),
    "the same speed": (0.25, [0.0401] * 4, "better"),
    "a little slower, as its times": (1.06, [0.043] * 4, "may be"),
    "a little slower, its times much": (1.5, [0.043] * 4, "worse"),
    "noise wider than the difference of both": (0.8, [0.01, 0.05, 0.02, 0.04], "may be"),
    "not recorded": (0.25, [], "better"),
}


@pytest.mark.parametrize("case", CASES)
def test_times_have_no_verdict_where_the_machine_explains_them(tmp_path: Path, case: str) -> None:
    slower, products, kind = CASES[case]
    a, b = run(tmp_path / "a", 1.0, [0.04] * 4), run(tmp_path / "b", slower, products)
    html, said = comparison(a, b)
    warned = [one for one in said if one.startswith("The machine ")]
    if kind in ("better", "worse"):
        assert not warned
        assert any(one.endswith(f"B is {kind} in 2.") for one in said)
        return
    assert said[0] == warned[0]
    assert warned[0].startswith(OTHER) == kind.startswith("machine")
    assert "0 ms in A and " in warned[0]
    assert not any("better" in one or "worse" in one for one in said)
    assert ("maybe the machine's in 2." in " ".join(said)) == (kind != "machine, unseen")
    assert b.manifest.device in html
    assert "B is better" not in html
    assert 'class="best"' not in html


def test_what_does_not_depend_on_time_keeps_its_verdict(tmp_path: Path) -> None:
    config = {"base": BASE | {"batch": 16}, "axes": {"policy.k": [0, 4]}}
    x, y = read_cells(write_run_of(tmp_path / "run", config))
    x, y = replace(x, conditions=[machine(0, 0.04)]), replace(y, conditions=[machine(0, 0.01)])
    [lines] = compared([Pair(x, y, True)], [*METRICS]).values()
    verdicts = {
        over: {line.verdict for line in lines if line.metric.over == over}
        for over in ("repeats", "prompts")
    }
    assert "maybe the machine's" in verdicts["repeats"]
    assert not {"B is better", "B is worse"} & verdicts["repeats"]
    assert {"B is better", "B is worse"} & verdicts["prompts"]
    assert "maybe the machine's" not in verdicts["prompts"]


def test_evaluations_on_machines_of_another_speed_have_no_verdict_within_a_budget(
    tmp_path: Path,
) -> None:
    a, b, c = (
        read_evaluation(
            write_evaluation(tmp_path / name, ("plain",), problems=40, slower=slower,
                products=(product,))
        )
        for name, slower, product in (("a", 1.0, 0.01), ("b", 9.0, 0.04), ("c", 9.0, 0.01))
    )  # fmt: skip
    said = page_of_evaluation(both(a, b))[2]
    assert said[0].startswith(OTHER)
    assert any("maybe the machine's" in one for one in said)
    assert not any("worse" in one for one in said)
    said = page_of_evaluation(both(a, c))[2]
    assert not any("machine" in one for one in said)
    assert any("B is worse" in one for one in said)


def test_speeds_are_of_the_calibrations_that_both_have() -> None:
    lines = [replace(machine(i, 0.01), read=None if i else 0.0) for i in range(3)]
    assert Speeds.of(lines, [machine(0, 0.02)]).seconds == {"product": (0.01, 0.02)}
    assert Speeds.of(lines, []) == Speeds()
    assert Speeds().ratios == (1.0, 1.0)


def test_the_description_of_a_cpu_has_the_processors_of_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(environment, "quotas", lambda root, own: [])
    assert device_name(torch.device("cpu")).endswith(" threads, 3 of 8 processors)")
    monkeypatch.setattr(environment, "quotas", lambda root, own: [4.0, 1.5])
    assert device_name(torch.device("cpu")).endswith(" threads, 1.5 of 8 processors)")


@pytest.mark.parametrize(("own", "files", "found"), [
    ("0::/a/b\n", {"cpu.max": "max 100000", "a/cpu.max": "150000 100000\n",
        "a/b/cpu.max": "400000 100000"}, [4.0, 1.5]),
    ("0::/docker/x\n", {"cpu.max": "50000 100000"}, [0.5]),
    ("3:cpuset:/\n1:cpu,cpuacct:/x\n0::/\n", {"cpu/x/cpu.cfs_quota_us": "200000",
        "cpu/x/cpu.cfs_period_us": "100000", "cpu/cpu.cfs_quota_us": "-1",
        "cpu/cpu.cfs_period_us": "100000"}, [2.0]),
    ("", {"cpu.max": "1 2"}, []),
    ("nonsense\n0::/\n", {"cpu.max": "x 0"}, []),
])  # fmt: skip
def test_quotas_are_those_of_the_groups_and_of_all_that_they_are_in(
    tmp_path: Path, own: str, files: dict[str, str], found: list[float]
) -> None:
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "own").write_text(own)
    assert quotas(tmp_path / "root", tmp_path / "own") == found
