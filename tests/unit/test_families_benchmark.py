"""Tier 0: the benchmark of families runs on a CPU, and says how near each comes to its bound."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly  # a process that imports torch
def test_each_family_has_a_row_and_a_share_of_its_bound(tmp_path: Path) -> None:
    results = tmp_path / "found.json"
    sizes = ("--hidden", "128", "--layers", "1", "--vocabulary", "128", "--new-tokens", "2")
    done = subprocess.run(
        [
            *(sys.executable, ROOT / "benchmarks" / "families.py", "--device", "cpu", *sizes),
            *("--batches", "1", "2", "--families", "llama", "mixtral", "--results", results),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "| `mixtral` |" in done.stdout
    found = json.loads(results.read_text())["results"]
    assert [*found] == ["llama", "mixtral"]
    for one in found.values():
        assert all(0 < figures["share"] < 1 for figures in one.values())
        assert one["2"]["bound_ms"] > one["1"]["bound_ms"]
