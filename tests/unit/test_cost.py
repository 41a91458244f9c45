"""What a step must move and compute, against figures worked out by hand."""

import numpy as np
import pytest
import torch

from bass.engine import cost
from bass.engine.cost import NOTHING, ModelCost, PairCost
from bass.engine.requests import StepRecord

TARGET = ModelCost(weight_bytes=1000, flops_per_token=100, kv_bytes_per_position=10)
DRAFT = ModelCost(weight_bytes=70, flops_per_token=7, kv_bytes_per_position=3)
PAIR = PairCost(TARGET, DRAFT)


def step(k: int, span: int, requests: list[int], drafted: list[int], accepted: list[int], emitted: list[int]) -> StepRecord:
    arrays = [np.array(values) for values in (requests, drafted, accepted, emitted)]
    positions = span * int((arrays[0] >= 0).sum())
    return StepRecord(k, 2 * span, positions, *arrays, seconds=0.5, host_seconds=0.1, at=1.0)  # the span itself does not count


# Two rows of three are active. One drafted 3 tokens and kept 2, the other drafted 1 and kept none.
SPECULATIVE = step(3, 16, [4, -1, 5], [3, 0, 1], [2, 0, 0], [3, 0, 1])
PLAIN = step(0, 16, [4, -1, 5], [0, 0, 0], [0, 0, 0], [1, 0, 1])


def test_the_bound_counts_the_drafts_weights_and_keys_once_per_drafted_token() -> None:
    # 2 rows x 16 positions = 32. Target: 1000 + 32 x 10 = 1320. Draft: 70 + 32 x 3 = 166, three times.
    assert PAIR.step_bytes(SPECULATIVE) == 1320 + 3 * 166


def test_a_step_without_drafts_moves_the_targets_bytes_alone() -> None:
    assert PAIR.step_bytes(PLAIN) == PairCost(TARGET, NOTHING).step_bytes(PLAIN) == 1320


def test_the_bound_counts_the_keys_of_active_rows_alone() -> None:
    idle = step(0, 16, [-1, -1, 5], [0, 0, 0], [0, 0, 0], [0, 0, 1])
    assert PAIR.step_bytes(idle) == 1000 + 16 * 10


def test_the_work_of_a_step_is_that_of_the_tokens_fed_and_the_kept_work_that_of_the_tokens_kept() -> None:
    # Fed to the target: 4 drafted and one last token of each of 2 rows = 6. To the draft as many.
    # Kept: 4 emitted tokens of the target's; of the draft's 2 accepted and one of each row = 4.
    assert PAIR.step_flops(SPECULATIVE) == (6 * 100 + 6 * 7, 4 * 100 + 4 * 7)


def test_a_step_without_drafts_computes_one_token_of_the_target_per_row_and_keeps_it() -> None:
    assert PAIR.step_flops(PLAIN) == (200, 200)


def test_peaks_are_measured_over_less_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[int, int]] = []

    def measure(device: torch.device, dtype: torch.dtype, side: int, size: int) -> cost.Peaks:
        tried.append((side, size))
        if size > 2**28:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate more")
        return cost.Peaks(1.0, 2.0)

    monkeypatch.setattr(cost, "_peaks", measure)
    assert cost.measure_peaks.__wrapped__(torch.device("cuda"), torch.bfloat16) == cost.Peaks(1.0, 2.0)
    assert tried == [(8192, 2**32), (4096, 2**30), (2048, 2**28)]
