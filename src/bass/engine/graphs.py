"""A step as CUDA graphs: captured once for each shape, then replayed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from bass.engine.step import SpeculativeStep, Step, StepReport, unpack
from bass.errors import OptionError
from bass.interfaces import Drafter, Scorer, Verifier
from bass.records import Sequences


@dataclass(frozen=True)
class Captured:
    """One graph, and the host memory that it copies the packed report into."""

    graph: torch.cuda.CUDAGraph
    report: Tensor  # host, pinned


@final
class GraphedStep(Step):
    """Everything between the lengths and the report of `step` as one CUDA graph for each (k, span).

        host     lengths -> pinned                                      pinned -> report
        graph               -> device -> draft, score, verify, commit -> packed ->

    A graph holds addresses, so it serves the `sequences` it was made with and the storage of the step's caches, and no others. A
    shape is captured when it first occurs: a run in which all rows are idle compiles what must be compiled, then the
    capture follows. All graphs share one memory pool, since none outlives the next one's replay.
    """

    overlaps: ClassVar[bool] = True

    def __init__(self, step: SpeculativeStep, sequences: Sequences) -> None:
        self.inner, self.sequences = step, sequences
        self.target: Scorer = step.target
        self.drafter: Drafter = step.drafter
        self.verifier: Verifier = step.verifier
        batch = len(sequences.lens)
        self.asked = torch.zeros(batch, dtype=torch.int64, pin_memory=True)  # host
        self.lengths = torch.zeros_like(sequences.lens)  # device
        self.pool = torch.cuda.graph_pool_handle()
        self.captured: dict[tuple[int, int], Captured] = {}

    def prepare(self, sequences: Sequences, k: int, span: int) -> None:
        if (k, span) not in self.captured:
            self.captured[k, span] = self._capture(k, span)

    def launch(self, sequences: Sequences, lengths: np.ndarray, k: int, span: int) -> Callable[[], StepReport]:
        assert sequences is self.sequences, "a graph serves the sequences it was captured with"
        self.prepare(sequences, k, span)
        captured = self.captured[k, span]
        self.asked.numpy()[:] = lengths
        captured.graph.replay()

        def collect() -> StepReport:
            torch.cuda.current_stream().synchronize()  # sync: the one of a step
            return unpack(captured.report.numpy().copy())

        return collect

    def _capture(self, k: int, span: int) -> Captured:
        active = self.sequences.active.clone()
        self.sequences.active.fill_(False)  # so that the trial commits nothing and writes nothing but spare slots
        self.lengths.fill_(k)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            packed = self.inner.on_device(self.sequences, self.lengths, k, span)
        torch.cuda.current_stream().wait_stream(side)
        report = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self.pool):
                self.lengths.copy_(self.asked, non_blocking=True)
                report.copy_(self.inner.on_device(self.sequences, self.lengths, k, span), non_blocking=True)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise OptionError(
                f"The step cannot be captured as a CUDA graph ({str(error).splitlines()[0]}): a part of it reads from the host; "
                "give `cuda_graphs=False`."
            ) from error
        self.sequences.active.copy_(active)
        return Captured(graph, report)
