"""Every kernel compiles for a GPU, also where there is none; the interpreter alone would not
tell.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bass.kernels.support import is_known_gluon


@pytest.mark.nightly
@pytest.mark.parametrize("capability", ["80", "89", "90"])
def test_every_kernel_compiles_and_finds_room_in_shared_memory(capability: str) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "support.compiled", capability],
        cwd=Path(__file__).parents[1],
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    names = {line.split()[0] for line in said.stdout.splitlines()}
    # Hopper's own
    hopper = capability == "90" and is_known_gluon()
    assert ({"_product", "_added", "attend_projection"} <= names) == hopper
    assert names >= {
        "_attend",
        "_linear",
        "_gated",
        "_group_linear",
        "_add_norm",
        "_rotate_and_store",
        "_gate",
        "_quantize",
        "_uniforms",
        "_probs",
        "_search",
        "_pick",
    }
