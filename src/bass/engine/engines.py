"""The storage that calls of an `LLM` share, and the memory that it takes."""

import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch

from bass.caches import PaddedCache
from bass.engine.assembly import ModelPair, Storage, Strategies
from bass.engine.cost import kv_bytes
from bass.engine.requests import Request, RunStatus, Source
from bass.engine.run import EngineRun
from bass.engine.schedule import room_for
from bass.engine.shapes import doubled
from bass.engine.step_times import StepTimes
from bass.errors import BassError, RequestError, explained
from bass.records import CacheBudget

END_TOKENS = 32  # of a row at most, in storage that is kept
SHARE_OF_MEMORY = 0.5  # of what is free, for keys and values, if no length is given
CAPACITY_STEP = 256  # positions: storage that grows with the requests has a multiple of it
# bytes: larger storage on a CPU is of one call, whose recordings are a small part of its time
MOST_RECORDED = 1e9


@final
@dataclass(frozen=True)
class Memory:
    """Bytes on the models' device. `str` gives them in one line.

    keys_and_values: of the storage that calls share, 0 where each call allocates its own. graphs:
    the memory pool of the captured CUDA graphs. free: None on a CPU.
    """

    weights: int
    keys_and_values: int
    graphs: int
    free: int | None

    def __str__(self) -> str:
        names = {"keys_and_values": "keys and values", "graphs": "CUDA graphs"}
        sizes = ((names.get(name, name), size) for name, size in vars(self).items() if size)
        return ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in sizes)


@final
class EngineCache:
    """The storage of an `LLM`, kept for its graphs, or on a CPU for its recorded passes; allocated
    for each call where there are neither.

    rows: most rows that decode together. longest: tokens of the longest row, if given.
    """

    def __init__(
        self, models: ModelPair, parts: Strategies, graphs: bool, rows: int, longest: int | None
    ) -> None:
        self.models, self.parts, self.graphs = models, parts, graphs
        self.rows, self.longest = rows, longest
        # A batch-wide drafter keeps state of a run, which must not reach the next one.
        self.keeps = graphs and parts.drafter.batch_invariant
        recordable = models.target.replayable and parts.attention.replayable
        ours = parts.cache is PaddedCache  # another might keep something of a run
        self._records = recordable and ours and not graphs and models.device.type == "cpu"
        # of the keys and values of one position, of target and draft
        self._row_bytes = sum(
            kv_bytes(one.shape, one.shape.layers, models.dtype) for one in models.modules
        )
        sizes = len(doubled(1, rows)) if graphs else 1
        self.times = StepTimes(models, parts, graphs, sizes)
        self.storage: Storage | None = None
        self._lock = threading.Lock()  # of two threads, one gets the kept storage
        # rows and positions of any requests; None: storage grows with requests
        self._all: tuple[int, int] | None = None

    def run(
        self, requests: list[Request], time_budget: float | None, source: Source | None = None
    ) -> EngineRun:
        """A run of these requests on the kept storage, which no other call gets meanwhile.

        It has storage of its own if the kept storage is in use or too small. source: of any further
        requests.
        """
        budget = self.of_any() if source else room_for(requests, min(self.rows, len(requests)))
        end_tokens = max((len(r.end_tokens) for r in requests), default=END_TOKENS)
        status = RunStatus()
        with self._lock:
            longest = int(budget.limits.max())
            storage = kept = self.reserve(budget.batch, longest, end_tokens)
            if kept is not None:
                kept.status = status
        try:
            with self.explained(budget):  # the first engine allocates the caches
                if storage is None:
                    storage = Storage(self.models, self.parts, budget, end_tokens, self.graphs)
                engine = storage.engine_for(budget, end_tokens)
            rows, step, policy = engine.sequences, engine.step, self.parts.policy
            if policy.reads_times:
                own, *others = self.times.of(engine).drafters
                more: dict[str, Any] = {"others": tuple(others)} if others else {}
                # what a trim takes back is drafted all the same
                saves = not self.graphs and self.parts.trim is None
                policy = policy.timed(*own, early_end_saves=saves, **more)
            trimming = step.trimming if policy.max_length else None
            if trimming is not None and trimming.trim.reads_cost:
                trimming.costs.copy_(torch.tensor(self.times.of(engine).shares))
            return EngineRun(requests, rows, step, policy, time_budget, status, source)
        except BaseException as error:
            status.over = True
            if kept is not None and isinstance(error, BassError):
                self.storage = None
            raise

    def of_any(self) -> CacheBudget:
        """The budget of any requests: all rows, each of the longest length."""
        with self._lock:
            if self.keeps and self._all is None:
                self.for_all_requests()
            longest = self._all[1] if self._all else self.longest or self.models.context
            return CacheBudget.of(np.full(self.rows, longest))

    @property
    def positions(self) -> int:
        """The longest row of any requests."""
        return int(self.of_any().limits.max())

    def reserve(self, rows: int, positions: int, end_tokens: int) -> Storage | None:
        """The kept storage if one is kept, is free, and holds requests of this size; else None.

        Unless it is that of all requests, it grows with them.
        """
        storage = self.storage
        most, longest = self._all or (rows, -(-positions // CAPACITY_STEP) * CAPACITY_STEP)
        if storage is not None:
            most, longest = max(most, storage.budget.batch), max(longest, storage.capacity)
        small = most * longest * self._row_bytes <= MOST_RECORDED
        if not (self.keeps or (self._records and small)):
            return None
        if storage is not None:
            if not storage.status.over:  # another call uses it
                return None
            addresses = [tensor.data_ptr() for tensor in self.models.tensors]
            moved = self._records and storage.weights != addresses  # recorded passes read others
            fits = self._all is not None or storage.fits(rows, positions, end_tokens)
            if storage.status.failed or moved or not fits:
                storage = self.storage = None  # frees it first: it counts as room
        if storage is None:
            budget, ends = CacheBudget.of(np.full(most, longest)), max(end_tokens, END_TOKENS)
            storage = self.storage = Storage(self.models, self.parts, budget, ends, self.graphs)
        return storage if storage.fits(rows, positions, end_tokens) else None

    def for_all_requests(self) -> Storage | None:
        """New storage for any request; None if none is kept for graphs."""
        if not self.keeps:
            return None
        self.storage = None  # frees it first
        positions = self.longest or min(self.models.context, self._positions_with_room())
        self._all = self.rows, positions
        return self.reserve(*self._all, 1)

    @property
    def memory(self) -> Memory:
        weights, device, storage = self.models.weight_bytes, self.models.device, self.storage
        stored = 0 if storage is None else storage.budget.batch * storage.capacity * self._row_bytes
        if device.type != "cuda":
            return Memory(weights, stored, 0, None)
        free, _ = torch.cuda.mem_get_info(device)
        graphs = 0
        for segment in torch.cuda.memory_snapshot():
            if storage is not None and segment["segment_pool_id"] == storage.pool:
                graphs += segment["total_size"]
            elif segment["segment_pool_id"] == (0, 0):  # what torch keeps without use
                free += segment["total_size"] - segment["allocated_size"]
        return Memory(weights, stored, graphs, free)

    def explained(self, budget: CacheBudget) -> AbstractContextManager[None]:
        """Within it, want of memory is an error that says what the storage needs."""
        rows, longest = budget.batch, int(budget.limits.max())
        size = rows * longest * self._row_bytes / 1e9
        return explained(
            lambda reason: RequestError(
                f"{rows} rows of {longest} positions need {size:.1f} GB for keys and values in "
                f"addition to weights and buffers, and there is not enough memory ({reason}): "
                "lower `max_batch_size`, `max_model_len` or `max_new_tokens`."
            )
        )

    def _positions_with_room(self) -> int:
        """Positions of a row, so that all rows take no more than a share of the free memory."""
        device = self.models.device
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return max(1, int(SHARE_OF_MEMORY * free / (self.rows * self._row_bytes)))
