"""The engines that calls share: one storage, an engine for each batch size."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, final

import numpy as np
import torch

from bass.caches import PaddedCache
from bass.engine.assembly import Engine, ModelPair, Storage, Strategies, assemble, no_room
from bass.engine.cost import kv_bytes
from bass.engine.run import EngineRun, RunStatus
from bass.errors import BassError, explained
from bass.records import CacheBudget, Sequences

END_TOKENS = 32  # of a row at most, in the engines that are kept
SHARE_OF_MEMORY = 0.5  # of what is free, for keys and values, if no length is given
CAPACITY_STEP = 256  # positions: storage that grows with the requests has a multiple of it
# bytes: larger storage on a CPU is of one call, whose recordings are a small part of its time
MOST_RECORDED = 1e9


def addresses(models: ModelPair) -> list[int]:
    """The addresses of all parameters and buffers."""
    return [
        tensor.data_ptr()
        for model in (models.target, models.draft)
        if model is not None
        for tensor in (*model.parameters(), *model.buffers())
    ]


def batch_sizes(most: int) -> tuple[int, ...]:
    """The powers of two up to `most`, and `most`: ascending."""
    return (*(1 << i for i in range((most - 1).bit_length())), most)


@final
class Engines:
    """Engines of several batch sizes on one storage, since one of them runs at a time.

    The storage is allocated once, for the most and the longest rows, so that no request moves what
    graphs hold the addresses of. A request runs in the smallest engine with a row for each sample.

    Without `graphs` each call has an engine and rows of its own. It shares caches with earlier
    calls, and their recorded passes, which hold the addresses of `weights` too.
    """

    def __init__(self, storage: Storage, graphs: bool) -> None:
        self.storage, self.graphs = storage, graphs
        self.sizes = batch_sizes(storage.budget.batch)
        self._engines: dict[int, Engine] = {}
        self.pool = torch.cuda.graph_pool_handle() if graphs else None
        self.weights = addresses(storage.models)
        self.windows_fed = False  # windows of all kinds, by a warm-up
        self._claimed = False  # by a call whose run has not begun
        self._run: weakref.ref[EngineRun] | None = None
        self._status = RunStatus()

    @property
    def failed(self) -> bool:
        """Whether a run failed: it may leave NaN in the caches, which could reach the next run."""
        return self._status.failed

    @property
    def idle(self) -> bool:
        """Whether no call uses the storage."""
        run = None if self._run is None else self._run()
        return not self._claimed and (run is None or run.over)

    def fits(self, budget: CacheBudget, end_tokens: int) -> bool:
        """Whether the requests fit into the storage."""
        ours = self.storage.budget
        return (
            int(budget.limits.max()) <= self.storage.sequences.capacity
            and budget.batch <= ours.batch
            and end_tokens <= self.storage.end_tokens
        )

    def engine(self, batch: int) -> Engine:
        """The smallest engine of at least `batch` rows, for graphs."""
        size = next(size for size in self.sizes if size >= batch)
        if size not in self._engines:
            self._engines[size] = assemble(self.storage, size, True, self.pool)
        return self._engines[size]

    def engine_for(self, budget: CacheBudget, end_tokens: int) -> Engine:
        """The engine of a call with these requests."""
        if self.graphs:
            engine = self.engine(budget.batch)
            engine.sequences.active.fill_(False)  # rows of a closed run
            return engine
        device, capacity = self.storage.models.device, int(budget.limits.max())
        rows = Sequences.empty(budget.batch, capacity, [], device, max(end_tokens, 1))
        return assemble(self.storage, budget.batch, False, sequences=rows)

    def claim(self) -> None:
        """Take the storage for a call, up to `begin` or `release`."""
        self._claimed = True

    def release(self) -> None:
        """Give it back; the call had no run."""
        self._claimed = False

    def begin(self, run: EngineRun) -> None:
        """Note the run that uses the storage from now on."""
        self._run, self._status, self._claimed = weakref.ref(run), run.run_status, False

    def shapes(self) -> list[tuple[Engine, int, int]]:
        """Every engine with every draft length and span of its steps, the largest first."""
        capacity = self.storage.sequences.capacity
        longest = int(self.storage.parts.policy.max_length)
        return [
            (engine, k, span)
            for engine in map(self.engine, reversed(self.sizes))
            for k, span in engine.step.shapes(range(1, capacity + 1), longest)
        ]

    @property
    def captured(self) -> int:
        """The number of captured steps."""
        return sum(engine.step.prepared(k, span) for engine, k, span in self.shapes())

    def capture(self) -> Iterator[int]:
        """Capture every shape, and yield after each the number of those that are left."""
        shapes = self.shapes()
        left = len(shapes) + len(self.sizes)
        for engine, k, span in shapes:
            with torch.inference_mode():
                engine.step.prepare(engine.sequences, k, span)
            left -= 1
            yield left
        for size in reversed(self.sizes):
            self.engine(size).step.prepare_prefill()
            left -= 1
            yield left


@final
class EngineCache:
    """The engines of an `LLM`, kept for their graphs, or on a CPU for their recorded passes; built
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
        self.engines: Engines | None = None
        self._lock = threading.Lock()  # of two threads, one gets the kept storage
        self._complete = False  # the storage is that of all requests, not only of past ones

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy keeps nothing: programs and graphs hold addresses."""
        return EngineCache, (self.models, self.parts, self.graphs, self.rows, self.longest)

    @contextmanager
    def engine_for(
        self, budget: CacheBudget, end_tokens: int
    ) -> Iterator[tuple[Engine, Engines | None]]:
        """An engine for these requests, and the kept engines that it belongs to, if any, which
        no other call gets meanwhile: `begin` its run.

        It has storage of its own if the kept storage is in use or too small.
        """
        engines = None
        with self._lock:
            if self.keeps or (self._records and self._is_small(budget)):
                engines = self._kept(budget, end_tokens)
            if engines is not None:
                engines.claim()
        if engines is None:
            with self.explained(budget):
                storage = Storage(self.models, self.parts, budget, end_tokens)
                engine = assemble(storage, budget.batch, self.graphs)
            yield engine, None
            return
        try:
            try:
                with self.explained(budget):  # the first engine allocates the caches
                    engine = engines.engine_for(budget, end_tokens)
            except BassError:
                self.engines = None
                raise
            yield engine, engines
        finally:
            engines.release()

    def reserve(self, rows: int, positions: int, end_tokens: int) -> None:
        """Allocate storage for requests of up to this size, so that none of them makes it grow."""
        if self.keeps:
            self._kept(CacheBudget.of(np.full(rows, positions)), end_tokens)

    def for_all_requests(self) -> Engines | None:
        """Engines for any request, in new storage; None if none are kept."""
        if not self.keeps:
            return None
        self._complete, self.engines = True, None  # frees the storage first
        return self._kept(CacheBudget.of(np.ones(1, dtype=np.int64)), 1)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the keys and values of the kept storage."""
        if self.engines is None:
            return 0
        storage = self.engines.storage
        return storage.budget.batch * storage.sequences.capacity * self._row_bytes

    @property
    def pool(self) -> Any:
        """The memory pool of the kept graphs, if any."""
        return None if self.engines is None else self.engines.pool

    def explained(self, budget: CacheBudget) -> AbstractContextManager[None]:
        """Within it, want of memory is an error that says what the storage needs."""
        return explained(partial(no_room, budget, self._row_bytes))

    def _kept(self, budget: CacheBudget, end_tokens: int) -> Engines | None:
        """The kept engines if they are free and large enough; else None.

        Unless it is that of all requests, the storage grows with them.
        """
        engines = self.engines
        if engines is not None and not engines.idle:
            return None
        fits = engines is not None and engines.fits(budget, end_tokens)
        if self._records and engines is not None and engines.weights != addresses(self.models):
            fits = False  # recorded passes read others
        if engines is None or engines.failed or not (fits or self._complete):
            budgets = [budget] if engines is None else [budget, engines.storage.budget]
            engines = self.engines = None  # frees the storage first: it counts as room
            size = self._size(budgets)
            with self.explained(size):
                storage = Storage(self.models, self.parts, size, max(end_tokens, END_TOKENS))
                engines = self.engines = Engines(storage, self.graphs)
        return engines if engines.fits(budget, end_tokens) else None

    def _is_small(self, budget: CacheBudget) -> bool:
        """Whether storage for this and past requests may be kept on a CPU."""
        past = [] if self.engines is None else [self.engines.storage.budget]
        size = self._size([budget, *past])
        return size.batch * int(size.limits.max()) * self._row_bytes <= MOST_RECORDED

    def _size(self, budgets: list[CacheBudget]) -> CacheBudget:
        """The storage of all requests, or of these, which are the present and the past ones."""
        if self._complete:
            positions = self.longest or min(self.models.context, self._positions_with_room())
            return CacheBudget.of(np.full(self.rows, positions))
        rows = max(one.batch for one in budgets)
        longest = max(int(one.limits.max()) for one in budgets)
        return CacheBudget.of(np.full(rows, -(-longest // CAPACITY_STEP) * CAPACITY_STEP))

    def _positions_with_room(self) -> int:
        """Positions of a row, so that all rows take no more than a share of the free memory."""
        device = self.models.device
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return max(1, int(SHARE_OF_MEMORY * free / (self.rows * self._row_bytes)))

    @property
    def _row_bytes(self) -> int:
        """Bytes of the keys and values of one position, of target and draft."""
        decoders = (self.models.target, self.models.draft)
        return sum(kv_bytes(d, d.shape.layers) for d in decoders if d is not None)
