"""A step in the place of `GraphedStep`, without a GPU."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, final

from bass.engine.cost import Pass
from bass.engine.graphs import trial
from bass.engine.prefill import Part, PrefillGraphs
from bass.engine.shapes import StepShape, StepShapes
from bass.engine.step import Step, StepReport
from bass.records import Sequences


@final
class Captured(Step):
    """Runs in few shapes, each prepared before; notes how often it is prepared."""

    overlaps: ClassVar[bool] = False
    count: ClassVar[int] = 0
    prefills: ClassVar[int] = 0

    def __init__(
        self,
        step: Any,
        rows: Sequences | None,
        shapes: StepShapes,
        pool: Any,
        prefills: PrefillGraphs | None = None,
    ) -> None:
        self.inner, self.rows, self.shapes, self.known = step, rows, shapes, set[StepShape]()
        self.target, self.drafter, self.log = step.target, step.drafter, step.log
        self.verifier, self.warp, self.draft_context = step.verifier, step.warp, step.draft_context
        self.trimming = step.trimming
        # None: of no rows in particular
        self.graphs = prefills

    def replayed(self, run: Callable[[], None]) -> Callable[[], None]:
        Captured.prefills += 1
        run()
        run()  # as the capture does
        return run

    def prefill(self, sequences: Sequences, parts: list[Part]) -> None:
        if self.graphs is not None and self.graphs.target.captured:
            self.graphs.target.feed(parts)
        else:
            super().prefill(sequences, parts)

    def catch_up(
        self, sequences: Sequences, parts: list[Part], drafter: int = 0
    ) -> tuple[Pass, ...]:
        if self.graphs is not None and self.graphs.drafters[drafter].captured:
            return self.graphs.drafters[drafter].feed(parts)
        return super().catch_up(sequences, parts, drafter)

    def prepare_windows(self) -> None:
        if self.graphs is not None:
            for graphs in self.graphs.all:
                graphs.prepare(self.replayed)

    def prepared(self, shape: StepShape) -> bool:
        return shape in self.known

    def prepare(self, sequences: Sequences, shape: StepShape) -> None:
        if not self.prepared(shape):
            Captured.count += 1
            trial(self.inner, sequences, shape)
            self.known.add(shape)

    def launch(
        self, sequences: Sequences, lengths: list[int], shape: StepShape, parts: Sequence[Part] = ()
    ) -> Callable[[], StepReport]:
        assert self.prepared(shape)
        assert self.rows is None or sequences is self.rows
        return self.inner.launch(sequences, lengths, shape, parts)
