"""`benchmarks/load.py`: a large checkpoint, cold and warm, and the host's memory."""

import importlib
import json
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
