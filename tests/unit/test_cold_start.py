"""`benchmarks/cold_start.py`: the parts of a new process up to its first token."""

import importlib
import json
from collections.abc import Iterator
from types import ModuleType

import pytest

from unit.test_package import ROOT

PARTS = ("torch", "bass", "device", "headers", "draft", "target", "caches", "captures", "prefill")


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        patch.setenv("BASS_CPU_PRODUCTS", "torch")  # nothing to compile and to time
        yield importlib.import_module("cold_start")


@pytest.mark.nightly  # two processes
def test_the_parts_of_a_new_process_are_those_of_its_time(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    script.main(["--hidden", "128", "--layers", "1", "--device", "cpu", "--runs", "1"])
    printed = capsys.readouterr().out
    first, second = json.loads(printed.splitlines()[-1])["processes"]
    assert (first.pop("kernels"), second.pop("kernels")) == ("no kernels", "kernels on disk")
    for process in (first, second):
        assert set(PARTS) < set(process)
        total = process.pop("total")
        assert all(seconds >= 0 for seconds in process.values())
        assert 0.9 * total < sum(process.values()) < 1.05 * total
        assert process["torch"] > process["draft"] > 0
