"""What a run must move and compute, and how fast this machine can: the bound, MFU and MBU.

Decoding is bound by bytes. A step reads the target's weights once, the draft's once per drafted position, and the keys and
values of the positions in use:

    time >= (target_bytes + k * draft_bytes + kv_bytes) / bandwidth
"""

import functools
import time
from dataclasses import astuple, dataclass

import torch

from bass.engine.requests import StepRecord
from bass.errors import is_out_of_memory


@dataclass(frozen=True)
class ModelCost:
    """One model's share: bytes of weights read per pass, FLOPs per token fed, KV bytes per row and position."""

    weight_bytes: int
    flops_per_token: int
    kv_bytes_per_position: int

    def __add__(self, other: "ModelCost") -> "ModelCost":
        return ModelCost(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


NOTHING = ModelCost(0, 0, 0)


@dataclass(frozen=True)
class PairCost:
    """The costs of a target and a draft (`NOTHING` where there is none)."""

    target: ModelCost
    draft: ModelCost

    def step_bytes(self, step: StepRecord) -> int:
        """Bytes that the step cannot avoid moving. Keys and values are counted up to each active row's own length, whatever the span."""
        target = self.target.weight_bytes + step.positions * self.target.kv_bytes_per_position
        draft = self.draft.weight_bytes + step.positions * self.draft.kv_bytes_per_position
        return target + int(step.drafted.max()) * draft

    def step_flops(self, step: StepRecord) -> tuple[int, int]:
        """(FLOPs done for active rows, those of them for tokens that were kept). Attention's own are left out."""
        rows, drafted, emitted = int(step.active.sum()), int(step.drafted.sum()), int(step.emitted.sum())
        fed_to_draft = drafted + rows if step.k else 0
        done = (rows + drafted) * self.target.flops_per_token + fed_to_draft * self.draft.flops_per_token
        kept_in_draft = int(step.accepted.sum()) + rows if step.k else 0
        kept = emitted * self.target.flops_per_token + kept_in_draft * self.draft.flops_per_token
        return done, kept


@dataclass(frozen=True)
class Peaks:
    """Measured ceilings of the device: bytes per second of a large read, FLOPs per second of a large matrix product."""

    bandwidth: float
    flops: float


@functools.cache
def measure_peaks(device: torch.device, dtype: torch.dtype) -> Peaks:
    """Time a sum over 256 MiB, on a GPU 4 GiB, and a square matrix product, the best of 5; a quarter of a second on a CPU.

    Where there is no room for that: over less, and a smaller product.
    """
    if device.type == "cpu":
        return _peaks(device, dtype, 1024, 2**28)
    for side, size in ((8192, 2**32), (4096, 2**30), (2048, 2**28)):
        try:
            return _peaks(device, dtype, side, size)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
    return _peaks(device, dtype, 1024, 2**26)


def _peaks(device: torch.device, dtype: torch.dtype, side: int, size: int) -> Peaks:
    data = torch.ones(size // dtype.itemsize, device=device, dtype=dtype)
    square = torch.randn(side, side, device=device).to(dtype)
    read = min(_seconds(lambda: data.sum(), device) for _ in range(5))
    multiply = min(_seconds(lambda: square @ square, device) for _ in range(5))
    return Peaks(bandwidth=size / read, flops=2 * side**3 / multiply)


def _seconds(work: object, device: torch.device) -> float:
    assert callable(work)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
