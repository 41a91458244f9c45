"""A step on a CPU that behaves as on a device with a queue."""

from collections.abc import Callable, Sequence
from typing import ClassVar, final

import torch

from bass.engine.cost import Pass
from bass.engine.prefill import Part
from bass.engine.shapes import StepShape
from bass.engine.step import Step, StepReport
from bass.records import Sequences


@final
class Queued(Step):
    """A step whose report may come later, as on a device with a queue.

    `told`: how many were under way at each launch.
    """

    overlaps: ClassVar[bool] = True

    def __init__(self, inner: Step, at_hand: Callable[[StepShape], bool]) -> None:
        self.inner, self.at_hand = inner, at_hand
        self.target, self.drafter, self.verifier = inner.target, inner.drafter, inner.verifier
        self.warp, self.vocab_size, self.log = inner.warp, inner.vocab_size, inner.log
        self.draft_context, self.shapes = inner.draft_context, inner.shapes
        self.launched = self.collected = 0
        self.told: list[int] = []

    def prepared(self, shape: StepShape) -> bool:
        return self.at_hand(shape)

    def catch_up(
        self, sequences: Sequences, parts: list[Part], drafter: int = 0
    ) -> tuple[Pass, ...]:
        assert self.launched == self.collected, "tokens that are not committed yet may be lacking"
        return self.inner.catch_up(sequences, parts, drafter)

    def launch(
        self, sequences: Sequences, lengths: list[int], shape: StepShape, parts: Sequence[Part] = ()
    ) -> Callable[[], StepReport]:
        ends = sequences.lens + torch.tensor(lengths, device=sequences.lens.device)
        assert all(end <= self.draft_context for end in ends.tolist()) or shape.k == 0
        collect = self.inner.launch(sequences, lengths, shape, parts)
        self.told.append(self.launched - self.collected)
        self.launched += 1

        def later() -> StepReport:
            self.collected += 1
            return collect()

        return later
