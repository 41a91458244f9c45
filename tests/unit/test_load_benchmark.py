"""`benchmarks/load.py`: a large checkpoint, cold and warm, and the host's memory."""

import gc
import importlib
import json
import mmap
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from unit.test_package import ROOT


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield {name: importlib.import_module(name) for name in ("load", "load_large", "host")}


def test_it_loads_a_large_checkpoint_cold_and_warm(
    scripts: dict[str, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = str(torch.get_num_threads())
    sizes = ["--hidden", "128", "--layers", "2", "--folder", str(tmp_path), "--threads", threads]
    scripts["load"].main(["--shapes", "27b", *sizes])
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    steps = [row["what"].partition(" ")[0].strip(",") for row in record["steps"]]
    assert steps == ["reading", "loading", "loading", "loading", "reading"]
    assert all(row["gb_per_s"] > 0 for row in record["steps"])
    assert record["promised_host_gb"] * 1e9 > record["bytes"]
    assert not [*tmp_path.iterdir()]


def test_no_step_begins_after_the_time(
    scripts: dict[str, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = str(torch.get_num_threads())
    sizes = ["--hidden", "128", "--layers", "1", "--folder", str(tmp_path), "--threads", threads]
    scripts["load"].main(["--shapes", "27b", "--seconds", "0", *sizes])
    printed = capsys.readouterr().out
    assert printed.count("no time left") == 5
    assert json.loads(printed.splitlines()[-1])["steps"] == []


def test_a_small_disk_takes_fewer_layers(scripts: dict[str, ModuleType]) -> None:
    large, fitting = scripts["load_large"].LARGE, scripts["load_large"].fitting
    assert fitting(large, 64 << 30) == large
    few = fitting(large, 30 << 30)["num_hidden_layers"]
    assert 15 < few < 30
    assert fitting(large, 0)["num_hidden_layers"] == 1


def test_files_are_read_whole_and_memory_is_seen(
    scripts: dict[str, ModuleType], tmp_path: Path
) -> None:
    host, paths = scripts["host"], [tmp_path / "a", tmp_path / "b"]
    for path, size in zip(paths, (host.READ * 2 + 5, 7), strict=True):
        path.write_bytes(bytes(size))
    assert host.read_in_threads(paths, 3) == host.READ * 2 + 12
    assert host.cached_share(paths) == 1
    gc.collect()  # what is freed meanwhile would hide what is taken
    # pages from the system: an allocator may have some left
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with host.peak_memory() as peak, mmap.mmap(-1, 64 << 20, flags=flags) as taken:
        for at in range(0, len(taken), mmap.PAGESIZE):
            taken[at] = 1
        time.sleep(0.1)
    assert 50e6 < peak.own <= peak.resident < 100e6
