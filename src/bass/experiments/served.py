"""The LLMs of cells that take turns, kept for their CUDA graphs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch

from bass.api.llm import LLM, serve
from bass.api.loading import ModelCache
from bass.api.memory import weight_bytes
from bass.api.plan import LoadPlan
from bass.engine.graphs import capture_stream

LEAST_FREE = 0.5  # share of the GPU's memory that is free after an LLM is kept


@final
@dataclass(frozen=True)
class _Kept:
    llm: LLM
    bytes: int  # of GPU memory, without the models


@final
class ServedCells:
    """The models loaded last, and the LLMs of cells that have turns left.

    With CUDA graphs an LLM is kept between the turns of its cell, since captures take longer than
    most turns. Where that would leave less than half of the GPU's memory free it is dropped, and
    the next turn captures again.
    """

    def __init__(self) -> None:
        self.models = ModelCache()
        self._kept: dict[Path, _Kept] = {}

    @contextmanager
    def turn(self, cell: Path, plan: LoadPlan, keep: bool) -> Iterator[tuple[LLM, int]]:
        """The LLM of a cell for a turn, and the bytes of GPU memory that are not the cell's.

        cell: its folder. keep: whether it has another turn with these models. After an error the
        LLM is not kept.
        """
        own = self._kept.pop(cell, None)
        if own is None:
            if not self.models.holds(*plan.models):
                self.clear()  # frees the memory first
            own = _Kept(serve(plan, self.models), 0)
        device = own.llm.models.device
        _allocate_workspaces(device)
        before = _allocated(device)
        yield own.llm, self._unused(own.llm) + sum(other.bytes for other in self._kept.values())
        if keep and own.llm.graphs and _free_share(device) >= LEAST_FREE:
            self._kept[cell] = _Kept(own.llm, own.bytes + _allocated(device) - before)

    def drop(self) -> bool:
        """Drop the LLMs of all cells, but not the models; returns whether there were any."""
        kept = bool(self._kept)
        self._kept.clear()
        return kept

    def clear(self) -> None:
        """Drop the models and all LLMs."""
        self.drop()
        self.models.clear()

    def _unused(self, llm: LLM) -> int:
        """Bytes of a loaded draft that the cell does not have."""
        loaded = self.models.loaded
        if loaded is None or loaded.draft is None or llm.models.draft is not None:
            return 0
        return weight_bytes(loaded) - weight_bytes(llm.models)


def _allocate_workspaces(device: torch.device) -> None:
    """Let torch allocate its workspaces for matrix products: they stay, and are no cell's own."""
    if device.type != "cuda":
        return
    with torch.cuda.device(device):
        for stream in (torch.cuda.current_stream(), capture_stream()):
            with torch.cuda.stream(stream):
                ones = torch.ones(16, 16, device=device)
                torch.mm(ones, ones)


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _free_share(device: torch.device) -> float:
    torch.cuda.empty_cache()  # what torch keeps of dropped LLMs and their graphs is free
    free, total = torch.cuda.mem_get_info(device)
    return free / total
