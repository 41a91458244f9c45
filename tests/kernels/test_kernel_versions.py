"""A load compiles every version of a kernel that a prefill launches: counted without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bass.engine.prefill import caught_up_columns, equal_windows
from support.matrix import night

SHAPES = Path(__file__).parents[2] / "benchmarks" / "shapes"


@pytest.mark.parametrize(
    ("layout", "batch", "capacity", "folder"),
    [
        ("split", 3, 1024, None),
        night("padded", 3, 1024, None),
        night("paged", 3, 1024, None),
        night("split", 5, 8192, None),
        *(night("split", 4, 2048, SHAPES / pair / role)
          for pair in ("llama", "qwen2.5", "gemma2", "opt", "codegen", "qwen3-moe")
          for role in ("target", "draft")),
    ],
)  # fmt: skip
def test_a_warm_up_launches_every_version_of_a_kernel_that_prefills_launch(
    layout: str, batch: int, capacity: int, folder: Path | None
) -> None:
    if folder is not None and not folder.exists():
        pytest.skip("the pair has no draft")
    pytest.importorskip("triton")
    words = [layout, str(batch), str(capacity), *([str(folder)] if folder else [])]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "support.kernel_versions", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["missing"] == {}
    assert found["needed"] > 10
    assert found["warm"] <= found["needed"] + 6


@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 9, 16, 17, 255, 256, 257, 1000])
def test_a_long_prompt_is_fed_in_windows_of_nearly_one_size(tokens: int) -> None:
    size = equal_windows(tokens, 256)
    sizes = [min(first + size, tokens) - first for first in range(0, tokens, size)]
    assert sum(sizes) == tokens
    assert max(sizes) <= 256
    assert len(sizes) == -(-tokens // 256)
    assert max(sizes) - min(sizes) < len(sizes)


@pytest.mark.parametrize("tokens", [3, 4, 5, 31, 33, 300])
def test_columns_of_a_catch_up_are_few_numbers_on_a_gpu_and_exact_on_a_cpu(tokens: int) -> None:
    assert caught_up_columns(tokens, torch.device("cpu")) == tokens
    columns = caught_up_columns(tokens, torch.device("cuda"))
    assert columns.bit_count() == 1
    assert max(8, tokens) <= columns < max(9, 2 * tokens)
