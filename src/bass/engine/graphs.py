"""A step as CUDA graphs: captured once for each shape, then replayed."""

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from bass.engine.cost import Layout
from bass.engine.step import SpeculativeStep, Step, StepReport, unpacked
from bass.errors import OptionError, is_out_of_memory
from bass.interfaces import Drafter, Scorer, Verifier, Warp
from bass.records import Sequences

LEAST_SPAN = 256  # positions


def coarse(length: int, capacity: int) -> int:
    """The next power of two, from `LEAST_SPAN` on."""
    return min(max(LEAST_SPAN, 1 << (length - 1).bit_length()), capacity)


def trial(step: SpeculativeStep, sequences: Sequences, k: int, span: int) -> Tensor:
    """A step of idle rows, of the shape of any other: it commits nothing, and writes nothing but
    spare slots.

    No row drafts either: near its limit, it has no room for k tokens.
    """
    active = sequences.active.clone()
    sequences.active.fill_(False)
    try:
        return step.on_device(sequences, torch.zeros_like(sequences.lens), k, span)[0]
    finally:
        sequences.active.copy_(active)


@dataclass(frozen=True)
class Captured:
    """One graph, the packed report that it makes, and two places on the host for that, since two
    steps may be under way.
    """

    graph: torch.cuda.CUDAGraph
    packed: Tensor
    layout: Layout
    reports: tuple[Tensor, Tensor]  # host, pinned


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """No collection of cycles: an engine or a graph that is freed meanwhile ends the capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@final
class GraphedStep(Step):
    """Everything between the lengths and the report of `step` as one CUDA graph for each (k, span).

        host     lengths -> pinned                                              pinned -> report
        graph               -> device -> draft, score, verify, commit -> packed
                                                                          copy ->

    A graph holds addresses, so it serves the `sequences` it was made with and the storage of the
    step's caches, and no others. A shape is captured when it first occurs, or when it is prepared:
    a run in which all rows are idle compiles what must be compiled and loads what libraries load at
    the first use of a shape, neither of which a capture allows; the capture follows. That run is
    made for every shape, since only a library knows which of its kernels a shape needs. All graphs
    share one memory pool, since none outlives the next one's replay. They are made and replayed on
    the rows' device, whichever is the current one.

    Spans are powers of two, so that each length is captured a few times and no more. Backends that
    find the rows' lengths on the device (`ragged`, `paged`, `split`) read no more for it. Those
    that read the whole span (`sdpa`, `gather`, `flex`, the float64 references, and `pad` as far as
    its kernel does) read up to twice the keys and values of the longest row, of short rows up to
    `LEAST_SPAN`, instead of at most 64 positions too many.
    """

    overlaps: ClassVar[bool] = True

    def __init__(self, step: SpeculativeStep, sequences: Sequences) -> None:
        self.inner, self.sequences = step, sequences
        self.target: Scorer = step.target
        self.drafter: Drafter = step.drafter
        self.verifier: Verifier = step.verifier
        self.warp: Warp = step.warp
        self.vocab_size, self.log = step.vocab_size, step.log
        batch = len(sequences.lens)
        self.asked = torch.zeros(batch, dtype=torch.int64, pin_memory=True)  # host
        self.lengths = torch.zeros_like(sequences.lens)  # device
        self.side = torch.cuda.Stream(self.lengths.device)
        self.pool = torch.cuda.graph_pool_handle()
        # of the step launched last, unless its report was collected
        self.under_way: torch.cuda.Event | None = None
        self.turn = 0  # of the two places for reports
        self.captured: dict[tuple[int, int], Captured] = {}

    def span(self, length: int, capacity: int) -> int:
        return coarse(length, capacity)

    def prepare(self, sequences: Sequences, k: int, span: int) -> None:
        """Capture the shape, unless it is.

        Out of memory, all graphs are given up, so that smaller ones may find room.
        """
        if self.prepared(k, span):
            return
        with torch.cuda.device_of(self.lengths):
            stream = torch.cuda.current_stream()
            try:
                self.captured[k, span] = self._capture(k, span)
            except (MemoryError, RuntimeError) as error:
                if is_out_of_memory(error):
                    self.captured.clear()
                    self.pool = torch.cuda.graph_pool_handle()
                raise
            finally:
                torch.cuda.set_stream(stream)  # a capture that fails leaves its own

    def prepared(self, k: int, span: int) -> bool:
        return (k, span) in self.captured

    def launch(
        self, sequences: Sequences, lengths: np.ndarray, k: int, span: int
    ) -> Callable[[], StepReport]:
        assert sequences is self.sequences, "a graph serves the sequences it was captured with"
        self.prepare(sequences, k, span)
        captured, self.turn = self.captured[k, span], 1 - self.turn
        report, asked = captured.reports[self.turn], self.asked.numpy()
        if not np.array_equal(asked, lengths):
            if self.under_way is not None:  # it may have its lengths still to read
                self.under_way.synchronize()
            asked[:] = lengths
        with torch.cuda.device_of(self.lengths):
            ended = torch.cuda.Event()
            try:
                captured.graph.replay()
                report.copy_(captured.packed, non_blocking=True)
            finally:  # also of a step that is interrupted here
                ended.record()
                self.under_way = ended

        def collect() -> StepReport:
            ended.synchronize()  # sync: the one of a step
            if self.under_way is ended:
                self.under_way = None
            return unpacked(report.numpy().copy(), captured.layout)

        return collect

    def _capture(self, k: int, span: int) -> Captured:
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            packed = trial(self.inner, self.sequences, k, span)
        torch.cuda.current_stream().wait_stream(self.side)
        # so that they may be written whatever the mode of a launch
        with torch.inference_mode(False):
            first, second = (
                torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True) for _ in range(2)
            )
        del packed
        graph = torch.cuda.CUDAGraph()
        try:
            # its own would be on the device of the process's first
            capture = torch.cuda.graph(graph, pool=self.pool, stream=self.side)
            with _without_garbage_collection(), capture:
                self.lengths.copy_(self.asked, non_blocking=True)
                packed, layout = self.inner.on_device(self.sequences, self.lengths, k, span)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            raise OptionError(
                f"The step cannot be captured as a CUDA graph ({str(error).splitlines()[0]}): a "
                "part of it reads from the host; "
                "give `cuda_graphs=False`."
            ) from error
        return Captured(graph, packed, layout, (first, second))
