"""After a load, a call compiles and captures nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def first_calls(options: list[str], kernels: Path | None = None) -> dict[str, Any]:
    """What it prints, in a process of its own; kernels: the folder of compiled kernels."""
    command = [sys.executable, "-m", "support.first_calls", *options]
    environment = os.environ | ({} if kernels is None else {"TRITON_CACHE_DIR": str(kernels)})
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.gpu
def test_kernels_that_are_compiled_in_threads_give_the_same_tokens(tmp_path: Path) -> None:
    """First nothing is compiled; then everything is on disk, and no thread compiles."""
    cold, warm = (first_calls(["--policy=bass-per-row", "--batch=2"], tmp_path) for _ in range(2))
    assert cold["tokens"] == warm["tokens"]
    assert (cold["compiled"], cold["capture_seconds"]) == ([], 0)


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 5, 8])
@pytest.mark.parametrize("policy", ["bass", "bass-per-row"])
def test_a_call_after_the_load_compiles_and_captures_nothing(policy: str, batch: int) -> None:
    found = first_calls([f"--policy={policy}", f"--batch={batch}"])
    assert found["at load"] > 0
    assert (found["compiled"], found["capture_seconds"]) == ([], 0)
