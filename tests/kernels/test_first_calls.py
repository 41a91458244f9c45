"""After a load, a call compiles and captures nothing."""

import json
import subprocess
import sys

import pytest


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 5, 8])
@pytest.mark.parametrize("policy", ["bass", "bass-per-row"])
def test_a_call_after_the_load_compiles_and_captures_nothing(policy: str, batch: int) -> None:
    command = [sys.executable, "-m", "support.first_calls"]
    options = [f"--policy={policy}", f"--batch={batch}"]
    done = subprocess.run(command + options, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["at load"] > 0
    assert (found["compiled"], found["capture_seconds"]) == ([], 0)
