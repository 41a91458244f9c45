"""What engines leave behind on a GPU."""

import gc
from pathlib import Path

import pytest
import torch

import bass
from unit.checkpoints import write_checkpoint

pytestmark = pytest.mark.gpu


def test_captures_of_dropped_engines_leave_no_memory_behind(tmp_path: Path) -> None:
    """Torch keeps a workspace for each stream that computes a product."""
    target = write_checkpoint(tmp_path / "target", None, 32, 2, 53, context=256)
    left = []
    for _ in range(4):
        llm = bass.load(target, drafter="ngram", device="cuda", cuda_graphs=True, dtype="float32")
        llm.generate([[3, 1, 4], [9]], max_new_tokens=8)
        del llm
        gc.collect()
        torch.cuda.synchronize()
        left.append(torch.cuda.memory_allocated())
    assert left[-1] - left[0] < 2**20, left
