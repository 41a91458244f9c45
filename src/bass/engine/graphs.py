"""A step as CUDA graphs: captured once for each shape, then replayed."""

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, TypeVar, final

import torch
from torch import Tensor

from bass.engine.cost import Pass
from bass.engine.prefill import Part, PrefillGraphs, Prompts
from bass.engine.shapes import StepShape, StepShapes
from bass.engine.step import SpeculativeStep, Step, StepReport, prompts_for
from bass.errors import OptionError, is_out_of_memory
from bass.ops.dispatch import FirstUse, launches
from bass.process import without_garbage_collection
from bass.records import Sequences

R = TypeVar("R")


def capture_stream() -> torch.cuda.Stream:
    """The stream of this thread's captures on the current device.

    There is one, since torch keeps for each stream a workspace of matrix products, 32 MB on an
    H100, as long as the process lives.
    """
    return _capture_stream(torch.cuda.current_device(), threading.get_ident())


@cache
def _capture_stream(device: int, thread: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def trial(step: SpeculativeStep, sequences: Sequences, shape: StepShape) -> Tensor:
    """Run a step of this shape with all rows idle, and no token of a prompt: it commits nothing and
    writes only spare slots.

    No row drafts, since a row near its limit has fewer than k positions left.
    """
    active, prompts = sequences.active.clone(), prompts_for(sequences, shape)
    sequences.active.fill_(False)
    try:
        return step.on_device(sequences, torch.zeros_like(sequences.lens), shape, prompts)[0]
    finally:
        sequences.active.copy_(active)


@dataclass(frozen=True)
class Captured:
    """A captured graph, its packed report on the device, and two host buffers for the report.

    There are two buffers because two steps may be in flight.
    """

    graph: torch.cuda.CUDAGraph
    packed: Tensor
    passes: tuple[Pass, ...]  # of the drafter
    reports: list[Tensor]  # host, pinned
    prompts: Prompts | None  # what it feeds


def pinned(like: Tensor) -> Tensor:
    """A tensor of this shape and type in pinned memory of the host."""
    with torch.inference_mode(False):  # writable inside and outside of inference mode
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)


@final
class GraphedStep(Step):
    """Runs `step`, from the lengths to the report, as one CUDA graph for each shape.

        host     lengths -> pinned                                              pinned -> report
        graph               -> device -> draft, score, verify, commit -> packed
                                                                          copy ->

    A graph holds addresses: it works only with the `sequences` and the cache storage that it was
    captured with. `prepare` captures a shape before its first use. A run with all rows idle comes
    first: it compiles kernels and loads libraries, which a capture does not allow. Every size of
    windows needs that run, since a library may choose another kernel for it. A second span of a
    backend that reads the rows' lengths does not: it changes attention alone, and if a kernel of
    that is new, the capture is given up, and repeated after a run. All graphs share one memory
    pool, since no graph's memory is read after the next replay. Graphs are captured and replayed on
    the rows' device, whichever device is current.

    pool: the memory pool of graphs that are never replayed at the same time.
    prefills: the graphs of prefills and catch-ups, which the engines of a storage share; None: the
    host launches them.
    """

    overlaps: ClassVar[bool] = True

    def __init__(
        self,
        step: SpeculativeStep,
        sequences: Sequences,
        shapes: StepShapes,
        pool: Any,
        prefills: PrefillGraphs | None,
    ) -> None:
        self.inner, self.sequences, self.shapes = step, sequences, shapes
        self.target, self.drafter, self.verifier = step.target, step.drafter, step.verifier
        self.warp, self.vocab_size, self.log = step.warp, step.vocab_size, step.log
        self.draft_context, self.trimming = step.draft_context, step.trimming
        batch = len(sequences.lens)
        self.host_lengths = pinned(sequences.lens).zero_()  # host
        self.host_array = self.host_lengths.numpy()  # in the same memory
        self.lengths = torch.zeros_like(sequences.lens)  # device
        self.staged = [0] * batch  # the values of `host_lengths`
        self.here = torch.cuda.device_of(self.lengths)
        # the ends of the last two launched steps, by the report buffer in use
        self.ends = torch.cuda.Event(), torch.cuda.Event()
        with self.here:
            self.side = capture_stream()
        self.pool = pool
        # of the last launched step, until its report is collected
        self.in_flight: torch.cuda.Event | None = None
        self.turn = 0  # index of the report buffer in use
        self.captured: dict[StepShape, Captured] = {}
        self.tried: set[StepShape] = set()  # with a span of 0
        self.prefills = prefills

    def prefill(self, sequences: Sequences, parts: list[Part]) -> None:
        assert sequences is self.sequences, "a graph works only with its own sequences"
        with self.here:
            if self.prefills is not None and self.prefills.target.captured:
                self.prefills.target.feed(parts)
            else:
                super().prefill(sequences, parts)

    def catch_up(
        self, sequences: Sequences, parts: list[Part], drafter: int = 0
    ) -> tuple[Pass, ...]:
        with self.here:
            graphs = None if self.prefills is None else self.prefills.drafters[drafter]
            if graphs is not None and graphs.captured:
                return graphs.feed(parts)
            return super().catch_up(sequences, parts, drafter)

    def prepare_windows(self) -> None:
        if self.prefills is not None:
            with self._captures():
                for graphs in self.prefills.all:
                    graphs.prepare(self._replayed)

    def prepare(self, sequences: Sequences, shape: StepShape) -> None:
        if not self.prepared(shape):
            with self._captures():
                self.captured[shape] = self._capture(shape)

    @contextlib.contextmanager
    def _captures(self) -> Iterator[None]:
        """Within it, graphs are captured."""
        with self.here:
            stream = torch.cuda.current_stream()
            try:
                yield
            finally:
                torch.cuda.set_stream(stream)  # a failed capture leaves its own stream current

    def prepared(self, shape: StepShape) -> bool:
        return shape in self.captured

    def rehearse(self, function: Callable[[], object]) -> None:
        """Launch what a function launches into a graph that is dropped.

        What cannot be captured, or does not fit, says so when it is captured to be used.
        """
        try:
            with warnings.catch_warnings(action="ignore"), self._captures():  # it may be empty
                # in a pool of its own, which a failed capture leaves unusable; kernels of torch may
                # be loaded within it
                self._graph_of(function, pool=None, capture_error_mode="relaxed")
        except (OptionError, MemoryError, RuntimeError) as error:
            if not (isinstance(error, OptionError) or is_out_of_memory(error)):
                raise
        self.log.take()

    def launch(
        self,
        sequences: Sequences,
        lengths: list[int],
        shape: StepShape,
        parts: Sequence[Part] = (),
    ) -> Callable[[], StepReport]:
        assert sequences is self.sequences, "a graph works only with its own sequences"
        self.prepare(sequences, shape)
        captured, turn = self.captured[shape], 1 - self.turn
        if captured.prompts is not None:
            captured.prompts.hold(parts)
        if lengths != self.staged:
            if self.in_flight is not None:  # that step may not have read its lengths yet
                self.in_flight.synchronize()
            self.staged = []  # until both agree, should an interrupt come between
            self.host_array[:] = lengths
            self.staged = lengths
        with self.here:
            try:
                captured.graph.replay()
                captured.reports[turn].copy_(captured.packed, non_blocking=True)
            finally:  # also if the step is interrupted here
                ended, self.turn = self.ends[turn], turn
                ended.record()
                self.in_flight = ended

        def collect() -> StepReport:
            ended.synchronize()  # sync: the only one of a step
            if self.in_flight is ended:
                self.in_flight = None
            packed, trims = captured.reports[turn].numpy().copy(), self.trimming is not None
            return StepReport.of(packed, captured.passes, trims)

        return collect

    def _capture(self, shape: StepShape) -> Captured:
        sizes = shape._replace(span=0)
        if sizes in self.tried and self.shapes.reads_lengths:
            try:
                with launches().existing_kernels_only():
                    return self._recorded(shape)
            except FirstUse:
                pass
        self._run(lambda: trial(self.inner, self.sequences, shape))
        self.tried.add(sizes)
        return self._recorded(shape)

    def _recorded(self, shape: StepShape) -> Captured:
        prompts = prompts_for(self.sequences, shape)

        def step() -> tuple[Tensor, tuple[Pass, ...]]:
            self.lengths.copy_(self.host_lengths, non_blocking=True)
            return self.inner.on_device(self.sequences, self.lengths, shape, prompts)

        graph, (packed, passes) = self._graph_of(step)
        return Captured(graph, packed, passes, [pinned(packed) for _ in range(2)], prompts)

    def _replayed(self, run: Callable[[], None]) -> Callable[[], None]:
        """Run a function once and capture it; returns what replays it."""
        self._run(run)
        return self._graph_of(run)[0].replay

    def _run(self, function: Callable[[], object]) -> None:
        """Run a function on the stream of the captures."""
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            function()
        torch.cuda.current_stream().wait_stream(self.side)

    def _graph_of(
        self, function: Callable[[], R], **options: Any
    ) -> tuple[torch.cuda.CUDAGraph, R]:
        """A graph of what a function launches, and what it returns.

        options: of `torch.cuda.graph`, if they are not those of all captures.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            # the default capture stream is on the process's first device
            capture = torch.cuda.graph(graph, **{"pool": self.pool, "stream": self.side} | options)
            # freeing an engine or a graph would end the capture
            with without_garbage_collection(), capture:
                returned = function()
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            raise OptionError(
                f"The step cannot be captured as a CUDA graph ({str(error).splitlines()[0]}): a "
                "part of it reads from the host; give `cuda_graphs=False`."
            ) from error
        return graph, returned
